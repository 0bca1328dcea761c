//! Requests to nodes that recover topologies by themselves: what they hold, a take-over, and the rolling restart
//! that they store.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{RecoveryAnswer, RecoveryAsk, Standing},
};
use topology::{Rolling, rolling::Phase};

use super::{cluster::Cluster, identify::unexpected, session::Session};

/// Time limit for an answer, which may include syncing a disk.
const ANSWER: Duration = Duration::from_secs(10);
/// How often a phase is sent until all nodes that answer store it.
const ATTEMPTS: usize = 5;

async fn question(session: &Session, ask: RecoveryAsk) -> Result<ResponseBody, Fault> {
    session.ask(RequestBody::Recovery(Box::new(ask))).await?.next("the answer to a recovery request", ANSWER).await
}

/// What a node holds.
///
/// # Errors
/// The node does not answer.
pub async fn standing(session: &Session) -> Result<Standing, Fault> {
    match question(session, RecoveryAsk::Standing(None)).await? {
        ResponseBody::Recovery(RecoveryAnswer::Standing(standing)) => Ok(*standing),
        other => Err(unexpected(session, &other)),
    }
}

async fn tell(session: &Session, ask: RecoveryAsk) -> Result<(), Fault> {
    match question(session, ask).await? {
        ResponseBody::Recovery(RecoveryAnswer::Learned) => Ok(()),
        other => Err(unexpected(session, &other)),
    }
}

/// What each node holds, in the order in which the nodes were given; `None` if a node does not answer.
pub async fn standings(cluster: &Cluster) -> Vec<Option<(Arc<Session>, Standing)>> {
    let mut found = Vec::with_capacity(cluster.nodes.len());
    for node in &cluster.nodes {
        let standing = match node.session() {
            Ok(session) => standing(&session).await.ok().map(|standing| (session, standing)),
            Err(_) => None,
        };
        found.push(standing);
    }
    found
}

/// What nodes have answered to a take-over.
#[derive(Clone, Debug, Default)]
pub struct TakenOver {
    /// Names of those that may continue.
    pub told: Vec<String>,
    /// Faults of those that refuse: they hold no topology, or serve.
    pub refused: Vec<Fault>,
}

/// Lets the nodes that answer continue without the members that do not.
///
/// # Errors
/// None of them holds a topology.
pub async fn take_over(cluster: &Cluster) -> Result<TakenOver, Fault> {
    let mut answers = TakenOver::default();
    for session in cluster.nodes.iter().filter_map(|node| node.session().ok()) {
        match tell(&session, RecoveryAsk::TakeOver).await {
            Ok(()) => answers.told.push(session.identity.name.clone()),
            Err(fault) => answers.refused.push(fault),
        }
    }
    if answers.told.is_empty() {
        let away = Fault::new("console", FaultKind::NotServing { state: "away".into() });
        return Err(answers.refused.into_iter().next().unwrap_or(away));
    }
    Ok(answers)
}

/// The latest rolling restart that any node stores.
pub async fn rolling(cluster: &Cluster) -> Option<Rolling> {
    let known = standings(cluster).await.into_iter().flatten().filter_map(|(_, standing)| standing.rolling);
    known.max_by_key(|rolling| rolling.revision)
}

/// Sends all reachable nodes a rolling restart with a higher revision than any they store; `change` derives it from
/// the latest.
///
/// # Errors
/// No node stores it.
pub async fn change(
    cluster: &Cluster,
    change: impl FnOnce(Option<&Rolling>) -> Result<Rolling, Fault>,
) -> Result<Rolling, Fault> {
    let latest = rolling(cluster).await;
    let wanted = change(latest.as_ref())?;
    let wanted = Rolling { revision: latest.map_or(0, |latest| latest.revision).saturating_add(1), ..wanted };
    let (mut kept, mut first) = (0, None);
    for session in cluster.nodes.iter().filter_map(|node| node.session().ok()) {
        match tell(&session, RecoveryAsk::Rolling(wanted.clone())).await {
            Ok(()) => kept += 1,
            Err(fault) => drop(first.get_or_insert(fault)),
        }
    }
    match first {
        Some(fault) if kept == 0 => Err(fault),
        _ => Ok(wanted),
    }
}

/// Moves the latest rolling restart to another phase. The node that drives it may take its next step at the same
/// moment; then the phase is sent again.
///
/// # Errors
/// There is no open rolling restart, or no node stores the change.
pub async fn in_phase(cluster: &Cluster, phase: Phase) -> Result<Rolling, Fault> {
    let next = |latest: Option<&Rolling>| {
        latest
            .filter(|rolling: &&Rolling| matches!(rolling.phase, Phase::Runs | Phase::Paused(_)))
            .map(|latest| latest.in_phase(phase.clone()))
            .ok_or_else(|| {
                let reason = "no rolling restart is running or paused".into();
                Fault::new("console", FaultKind::ParameterInvalid { reason })
            })
    };
    let mut said = change(cluster, next).await?;
    for _ in 1..ATTEMPTS {
        let kept = standings(cluster).await;
        if kept.iter().flatten().all(|(_, standing)| standing.rolling.as_ref() == Some(&said)) {
            break;
        }
        said = change(cluster, next).await?;
    }
    Ok(said)
}
