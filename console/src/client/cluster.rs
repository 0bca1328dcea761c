//! A snapshot of all named nodes: sessions, reports, and which of them are excluded.
use std::{sync::Arc, time::Duration};

use assignment::planner_query::PlannerNode;
use common::fault::{Fault, FaultKind};
use protocol::message::{RequestBody, ResponseBody};
use telemetry::NodeReport;
use tokio::task::JoinSet;
use topology::{Exclusion, Exclusions, Member, Topology};

use super::{
    assign::report,
    identify::unexpected,
    session::{self, Session},
};
use crate::operator::groups::{self, TopologyGroup};

/// Time limit for storing a list of exclusions.
const KEEP: Duration = Duration::from_secs(10);

/// A node of the list.
#[derive(Debug)]
pub struct ClusterNode {
    /// `ADDRESS:PORT` that is dialled.
    pub address: String,
    /// Its session and report, or why there is none.
    pub answer: Result<(Arc<Session>, NodeReport), Fault>,
}

/// The nodes in the order in which they were given.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<ClusterNode>,
    /// The merged exclusion lists of all nodes.
    pub exclusions: Exclusions,
}

/// The fault of what an excluded node prevents.
pub(super) fn excluded(entry: &Exclusion) -> FaultKind {
    let (member, reason, by) = (entry.node.clone(), entry.reason.clone().unwrap_or_default(), entry.by.clone());
    FaultKind::Excluded { member, reason, by }
}

impl Cluster {
    /// Dials all nodes at once and requests a report from each.
    pub async fn dial(addresses: &[String]) -> Self {
        let mut asked = JoinSet::new();
        for (index, address) in addresses.iter().enumerate() {
            let address = address.clone();
            asked.spawn(async move {
                let session = session::open(&address).await.map(Arc::new);
                (index, ClusterNode { answer: answer(session).await, address })
            });
        }
        Self::gather(asked).await
    }

    /// Like [`Self::dial`], with sessions that are already open.
    pub async fn ask(sessions: Vec<(String, Result<Arc<Session>, Fault>)>) -> Self {
        let mut asked = JoinSet::new();
        for (index, (address, session)) in sessions.into_iter().enumerate() {
            asked.spawn(async move { (index, ClusterNode { answer: answer(session).await, address }) });
        }
        Self::gather(asked).await
    }

    /// Requests new reports from the same nodes, over open sessions; nodes without a session are dialled again.
    pub async fn again(&self) -> Self {
        let mut asked = JoinSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let (address, open) = (node.address.clone(), node.session().ok().filter(|session| !session.is_broken()));
            asked.spawn(async move {
                let session = match open {
                    Some(session) => Ok(session),
                    None => session::open(&address).await.map(Arc::new),
                };
                (index, ClusterNode { answer: answer(session).await, address })
            });
        }
        Self::gather(asked).await
    }

    async fn gather(asked: JoinSet<(usize, ClusterNode)>) -> Self {
        let mut nodes = asked.join_all().await;
        nodes.sort_by_key(|(index, _)| *index);
        let nodes: Vec<ClusterNode> = nodes.into_iter().map(|(_, node)| node).collect();
        let mut exclusions = Exclusions::default();
        for report in nodes.iter().filter_map(ClusterNode::report) {
            exclusions.merge(&report.exclusions);
        }
        Self { nodes, exclusions }
    }

    /// The nodes that answered, for the planner: as if no model were loaded.
    pub fn planner_nodes(&self) -> Vec<PlannerNode> {
        let answers = self.nodes.iter().filter_map(|node| node.answer.as_ref().ok());
        let nodes = answers.enumerate().map(|(place, (session, report))| {
            let identity = &session.identity;
            PlannerNode::of(place, &identity.machine, identity.cores.len(), report, false)
        });
        nodes.collect()
    }

    /// Why a node is excluded; `None` if it is included.
    pub fn exclusion(&self, node: &ClusterNode) -> Option<&Exclusion> {
        match node.report() {
            Some(report) => self.exclusions.of(&report.name, &node.address),
            None => self.exclusions.at(&node.address),
        }
    }

    /// Whether a node is excluded but still a member of the running topology: its replica takes no new requests.
    pub fn is_cordoned(&self, node: &ClusterNode) -> bool {
        let name = self.name(node);
        self.exclusion(node).is_some() && self.topology_of(name).is_some_and(|group| group.has(name))
    }

    /// Whether a node may be a member of a topology: it is not excluded, or only cordoned.
    pub fn may_be_member(&self, node: &ClusterNode) -> bool {
        self.exclusion(node).is_none_or(|entry| entry.is_cordon)
    }

    /// The nodes that do not answer and are not excluded: they may hold what no other node reports.
    pub fn silent(&self) -> impl Iterator<Item = &ClusterNode> {
        self.nodes.iter().filter(|node: &&ClusterNode| node.answer.is_err() && self.may_be_member(node))
    }

    /// The entries of excluded nodes.
    pub fn out(&self) -> impl Iterator<Item = &Exclusion> {
        self.nodes.iter().filter_map(|node| self.exclusion(node))
    }

    /// Sessions of all nodes that are not excluded.
    ///
    /// # Errors
    /// One of them does not answer, or none is left.
    pub fn usable(&self) -> Result<Vec<Arc<Session>>, Fault> {
        self.usable_of(self.nodes.len())
    }

    /// Like [`Self::usable`], limited to the first `count` nodes.
    ///
    /// # Errors
    /// See [`Self::usable`].
    pub fn usable_of(&self, count: usize) -> Result<Vec<Arc<Session>>, Fault> {
        let used = self.nodes.iter().take(count).filter(|node| self.exclusion(node).is_none());
        let sessions = used.map(ClusterNode::session).collect::<Result<Vec<_>, _>>()?;
        match self.out().next() {
            Some(entry) if sessions.is_empty() => Err(Fault::new("console", excluded(entry))),
            _ => Ok(sessions),
        }
    }

    /// The index of the node with this name or address.
    pub fn find(&self, who: &str) -> Option<usize> {
        let address = super::with_port(who);
        self.nodes.iter().position(|node: &ClusterNode| self.name(node) == who || node.address == address)
    }

    /// A node's own name; if it does not answer, the name that other nodes use for it, or its address.
    pub fn name<'a>(&'a self, node: &'a ClusterNode) -> &'a str {
        if let Some(report) = node.report() {
            return &report.name;
        }
        let topologies = self.topologies().into_iter().map(|(topology, _)| topology);
        let member = topologies.flat_map(|topology| &topology.members).find(|member| member.address == node.address);
        let known = member.map(|member| member.name.as_str());
        let entry = self.exclusions.0.iter().find(|entry| entry.address == node.address);
        known.or(entry.map(|entry| entry.node.as_str())).unwrap_or(&node.address)
    }

    /// The topology of the highest epoch that nodes serve, or else of the highest that they hold, and the reports
    /// of its reachable members.
    pub fn topology(&self) -> Option<(&Topology, Vec<&NodeReport>)> {
        self.topologies().into_iter().next()
    }

    /// All topologies that nodes hold, as [`Self::topology`] and sorted by the same order: a cluster serves several models
    /// on different nodes.
    pub fn topologies(&self) -> Vec<(&Topology, Vec<&NodeReport>)> {
        let all = groups::topologies(self.nodes.iter().filter_map(ClusterNode::report));
        all.into_iter().map(|group| (group.topology, group.reports)).collect()
    }

    /// The groups of nodes with a topology each, in the same order.
    pub fn groups(&self) -> Vec<TopologyGroup<'_>> {
        groups::groups(self.nodes.iter().filter_map(ClusterNode::report))
    }

    /// The group of a node: it is a member of its topology, or of the desired one that this approximates.
    pub fn topology_of(&self, name: &str) -> Option<TopologyGroup<'_>> {
        self.groups().into_iter().find(|group| group.has(name) || group.wants(name))
    }

    /// Whether every member of the topology is reachable and serves it.
    pub fn is_serving(&self) -> bool {
        self.groups().first().is_some_and(TopologyGroup::is_serving)
    }

    /// Dials nodes that were not given but belong to the cluster: the members of the topology, and node `who` if
    /// another node has its address.
    pub async fn with_known(mut self, who: &str) -> Self {
        let topologies = self.topologies().into_iter().map(|(topology, _)| topology);
        let members = topologies.flat_map(|topology| &topology.members).map(|member| (&member.name, &member.address));
        let entries = self
            .exclusions
            .0
            .iter()
            .filter(|entry: &&Exclusion| entry.node == who || entry.address == super::with_port(who))
            .map(|entry| (&entry.node, &entry.address));
        let missing = members.chain(entries).filter(|(name, address)| {
            self.nodes.iter().all(|node| node.address != **address && self.name(node) != name.as_str())
        });
        let mut missing: Vec<String> = missing.map(|(_, address)| address.clone()).collect();
        missing.dedup();
        if !missing.is_empty() {
            let more = Self::dial(&missing).await;
            self.exclusions.merge(&more.exclusions);
            self.nodes.extend(more.nodes);
        }
        self
    }

    /// Whether requests can be served: a complete replica serves, or all groups if they have roles.
    pub fn serves(&self) -> bool {
        self.topology().is_some_and(|(topology, _)| self.has_serving(topology))
    }

    /// Whether requests to this topology can be served: see [`Self::serves`].
    pub fn has_serving(&self, topology: &Topology) -> bool {
        let serves = |member: &Member| {
            let mut reports = self.nodes.iter().filter_map(ClusterNode::report);
            reports.any(|report| report.name == member.name && report.serves(topology))
        };
        let mut replicas = 0..topology.layout.replicas;
        if !topology.layout.has_roles() {
            replicas.any(|replica: u16| topology.replica(replica).iter().all(serves))
        } else {
            topology.members.iter().all(serves)
        }
    }

    /// Sends the merged exclusion list to every reachable node with an older list. Returns the addresses of nodes
    /// that cannot store it, with the faults.
    pub async fn spread(&self) -> Vec<(String, Fault)> {
        let mut told = JoinSet::new();
        for node in &self.nodes {
            let Ok((session, report)) = &node.answer else { continue };
            let mut known = report.exclusions.clone();
            if !known.merge(&self.exclusions) {
                continue;
            }
            let (session, list, address) = (Arc::clone(session), self.exclusions.clone(), node.address.clone());
            told.spawn(async move { (address, keep(&session, list).await) });
        }
        let results = told.join_all().await;
        results.into_iter().filter_map(|(address, result)| Some((address, result.err()?))).collect()
    }
}

async fn keep(session: &Session, list: Exclusions) -> Result<(), Fault> {
    let mut reply = session.ask(RequestBody::Exclude(list)).await?;
    match reply.next("storing the list of excluded nodes", KEEP).await? {
        ResponseBody::Excluded => Ok(()),
        other => Err(unexpected(session, &other)),
    }
}

impl ClusterNode {
    /// The report, if the node answered.
    pub fn report(&self) -> Option<&NodeReport> {
        self.answer.as_ref().ok().map(|(_, report)| report)
    }

    /// The session.
    ///
    /// # Errors
    /// The node did not answer.
    pub fn session(&self) -> Result<Arc<Session>, Fault> {
        self.answer.as_ref().map(|(session, _)| Arc::clone(session)).map_err(Clone::clone)
    }
}

async fn answer(session: Result<Arc<Session>, Fault>) -> Result<(Arc<Session>, NodeReport), Fault> {
    let session = session?;
    let report = report(&session).await?;
    Ok((session, report))
}
