//! Excludes or includes a node: every node stores the entry, then the topology is assigned to the included nodes.
use std::{sync::Arc, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::MemberIndex,
};
use planner::replan::{Stays, replan};
use telemetry::NodeReport;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use topology::{Exclusion, Member, Topology};

use super::{
    assign::{Assigned, Next, assign_as, assign_until, identify_on_any, report},
    cluster::{Cluster, ClusterNode},
    event::OperateEvent,
    session::{Session, own_name},
};
use crate::operator::{desired::DesiredTopology, groups::TopologyGroup};

/// Longest wait for running requests before the topology is assigned again.
pub const GRACE: Duration = Duration::from_secs(20);
/// A gateway's request of at most this many tokens may be interrupted: the gateway replays it.
const REPLAY_TOKENS: u32 = 512;
/// Interval between two polls of the head.
const LOOK: Duration = Duration::from_millis(100);

/// The result of an exclusion or an inclusion.
#[derive(Clone, Debug)]
pub struct ExclusionOutcome {
    /// Name of the node.
    pub node: String,
    /// The new topology; `None` if the running one did not have to change.
    pub assigned: Option<Assigned>,
}

/// What an exclusion that is stopped leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenStopped {
    /// The node is cordoned.
    Cordoned,
    /// Everything is as it was.
    AsBefore,
}

/// Ends an exclusion while requests finish or nodes load.
#[derive(Clone, Copy, Debug)]
pub struct ExclusionStop<'t> {
    /// Ends it when it is cancelled.
    pub token: &'t CancellationToken,
    /// What it leaves then.
    pub leaves: WhenStopped,
}

/// Excludes the node (with `reason`) or includes it (`None`). A running topology is assigned again: without the
/// node, or with it at its place in cluster order. To be excluded, the node need not answer, store the list or be in
/// the list of given nodes. While requests finish or nodes load, `stop` ends the operation.
///
/// # Errors
/// Too few nodes store the list, the assignment failed, or it was stopped. The previous topology then keeps serving.
pub async fn exclude(
    cluster: Cluster,
    node: usize,
    reason: Option<&str>,
    stop: ExclusionStop<'_>,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<ExclusionOutcome, Fault> {
    let mut cluster = cluster.with_known("").await;
    let subject = Subject::of(&cluster, node);
    let others = subject.others(&cluster);
    if reason.is_some() && others.is_empty() {
        let reason = "it is the last included node; without it, nothing can serve".into();
        return Err(Fault::new(subject.name, FaultKind::ParameterInvalid { reason }));
    }
    if reason.is_none() {
        // A node that does not answer stays excluded, because the topology could not be assigned with it.
        cluster.nodes[node].session()?;
    }
    subject.say(&mut cluster, subject.entry(reason), &others, tell).await?;
    let assigned = assign_rest(&cluster, &subject, reason.is_none(), stop.token, tell).await;
    match assigned {
        Ok(assigned) => Ok(ExclusionOutcome { node: subject.name, assigned }),
        Err(fault) => {
            let is_stopped = stop.token.is_cancelled();
            if is_stopped && reason.is_some() && stop.leaves == WhenStopped::Cordoned {
                subject.put(&mut cluster, Exclusion { is_cordon: true, ..subject.entry(reason) }, tell).await;
            } else if is_stopped
                || cluster.topology_of(&subject.name).map_or(cluster.serves(), |own| cluster.has_serving(own.topology))
            {
                // Heads refuse requests while a member is excluded, so a failed command must revert the exclusion to
                // keep the cluster serving.
                subject.take_back(&mut cluster, tell).await;
            }
            Err(fault)
        }
    }
}

/// Cordons a node's replica (with `reason`) or uncordons it (`None`), without changing the topology. Returns the
/// node's name.
///
/// # Errors
/// The head of the replica, or a majority of the nodes, cannot store the list; nothing has changed then.
pub async fn say(
    cluster: &mut Cluster,
    node: usize,
    reason: Option<&str>,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<String, Fault> {
    let subject = Subject::of(cluster, node);
    let mut voters = subject.others(cluster);
    if voters.is_empty() {
        voters.push(subject.address.clone());
    }
    let head = subject.head(cluster);
    let entry = Exclusion { is_cordon: reason.is_some(), ..subject.entry(reason) };
    let refused = subject.say(cluster, entry, &voters, tell).await?;
    match refused.into_iter().find(|(address, _)| Some(address) == head.as_ref()) {
        Some((_, fault)) => {
            subject.take_back(cluster, tell).await;
            Err(fault)
        }
        None => Ok(subject.name),
    }
}

/// The node to exclude or include, and its previous entry.
struct Subject {
    name: String,
    address: String,
    before: Option<Exclusion>,
}

impl Subject {
    fn of(cluster: &Cluster, node: usize) -> Self {
        let subject = &cluster.nodes[node];
        let (name, address) = (cluster.name(subject).to_owned(), subject.address.clone());
        let before = cluster.exclusions.0.iter().find(|entry| entry.node == name).cloned();
        Self { name, address, before }
    }

    fn entry(&self, reason: Option<&str>) -> Exclusion {
        let (node, address, reason) = (self.name.clone(), self.address.clone(), reason.map(str::to_owned));
        Exclusion { node, address, reason, by: own_name(), revision: 0, is_cordon: false }
    }

    /// Addresses of the other included nodes.
    fn others(&self, cluster: &Cluster) -> Vec<String> {
        cluster
            .nodes
            .iter()
            .filter(|node: &&ClusterNode| node.address != self.address && cluster.exclusion(node).is_none())
            .map(|node| node.address.clone())
            .collect()
    }

    /// The address of the head of its replica, as listed.
    fn head(&self, cluster: &Cluster) -> Option<String> {
        let head = cluster.topology_of(&self.name)?.topology.head_of(&self.name)?;
        cluster.find(&head.name).map(|node| cluster.nodes[node].address.clone())
    }

    /// Sends the entry to all nodes. A majority of `voters` must store it. Returns the nodes that cannot.
    async fn say(
        &self,
        cluster: &mut Cluster,
        entry: Exclusion,
        voters: &[String],
        tell: &(dyn Fn(OperateEvent) + Sync),
    ) -> Result<Vec<(String, Fault)>, Fault> {
        tell(OperateEvent::Told { node: self.name.clone(), out: entry.is_out() });
        let refused = self.put(cluster, entry, tell).await;
        for (_, fault) in &refused {
            tell(OperateEvent::NotKept(fault.clone()));
        }
        let away = cluster.nodes.iter().filter_map(|node| Some((&node.address, node.answer.as_ref().err()?)));
        let lost: Vec<&Fault> = refused
            .iter()
            .map(|(address, fault)| (address, fault))
            .chain(away)
            .filter(|(address, _)| voters.contains(address))
            .map(|(_, fault)| fault)
            .collect();
        if let Some(fault) = lost.first().filter(|_| 2 * lost.len() >= voters.len()) {
            let fault = (*fault).clone();
            self.take_back(cluster, tell).await;
            return Err(fault);
        }
        Ok(refused)
    }

    /// Sends the entry to all nodes. Returns those that cannot store it.
    async fn put(
        &self,
        cluster: &mut Cluster,
        entry: Exclusion,
        tell: &(dyn Fn(OperateEvent) + Sync),
    ) -> Vec<(String, Fault)> {
        cluster.exclusions.put(entry);
        let refused = cluster.spread().await;
        let said = cluster.exclusions.0.iter().find(|entry| entry.node == self.name);
        said.into_iter().for_each(|entry| tell(OperateEvent::Said(entry.clone())));
        refused
    }

    /// Restores the previous entry. Faults are ignored: a node that cannot store it has not stored the new entry
    /// either.
    async fn take_back(&self, cluster: &mut Cluster, tell: &(dyn Fn(OperateEvent) + Sync)) {
        let before = self.before.clone().unwrap_or_else(|| self.entry(None));
        drop(self.put(cluster, before, tell).await);
    }
}

/// Assigns the desired topology of the subject's group to its included members, with or without the subject; `None` if nothing
/// has to change. Groups with other models are left alone.
async fn assign_rest(
    cluster: &Cluster,
    subject: &Subject,
    joins: bool,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<Option<Assigned>, Fault> {
    let mut groups = cluster.groups();
    // The only topology may have been assigned while the subject was excluded.
    let only = if groups.len() == 1 { groups.pop() } else { None };
    let Some(group) = cluster.topology_of(&subject.name).or(only) else { return Ok(None) };
    let desired = group.desired().unwrap_or(group.topology);
    let TopologyGroup { topology, reports } = group;
    let is_subject = |member: &Member| member.name == subject.name || member.address == subject.address;
    let is_member = topology.members.iter().any(is_subject);
    if is_member == joins {
        return Ok(None);
    }
    if joins && !desired.members.iter().any(is_subject) {
        // A layout of another size replaces every replica.
        let heads: Vec<&NodeReport> = serving_heads(&reports).collect();
        wait_for_heads(cluster, &heads, stop, tell).await;
        return extend(cluster, subject, topology, stop, tell).await.map(Some);
    }
    let stays = |member: &Member| match is_subject(member) {
        true => joins,
        false => topology.members.iter().any(|one| one.name == member.name),
    };
    let has_majority = 2 * topology
        .members
        .iter()
        .filter(|member: &&Member| reports.iter().any(|report| report.name == member.name))
        .count()
        > topology.members.len();
    let goes_on = has_majority || cluster.has_serving(topology);
    let mut stay = Vec::new();
    for (index, member) in desired.members.iter().enumerate().filter(|(_, member)| stays(member)) {
        let known = cluster.find(&member.name).or_else(|| cluster.find(&member.address));
        let known = &cluster.nodes[known.ok_or_else(|| {
            let reason = format!(
                "the topology has the member {}, which is not among the given nodes: name all nodes with --nodes",
                member.name
            );
            Fault::new(&member.name, FaultKind::ParameterInvalid { reason })
        })?];
        // Skip a member that is also lost, as the nodes' own vote would; it rejoins when it is back.
        if goes_on && known.session().is_err() {
            continue;
        }
        let free = known.report().and_then(NodeReport::free_for_next_shard).unwrap_or_default();
        let (member, address) = (MemberIndex(index as u16), known.address.clone());
        stay.push((Stays { member, address, free }, known.session()?));
    }
    if stay.is_empty() {
        return Err(refused(subject, "no member of the topology would be left".into()));
    }
    let card = identify_on_any(stay.iter().map(|(_, session)| &**session), &desired.model).await?;
    let sizes = card.sizes().map_err(|kind| Fault::new(&subject.name, kind))?;
    let stays: Vec<Stays> = stay.iter().map(|(one, _)| one.clone()).collect();
    let next = replan(desired, &stays, &sizes).map_err(|reason| refused(subject, reason))?;
    let sessions = sessions_of(&next, &stay)?;
    // Let requests finish on replicas that change; the other replicas keep serving.
    let heads: Vec<&NodeReport> = serving_heads(&reports).filter(|report| replica_changes(report, &next)).collect();
    wait_for_heads(cluster, &heads, stop, tell).await;
    let wanted = (!next.is_alike(desired)).then(|| Box::new(desired.clone()));
    let seen = cluster.nodes.iter().filter_map(ClusterNode::report).map(|report| report.epoch).max();
    let next = Next { topology: next, desired: wanted, sizes: &sizes, seen: seen.unwrap_or_default() };
    assign_as(&sessions, next, stop, &|event| tell(OperateEvent::Assign(event))).await.map(Some)
}

/// Whether the replica of a reporting member is not the same in the next topology.
fn replica_changes(report: &NodeReport, next: &Topology) -> bool {
    let held = report.topology.as_ref();
    held.is_some_and(|(held, _, member)| held.kept_in(*member, next).is_none())
}

/// The sessions of a topology's members, in member order. All members are nodes that stay.
fn sessions_of(topology: &Topology, stay: &[(Stays, Arc<Session>)]) -> Result<Vec<Arc<Session>>, Fault> {
    topology
        .members
        .iter()
        .map(|member: &Member| {
            let found = stay.iter().find(|(one, _)| one.address == member.address);
            found.map(|(_, session)| Arc::clone(session)).ok_or_else(|| {
                let reason = format!("there is no session with member {} at {}", member.name, member.address);
                Fault::new(&member.name, FaultKind::TopologyInvalid { reason })
            })
        })
        .collect()
}

/// The heads among members that serve. Another member may be lost: the requests of the other replicas are still
/// running.
fn serving_heads<'a>(reports: &[&'a NodeReport]) -> impl Iterator<Item = &'a NodeReport> {
    reports.iter().copied().filter(|report| {
        let serves = report.state.serves();
        serves && report.topology.as_ref().is_some_and(|(held, _, member)| held.place(*member).is_head())
    })
}

/// Waits until these heads run no requests that would fail or pause for long, at most [`GRACE`] in total.
async fn wait_for_heads(
    cluster: &Cluster,
    heads: &[&NodeReport],
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) {
    let names: Vec<&str> = cluster.nodes.iter().map(|node| cluster.name(node)).collect();
    let deadline = Instant::now() + GRACE;
    for head in heads {
        let session = cluster.find(&head.name).and_then(|node| cluster.nodes[node].session().ok());
        if let Some(session) = session {
            wait_for_sessions(&session, deadline, stop, &names, tell).await;
        }
    }
}

/// Assigns the running topology to its members and the node, in cluster order; it was assigned while the node was
/// excluded.
async fn extend(
    cluster: &Cluster,
    subject: &Subject,
    topology: &Topology,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<Assigned, Fault> {
    let all = cluster.nodes.iter().filter(|other: &&ClusterNode| {
        let name = cluster.name(other);
        name == subject.name || topology.members.iter().any(|member| member.name == name)
    });
    let sessions = all.map(ClusterNode::session).collect::<Result<Vec<Arc<Session>>, Fault>>()?;
    let wanted = DesiredTopology::again(topology, sessions.len());
    assign_until(&sessions, &wanted, stop, &|event| tell(OperateEvent::Assign(event))).await
}

fn refused(subject: &Subject, reason: String) -> Fault {
    Fault::new(&subject.name, FaultKind::TopologyInvalid { reason })
}

/// Waits until no request runs on the replica of a node, at most [`GRACE`]. Returns whether that was reached.
///
/// # Errors
/// Its head is not among the given nodes.
pub async fn drain(cluster: &Cluster, name: &str, tell: &(dyn Fn(OperateEvent) + Sync)) -> Result<bool, Fault> {
    drain_until(cluster, name, &CancellationToken::new(), tell).await
}

/// Like [`drain`]; `stop` ends the wait.
///
/// # Errors
/// Its head is not among the given nodes, or does not answer.
pub async fn drain_until(
    cluster: &Cluster,
    name: &str,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<bool, Fault> {
    let Some(group) = cluster.topology_of(name) else {
        // If it does not answer, it may hold a topology that no other node reports.
        if let Some(node) = cluster.find(name) {
            cluster.nodes[node].session()?;
        }
        return Ok(true);
    };
    let Some(Member { name: head, .. }) = group.topology.head_of(name) else { return Ok(true) };
    let Some(node) = cluster.find(head) else {
        let reason = format!("its head {head} is not among the given nodes: name all nodes with --nodes");
        return Err(Fault::new(name, FaultKind::ParameterInvalid { reason }));
    };
    let session = cluster.nodes[node].session()?;
    wait_for_requests(&session, Instant::now() + GRACE, stop, tell).await;
    Ok(report(&session).await.is_ok_and(|report| report.requests == 0))
}

/// Waits until no request runs on the head, at most until the deadline. A lost head has no requests to finish.
async fn wait_for_requests(
    head: &Session,
    deadline: Instant,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) {
    wait_while(head, deadline, stop, &|report| report.requests, tell).await;
}

/// Like [`wait_for_requests`], but only for requests that would fail or pause for long. A gateway (which is a node)
/// continues its requests on another replica, or replays them, which computes all of their tokens again.
async fn wait_for_sessions(
    head: &Session,
    deadline: Instant,
    stop: &CancellationToken,
    nodes: &[&str],
    tell: &(dyn Fn(OperateEvent) + Sync),
) {
    wait_while(head, deadline, stop, &|report| requests_that_would_fail(report, nodes), tell).await;
}

/// A head's running requests, except those that a gateway on one of `nodes` continues elsewhere without a long pause.
fn requests_that_would_fail(report: &NodeReport, nodes: &[&str]) -> u32 {
    let continued = report.traces.iter().filter(|request| {
        let is_of_gateway = request.by.split_once(" (").is_some_and(|(name, _)| nodes.contains(&name));
        let tokens = request.prompt_tokens.saturating_add(request.tokens);
        !request.stage.is_over() && is_of_gateway && tokens <= REPLAY_TOKENS
    });
    report.requests.saturating_sub(continued.count() as u32)
}

async fn wait_while(
    head: &Session,
    deadline: Instant,
    stop: &CancellationToken,
    count: &(dyn Fn(&NodeReport) -> u32 + Sync),
    tell: &(dyn Fn(OperateEvent) + Sync),
) {
    let mut said = 0;
    while Instant::now() < deadline && !stop.is_cancelled() {
        let Ok(report) = report(head).await else { return };
        match count(&report) {
            0 => return,
            count if count != said => {
                said = count;
                tell(OperateEvent::WaitsForRequests { count });
            }
            _ => {}
        }
        sleep(LOOK).await;
    }
}
