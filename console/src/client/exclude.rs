//! Takes a node out of the cluster, or in again: every node is told, then the topology is assigned anew on the rest.
use std::{sync::Arc, time::Duration};

use shared::{
    protocol::error::{Fault, FaultKind},
    telemetry::NodeReport,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    assign::{Assigned, assign_until, report},
    cluster::Cluster,
    event::{AssignEvent, OperateEvent},
    session::{Session, own_name},
};
use crate::wanted::Wanted;

/// Running requests may finish within this before the topology is assigned anew.
pub const GRACE: Duration = Duration::from_secs(20);
/// Between two looks at the head.
const LOOK: Duration = Duration::from_millis(100);

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The node.
    pub node: String,
    /// What runs now; `None` if no topology had to change.
    pub assigned: Option<Assigned>,
}

/// Takes the node out (`reason`), or in again (`None`). A topology that runs is assigned anew: without the node, or with
/// it in its place in the order of the cluster.
///
/// # Errors
/// A node that cannot keep the list, or the assignment failed: then the node is out (or in) all the same.
pub async fn exclude(
    cluster: Cluster,
    node: usize,
    reason: Option<&str>,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<Outcome, Fault> {
    exclude_until(cluster, node, reason, &CancellationToken::new(), tell).await
}

/// As [`exclude`]; ended by `stop` while requests finish or nodes load. What was said of the node stays said.
///
/// # Errors
/// As [`exclude`], and [`FaultKind::AssignmentAborted`].
pub async fn exclude_until(
    mut cluster: Cluster,
    node: usize,
    reason: Option<&str>,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<Outcome, Fault> {
    let subject = &cluster.nodes[node];
    let (name, address) = (cluster.name(subject).to_owned(), subject.address.clone());
    let others = cluster.nodes.iter().filter(|other| other.address != address && cluster.exclusion(other).is_none());
    if reason.is_some() && others.count() == 0 {
        let reason = "it is the last node that is in: nothing would be left to serve".into();
        return Err(Fault::new(name, FaultKind::ParameterInvalid { reason }));
    }
    if reason.is_none() {
        // One that does not answer stays out: the topology could not be assigned with it.
        subject.session()?;
    }
    cluster.exclusions.say(&name, &address, reason, &own_name());
    tell(OperateEvent::Told { node: name.clone(), out: reason.is_some() });
    cluster.spread().await?;
    let Some((topology, reports)) = cluster.topology() else { return Ok(Outcome { node: name, assigned: None }) };
    let is_member = topology.members.iter().any(|member| member.name == name || member.address == address);
    if is_member != reason.is_some() {
        return Ok(Outcome { node: name, assigned: None });
    }
    let members: Vec<&str> = topology.members.iter().map(|member| member.name.as_str()).collect();
    let stays = |other: &str| if other == name { reason.is_none() } else { members.contains(&other) };
    let rest = cluster.nodes.iter().filter(|other| stays(cluster.name(other)));
    let sessions = rest.map(|other| other.session()).collect::<Result<Vec<Arc<Session>>, Fault>>()?;
    let wanted = Wanted::again(topology, sessions.len());
    // What runs on any replica may finish: all of them are assigned anew.
    let is_head = |report: &&NodeReport| {
        let place = report.topology.as_ref().map(|(topology, _, member)| topology.place(*member));
        cluster.is_serving() && place.is_some_and(|place| place.is_head())
    };
    let heads: Vec<String> = reports.iter().copied().filter(is_head).map(|report| report.name.clone()).collect();
    let deadline = Instant::now() + GRACE;
    for head in heads.iter().filter_map(|head| cluster.find(head)) {
        wait_for_requests(&*cluster.nodes[head].session()?, deadline, stop, tell).await;
    }
    let told = |event: AssignEvent| tell(OperateEvent::Assign(event));
    let assigned = assign_until(&sessions, &wanted, stop, &told).await?;
    Ok(Outcome { node: name, assigned: Some(assigned) })
}

/// Says of a node that it is out (`reason`) or in, and leaves the topology as it is: nothing new begins on its replica. Returns its name.
///
/// # Errors
/// A node that cannot keep the list.
pub async fn say(
    cluster: &mut Cluster,
    node: usize,
    reason: Option<&str>,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<String, Fault> {
    let subject = &cluster.nodes[node];
    let (name, address) = (cluster.name(subject).to_owned(), subject.address.clone());
    cluster.exclusions.say(&name, &address, reason, &own_name());
    tell(OperateEvent::Told { node: name.clone(), out: reason.is_some() });
    cluster.spread().await?;
    Ok(name)
}

/// Waits until nothing runs on the replica of a node, at most [`GRACE`]; whether that came about.
///
/// # Errors
/// Its head was not named.
pub async fn drain(cluster: &Cluster, name: &str, tell: &(dyn Fn(OperateEvent) + Sync)) -> Result<bool, Fault> {
    drain_until(cluster, name, &CancellationToken::new(), tell).await
}

/// As [`drain`]; `stop` ends the waiting.
///
/// # Errors
/// Its head was not named.
pub async fn drain_until(
    cluster: &Cluster,
    name: &str,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<bool, Fault> {
    let Some((topology, _)) = cluster.topology() else { return Ok(true) };
    let Some(place) = topology.members.iter().position(|member| member.name == name) else { return Ok(true) };
    let replica = topology.layout.replica_of(shared::ids::MemberIndex(place as u16));
    let head = &topology.members[topology.layout.members(replica).start].name;
    let Some(node) = cluster.find(head) else {
        let reason = format!("its head {head} was not named: name all nodes with --nodes");
        return Err(Fault::new(name, FaultKind::ParameterInvalid { reason }));
    };
    let session = cluster.nodes[node].session()?;
    wait_for_requests(&session, Instant::now() + GRACE, stop, tell).await;
    Ok(report(&session).await.is_ok_and(|report| report.requests == 0))
}

/// Waits until nothing runs on the head, at most until the deadline; a head that is gone has nothing to finish.
async fn wait_for_requests(
    head: &Session,
    deadline: Instant,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) {
    let mut said = 0;
    while Instant::now() < deadline && !stop.is_cancelled() {
        match report(head).await {
            Ok(report) if report.requests > 0 => {
                if report.requests != said {
                    said = report.requests;
                    tell(OperateEvent::WaitsForRequests { count: said });
                }
            }
            Ok(_) | Err(_) => return,
        }
        sleep(LOOK).await;
    }
}
