//! What the planner predicts for the nodes under test.
use std::sync::Arc;

use assignment::{
    desired::{SLOTS_DEFAULT, TopologyRequest},
    identify::identify,
    planner_query::{LINK, PROMPT, PlannerAnswer, PlannerNode, PlannerQuery, links, share_a_machine},
};
use collectives::Algorithm;
use common::{fault::Fault, latency::ratio};
use planner::{
    search::{Candidate, Goal},
    simulate::{Machine, Tensor, collective},
};
use telemetry::{LinkBench, Measured, NodeReport};
use topology::Layout;

use crate::{
    client::{assign::reports, plan::plan, session::Session},
    operator::acceptance::Speeds,
};

/// Longest sequence of the test, in tokens.
pub(super) const CONTEXT: u32 = 1024;

/// A query for these nodes, in order. Without `measured`, the planner uses the built-in profile of each machine.
fn query(sessions: &[Arc<Session>], reports: &[NodeReport], model: &str, measured: bool) -> PlannerQuery {
    let nodes = sessions.iter().zip(reports).enumerate().map(|(place, node): (usize, (&Arc<Session>, &NodeReport))| {
        let (identity, report) = (&node.0.identity, node.1);
        let found = PlannerNode::of(place, &identity.machine, identity.cores.len(), report, false);
        if measured { found } else { PlannerNode { measured: Measured::default(), ..found } }
    });
    let open = TopologyRequest::open(model, SLOTS_DEFAULT).wanted(sessions.len());
    PlannerQuery {
        model: model.to_owned(),
        nodes: nodes.collect(),
        goal: Goal::Balanced,
        context: Some(CONTEXT),
        slots: open.slots,
        kv: open.kv,
        exchange: open.exchange,
        choice: open.collective,
        now_unix_ms: reports.iter().map(|report| report.unix_ms).max().unwrap_or(0),
    }
}

/// What the planner knows about a set of nodes.
pub(super) struct Planned {
    answer: PlannerAnswer,
}

impl Planned {
    /// Plans for these nodes with their measurements.
    pub(super) async fn of(sessions: &[Arc<Session>], model: &str) -> Result<Self, Fault> {
        let reports = reports(sessions).await?;
        Ok(Self { answer: plan(&sessions[0], query(sessions, &reports, model, true)).await? })
    }

    /// The layout that answers on all of these nodes: tensor-parallel if the model allows it, else the planner's best.
    ///
    /// # Errors
    /// Why no layout fits.
    pub(super) fn layout(&self) -> Result<Layout, String> {
        let nodes = self.answer.ask.nodes.len();
        let all = Layout::tensor_parallel(u16::try_from(nodes).unwrap_or(u16::MAX));
        let mut fitting = self.answer.plan.ranked.iter().map(|candidate| candidate.layout);
        if fitting.clone().any(|layout| layout == all) {
            return Ok(all);
        }
        let best = fitting.find(|layout| layout.replicas == 1 && layout.node_count() == nodes);
        best.ok_or_else(|| {
            let dropped = self.answer.plan.dropped.iter().find(|dropped| dropped.layout == all);
            let reason = dropped.map_or_else(|| "no layout fits".to_owned(), |dropped| dropped.reason.to_string());
            format!("the model does not run on {nodes} nodes: {reason}")
        })
    }

    /// The prediction for a layout.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn speeds(&self, layout: Layout) -> Result<Speeds, String> {
        if share_a_machine(&self.answer.ask.nodes) {
            return Err("no prediction: nodes share a machine".into());
        }
        let candidate = self.answer.candidate(&layout.to_string());
        let candidate = candidate.ok_or_else(|| "no prediction for this layout".to_owned())?;
        Ok(speeds(candidate, self.answer.context))
    }

    /// The predicted time of an all-reduce between all nodes, in microseconds, from their measured links.
    pub(super) fn all_reduce_us(&self, algorithm: Algorithm, tokens: u32, found: &LinkBench) -> Option<f64> {
        let (ask, sizes) = (&self.answer.ask, &self.answer.sizes);
        if share_a_machine(&ask.nodes) || ask.nodes.len() != usize::from(found.ranks) {
            return None;
        }
        let known = ask.nodes.iter().map(|node| (node.name.as_str(), node.measured.links.as_slice()));
        let machines = ask
            .nodes
            .iter()
            .zip(links(known))
            .map(|(node, link)| Machine { profile: node.profile(sizes, &ask.model), link: link.unwrap_or(LINK) });
        let tensor = Tensor { tokens, columns: found.columns as usize, exchange: found.exchange };
        let time = collective::time(algorithm, &machines.collect::<Vec<_>>(), tensor).ok()?;
        Some(time as f64 / 1e3)
    }
}

fn speeds(candidate: &Candidate, context: u32) -> Speeds {
    let prediction = &candidate.prediction;
    Speeds {
        prefill: ratio(f64::from(PROMPT.min(context)), prediction.ttft.0 as f64 / 1e9),
        decode: ratio(1e9, prediction.tpot.0 as f64),
    }
}

/// What the built-in profile of a machine predicts for a node alone.
pub(super) struct BuiltIn {
    pub(super) read_bytes_per_second: f64,
    pub(super) speeds: Option<Speeds>,
}

/// The prediction for a node that was not measured. `None` if there is no profile of such a machine.
pub(super) async fn built_in(session: &Arc<Session>, model: &str) -> Result<Option<BuiltIn>, Fault> {
    let sessions = [Arc::clone(session)];
    let reports = reports(&sessions).await?;
    if !reports.iter().all(|report| report.kernels.starts_with("neon") || report.is_paced()) {
        return Ok(None);
    }
    let answer = plan(session, query(&sessions, &reports, model, false)).await?;
    let read = answer.ask.nodes[0].profile(&answer.sizes, model).read_bytes_per_second;
    let candidate = answer.candidate(&Layout::tensor_parallel(1).to_string());
    let speeds = candidate.map(|candidate| speeds(candidate, answer.context));
    Ok(Some(BuiltIn { read_bytes_per_second: read, speeds }))
}

/// The longest sequence that the model allows, at most [`CONTEXT`].
pub(super) async fn context(session: &Session, model: &str) -> Result<u32, Fault> {
    let card = identify(session, model).await?;
    Ok(card.context_length.clamp(1, CONTEXT))
}
