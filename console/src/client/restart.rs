//! The rolling restart driven by the console: each node drains, stops and returns, and the topology is assigned
//! again before the next node follows. Any problem stops the restart where it is.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::fault::{Fault, FaultKind};
use protocol::message::{RequestBody, ResponseBody};
use telemetry::NodeReport;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use topology::Topology;

use super::{
    assign::{Next, assign_as, identify_on_any, report, reports},
    cluster::{Cluster, excluded},
    event::{AssignEvent, OperateEvent, RestartStep},
    identify::unexpected,
    session::{self, Session},
};
use crate::operator::groups::TopologyGroup;

/// Time limit for a node to accept a restart.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit for a node to stop: the longest drain that its configuration allows, and the delay of its supervisor. The
/// session to a node that is lost ends earlier.
const END: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 3600 + 90 });
/// Time limit for a stopped node to return.
const BACK: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });
/// Interval between two dials.
const DIAL: Duration = Duration::from_millis(100);

/// A restart that did not complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// The reason; `None` if it was stopped on request.
    pub fault: Option<Fault>,
    /// Nodes that were not restarted, beginning with the one that failed.
    pub remaining: Vec<usize>,
}

/// Restarts the nodes at the indices `which` one after another. `stop` ends the restart before the next node.
///
/// # Errors
/// The fault, and the remaining nodes.
pub async fn restart(
    addresses: &[String],
    which: &[usize],
    stop: &AtomicBool,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<(), Stopped> {
    for (done, node) in which.iter().enumerate() {
        let stopped = |fault| Stopped { fault, remaining: which[done..].to_vec() };
        if stop.load(Ordering::Acquire) {
            return Err(stopped(None));
        }
        one(addresses, *node, tell).await.map_err(|fault| stopped(Some(fault)))?;
    }
    Ok(())
}

/// Restarts one node and assigns the previous topology again.
async fn one(addresses: &[String], node: usize, tell: &(dyn Fn(OperateEvent) + Sync)) -> Result<(), Fault> {
    let begun = Instant::now();
    let step = |step| tell(OperateEvent::Restart { node, step });
    let cluster = Cluster::dial(addresses).await;
    let again = check(&cluster, node)?;
    let session = cluster.nodes[node].session()?;
    let before = report(&session).await?;
    step(RestartStep::Draining);
    let mut reply = session.ask(RequestBody::Restart).await?;
    match reply.next("the answer to the restart request", ANSWER).await? {
        ResponseBody::Restarting => {}
        other => return Err(unexpected(&session, &other)),
    }
    ended(&session, reply).await?;
    step(RestartStep::Starting);
    let (session, _) = back(&addresses[node], &before).await?;
    if let Some(Again { topology, desired, members }) = again {
        step(RestartStep::Assigning);
        let sessions = members
            .iter()
            .map(
                |index: &usize| if *index == node { Ok(Arc::clone(&session)) } else { cluster.nodes[*index].session() },
            )
            .collect::<Result<Vec<_>, Fault>>()?;
        // The nodes may have restored it themselves.
        if !reports(&sessions).await?.iter().all(|report| serves(report, &topology)) {
            let card = identify_on_any(sessions.iter().map(|session| &**session), &topology.model).await?;
            let sizes = card.sizes().map_err(|kind| Fault::new(&session.identity.name, kind))?;
            let next = Next { topology, desired, sizes: &sizes, seen: before.epoch };
            let never = CancellationToken::new();
            assign_as(&sessions, next, &never, &|event: AssignEvent| tell(OperateEvent::Assign(event))).await?;
        }
    }
    step(RestartStep::Done { seconds: begun.elapsed().as_secs_f64() });
    Ok(())
}

fn serves(report: &NodeReport, topology: &Topology) -> bool {
    report.state.serves() && report.topology.as_ref().is_some_and(|(held, ..)| held == topology)
}

/// What to assign when a node is back.
struct Again {
    topology: Topology,
    /// The desired topology, if that one only approximates it.
    desired: Option<Box<Topology>>,
    /// List indices of the members.
    members: Vec<usize>,
}

/// Before a node restarts, everything else must be healthy. Returns what to assign when the node is back.
fn check(cluster: &Cluster, node: usize) -> Result<Option<Again>, Fault> {
    cluster.usable()?;
    if let Some(report) = cluster.nodes[node].report().filter(|report| !report.supervised) {
        return Err(Fault::new(&report.name, FaultKind::Unsupervised));
    }
    let name = cluster.name(&cluster.nodes[node]);
    let Some(group) = cluster.topology_of(name).filter(|group| group.has(name)) else { return Ok(None) };
    let (is_serving, desired) = (group.is_serving(), group.desired());
    let TopologyGroup { topology, reports } = group;
    if !is_serving {
        let broken = reports.iter().find_map(|report| report.fault.clone());
        let state = reports.first().map_or("idle", |report| report.state.name()).to_owned();
        let head = topology.members.first().map_or("?", |head| head.name.as_str());
        return Err(broken.unwrap_or_else(|| Fault::new(head, FaultKind::NotServing { state })));
    }
    let mut entries = topology.members.iter().filter_map(|member| cluster.exclusions.of(&member.name, &member.address));
    // No node takes an assignment with a cordoned member.
    if let Some(entry) = entries.next() {
        return Err(Fault::new(&entry.node, excluded(entry)));
    }
    let members: Option<Vec<usize>> = topology
        .members
        .iter()
        .map(|member| cluster.nodes.iter().position(|node| cluster.name(node) == member.name))
        .collect();
    let members = members.ok_or_else(|| {
        let reason = "its topology has members that are not among the given nodes: name all nodes with --nodes".into();
        Fault::new(cluster.name(&cluster.nodes[node]), FaultKind::ParameterInvalid { reason })
    })?;
    Ok(Some(Again { topology: topology.clone(), desired: desired.cloned().map(Box::new), members }))
}

/// Waits until the node has drained and closed its session.
async fn ended(session: &Session, mut reply: super::session::Reply) -> Result<(), Fault> {
    match reply.next("draining", END).await {
        Err(Fault { kind: FaultKind::Timeout { .. }, .. }) => {
            let seconds = END.as_secs() as u32;
            Err(Fault::new(&session.identity.name, FaultKind::Timeout { what: "draining".into(), seconds }))
        }
        Err(_) => Ok(()),
        Ok(other) => Err(unexpected(session, &other)),
    }
}

/// Dials until a new process of the same node answers.
async fn back(address: &str, before: &NodeReport) -> Result<(Arc<Session>, NodeReport), Fault> {
    let deadline = Instant::now() + BACK;
    while Instant::now() < deadline {
        if let Ok(session) = session::open(address).await
            && let Ok(report) = report(&session).await
            && report.instance != before.instance
        {
            return Ok((Arc::new(session), report));
        }
        sleep(DIAL).await;
    }
    Err(Fault::new(&before.name, FaultKind::NotBack { seconds: BACK.as_secs() as u32 }))
}
