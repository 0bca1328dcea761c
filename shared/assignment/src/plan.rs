//! Reads the sizes of a model from a node, and plans on a separate thread, because many nodes have many layouts.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::session::Session;
use telemetry::NodeReport;
use tokio::time::timeout;

use crate::{
    assign::reports,
    desired::TopologyRequest,
    identify::identify,
    planner_query::{PlannerAnswer, PlannerNode, PlannerQuery, share_a_machine},
};

/// Time limit of the planner.
const PATIENCE: Duration = Duration::from_secs(60);

/// The candidate layouts for the nodes of the query.
///
/// # Errors
/// The node lacks the model, the model's sizes are invalid, or planning takes too long.
pub async fn plan(session: &Session, ask: PlannerQuery) -> Result<PlannerAnswer, Fault> {
    let card = identify(session, &ask.model).await?;
    let malformed =
        |reason: &str| Fault::new(&session.identity.name, FaultKind::Malformed { reason: reason.to_owned() });
    let sizes = card.sizes().map_err(|kind| Fault::new(&session.identity.name, kind))?;
    let work = tokio::task::spawn_blocking(move || PlannerAnswer::new(ask, sizes));
    match timeout(PATIENCE, work).await {
        Ok(Ok(planned)) => Ok(planned),
        Ok(Err(_)) => Err(malformed("cannot plan with the reported sizes of the model")),
        Err(_) => Err(malformed("planning takes longer than a minute; use console topology plan with fewer nodes")),
    }
}

/// Plans a request for these nodes, which are asked for their memory, machine and earlier measurements. `None` if
/// predictions are not valid: nodes share a machine, or do not report their free memory.
///
/// # Errors
/// Those of [`plan`], and a node that does not answer.
pub async fn plan_for(sessions: &[Arc<Session>], asked: &TopologyRequest) -> Result<Option<PlannerAnswer>, Fault> {
    let reports = reports(sessions).await?;
    let nodes =
        sessions.iter().zip(&reports).enumerate().map(|(place, found): (usize, (&Arc<Session>, &NodeReport))| {
            let (session, report) = found;
            let identity = &session.identity;
            PlannerNode::of(place, &identity.machine, identity.cores.len(), report, false)
        });
    let nodes: Vec<PlannerNode> = nodes.collect();
    if share_a_machine(&nodes) || nodes.iter().any(|node| node.memory == 0) {
        return Ok(None);
    }
    let Some(first) = sessions.first() else { return Ok(None) };
    let all = asked.wanted(sessions.len());
    let ask = PlannerQuery {
        model: asked.model.clone(),
        nodes,
        goal: asked.goal,
        context: asked.context_length,
        slots: all.slots,
        kv: all.kv,
        exchange: all.exchange,
        choice: all.collective,
        now_unix_ms: reports.iter().map(|report| report.unix_ms).max().unwrap_or(0),
    };
    plan(first, ask).await.map(Some)
}
