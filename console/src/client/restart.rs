//! The rolling restart: one node after the other drains, ends, comes back, and the topology is assigned anew before the
//! next one goes. Any trouble stops it where it is.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use shared::{
    protocol::{
        error::{Fault, FaultKind},
        message::{RequestBody, ResponseBody},
    },
    telemetry::NodeReport,
};
use tokio::time::{Instant, sleep};

use super::{
    assign::{assign, report, unexpected},
    cluster::Cluster,
    event::{AssignEvent, OperateEvent, RestartStep},
    session::{self, Session},
};
use crate::wanted::Wanted;

/// A node must say that it restarts within this.
const ANSWER: Duration = Duration::from_secs(10);
/// A node must have ended within this: its drain, and what its supervisor adds.
const END: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 90 });
/// An ended node must be back within this.
const BACK: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });
/// Between two dials.
const DIAL: Duration = Duration::from_millis(100);

/// A restart that did not come to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// Why; `None`: it was asked to.
    pub fault: Option<Fault>,
    /// Nodes that were not restarted, the one with the fault first.
    pub remaining: Vec<usize>,
}

/// Restarts the nodes `which` of the list one after the other. `stop` ends it before the next node.
///
/// # Errors
/// The fault, and the nodes that remain.
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

/// Restarts one node and makes what ran before run again.
async fn one(addresses: &[String], node: usize, tell: &(dyn Fn(OperateEvent) + Sync)) -> Result<(), Fault> {
    let begun = Instant::now();
    let step = |step| tell(OperateEvent::Restart { node, step });
    let cluster = Cluster::dial(addresses).await;
    let again = check(&cluster, node)?;
    let session = cluster.nodes[node].session()?;
    let before = report(&session).await?;
    step(RestartStep::Draining);
    let mut reply = session.ask(RequestBody::Restart).await?;
    match reply.next("an answer to the restart", ANSWER).await? {
        ResponseBody::Restarting => {}
        other => return Err(unexpected(&session, &other)),
    }
    ended(&session, reply).await?;
    step(RestartStep::Starting);
    let (session, _) = back(&addresses[node], &before).await?;
    if let Some((wanted, members)) = again {
        step(RestartStep::Assigning);
        let of =
            |index: &usize| if *index == node { Ok(Arc::clone(&session)) } else { cluster.nodes[*index].session() };
        let sessions = members.iter().map(of).collect::<Result<Vec<_>, Fault>>()?;
        assign(&sessions, &wanted, &|event: AssignEvent| tell(OperateEvent::Assign(event))).await?;
    }
    step(RestartStep::Done { seconds: begun.elapsed().as_secs_f64() });
    Ok(())
}

/// Before a node goes, everything else must be well; returns what to assign when it is back, and on which nodes.
fn check(cluster: &Cluster, node: usize) -> Result<Option<(Wanted, Vec<usize>)>, Fault> {
    cluster.usable()?;
    if let Some(report) = cluster.nodes[node].report().filter(|report| !report.supervised) {
        return Err(Fault::new(&report.name, FaultKind::Unsupervised));
    }
    let Some((topology, reports)) = cluster.topology() else { return Ok(None) };
    let place = |name: &str| cluster.nodes.iter().position(|node| cluster.name(node) == name);
    if place_is_outside(cluster, node, topology) {
        return Ok(None);
    }
    if !cluster.is_serving() {
        let broken = reports.iter().find_map(|report| report.fault.clone());
        let state = reports.first().map_or("idle", |report| report.state.name()).to_owned();
        let head = topology.members.first().map_or("?", |head| head.name.as_str());
        return Err(broken.unwrap_or_else(|| Fault::new(head, FaultKind::NotServing { state })));
    }
    let members: Option<Vec<usize>> = topology.members.iter().map(|member| place(&member.name)).collect();
    let members = members.ok_or_else(|| {
        let reason = "its topology has members that were not named: name all nodes with --nodes".into();
        Fault::new(cluster.name(&cluster.nodes[node]), FaultKind::ParameterInvalid { reason })
    })?;
    Ok(Some((Wanted::again(topology, members.len()), members)))
}

fn place_is_outside(cluster: &Cluster, node: usize, topology: &shared::topology::Topology) -> bool {
    let name = cluster.name(&cluster.nodes[node]);
    topology.members.iter().all(|member| member.name != name)
}

/// Waits until the node has closed its session: it drained.
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

/// Dials until another run of the same node answers.
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
