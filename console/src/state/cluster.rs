//! The nodes and the topology on them: sessions, reports, exclusions, the rolling restart and this console's assignment.
use std::time::Duration;

use common::{fault::Fault, ids::Epoch};
use telemetry::NodeReport;
use topology::{Exclusion, Exclusions, Rolling, Topology, rolling};

use super::{node::Node, sync};
use crate::operator::{desired::least_loaded, groups};

/// Progress of an assignment by this console.
#[derive(Clone, Debug, PartialEq)]
pub enum AssignmentStatus {
    /// None was requested.
    Nothing,
    /// It starts once all included nodes have reported.
    WaitsForNodes,
    /// Nodes load.
    Loading,
    /// Nodes switch to the new topology.
    Committing,
    /// Assigned.
    Running {
        /// Its epoch.
        epoch: Epoch,
        /// Whether it was already running and was reused.
        reused: bool,
    },
    /// It failed.
    Failed(Fault),
}

/// The nodes and the topology on them.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterState {
    /// The nodes in the order in which they were named.
    pub nodes: Vec<Node>,
    /// Progress of the assignment.
    pub assignment: AssignmentStatus,
    /// The topology of this console's last successful assignment.
    pub assigned: Option<Topology>,
    /// Exclusions, merged from all reports.
    pub exclusions: Exclusions,
    /// The latest known state of the rolling restart, which the nodes keep; also one that is over.
    pub rolling: Option<Rolling>,
    /// When its current step was first reported.
    pub rolling_since: Duration,
    /// All-reduces of the last minutes.
    pub sync: sync::SyncHistory,
}

impl ClusterState {
    /// Nodes that are not connected yet.
    pub fn new(nodes: &[String], assignment: AssignmentStatus) -> Self {
        Self {
            nodes: nodes.iter().map(|address| Node::new(address)).collect(),
            assignment,
            assigned: None,
            exclusions: Exclusions::default(),
            rolling: None,
            rolling_since: Duration::ZERO,
            sync: sync::SyncHistory::default(),
        }
    }

    /// The topology with the highest reported epoch, otherwise the last assigned one; it may not be running.
    pub fn topology(&self) -> Option<(&Topology, Epoch)> {
        let reports = self.nodes.iter().filter_map(|node| node.report.as_ref());
        let reported = reports.filter_map(|report| report.topology.as_ref().map(|(known, _, _)| (known, report.epoch)));
        let assigned = match &self.assignment {
            AssignmentStatus::Running { epoch, .. } => self.assigned.as_ref().map(|topology| (topology, *epoch)),
            _ => None,
        };
        reported.chain(assigned).max_by_key(|(_, epoch)| *epoch)
    }

    /// The topologies of the groups of nodes, beginning with [`Self::topology`].
    pub fn groups(&self) -> Vec<&Topology> {
        let reported = groups::groups(self.nodes.iter().filter_map(|node| node.report.as_ref()));
        let mut all: Vec<&Topology> = reported.into_iter().map(|group| group.topology).collect();
        if let Some((first, _)) = self.topology() {
            all.retain(|other| !groups::share_members(first, other));
            all.insert(0, first);
        }
        all
    }

    /// The topology of the group of a node.
    pub fn topology_of(&self, node: &Node) -> Option<&Topology> {
        self.groups().into_iter().find(|topology| topology.members.iter().any(|member| node.is(member)))
    }

    /// Whether a running topology has the node as a member, or would have it if all of its nodes were there.
    pub fn is_wanted(&self, node: &Node) -> bool {
        let desired = self.nodes.iter().filter_map(|other| other.report.as_ref()?.desired.as_deref());
        self.groups().into_iter().chain(desired).flat_map(|topology| &topology.members).any(|member| node.is(member))
    }

    /// A node's index among the members of the topology.
    pub fn member_of(&self, node: &Node) -> Option<usize> {
        let (topology, _) = self.topology()?;
        topology.members.iter().position(|member| node.is(member))
    }

    /// A member's index in the list of nodes.
    pub fn place_of(&self, member: usize) -> Option<usize> {
        let member = self.topology()?.0.members.get(member)?;
        self.nodes.iter().position(|node| node.is(member))
    }

    /// The node of a member.
    pub fn node_of(&self, member: usize) -> Option<&Node> {
        self.place_of(member).map(|place| &self.nodes[place])
    }

    /// The names of all nodes.
    pub fn names(&self) -> Vec<&str> {
        self.nodes.iter().map(Node::name).collect()
    }

    /// A node's exclusion; `None` if it is included.
    pub fn exclusion(&self, node: &Node) -> Option<&Exclusion> {
        let by_name = self.exclusions.of(node.name(), &node.address);
        by_name.or_else(|| if node.is_open() { None } else { self.exclusions.at(&node.address) })
    }

    /// List indices of the nodes that are not excluded.
    pub fn usable(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|place| self.exclusion(&self.nodes[*place]).is_none()).collect()
    }

    /// Whether every included node has an open session.
    pub fn all_open(&self) -> bool {
        self.usable().into_iter().all(|place| self.nodes[place].is_open())
    }

    /// Whether every included node has an open session and has reported on it.
    pub fn all_report(&self) -> bool {
        self.usable().into_iter().all(|place| self.nodes[place].is_open() && self.nodes[place].report.is_some())
    }

    /// Whether a rolling restart is in progress.
    pub fn rolling_runs(&self) -> bool {
        self.rolling.as_ref().is_some_and(Rolling::is_running)
    }

    /// The rolling restart, unless it is over.
    pub fn open_rolling(&self) -> Option<&Rolling> {
        self.rolling
            .as_ref()
            .filter(|rolling: &&Rolling| matches!(rolling.phase, rolling::Phase::Runs | rolling::Phase::Paused(_)))
    }

    /// Whether the rolling restart is currently at this node.
    pub fn restarts(&self, node: &Node) -> bool {
        let target = self.rolling.as_ref().filter(|rolling| rolling.is_running()).and_then(Rolling::target);
        target.is_some_and(|(name, address)| name == node.name() || *address == node.address)
    }

    /// Whether a node is excluded but still a member of the running topology, so that it accepts no new requests.
    pub fn is_cordoned(&self, node: &Node) -> bool {
        self.exclusion(node).is_some() && self.member_of(node).is_some()
    }

    /// Whether the nodes restore the topology by themselves: most of its members answer, and an included one that holds it
    /// recovers it.
    pub fn recovers(&self) -> bool {
        let Some((topology, _)) = self.topology() else { return false };
        let members = (0..topology.members.len()).filter_map(|member| self.node_of(member));
        let open: Vec<&Node> = members.filter(|node| node.is_open() && node.report.is_some()).collect();
        let mut included = open.iter().filter(|node| self.exclusion(node).is_none());
        2 * open.len() > topology.members.len()
            && included.any(|node| {
                let report = node.report.as_ref().filter(|report: &&NodeReport| report.recovers);
                report.and_then(|report| report.topology.as_ref()).is_some_and(|(held, ..)| held == topology)
            })
    }

    /// Whether an assignment of this console is in progress.
    pub fn is_assigning(&self) -> bool {
        matches!(self.assignment, AssignmentStatus::Loading | AssignmentStatus::Committing)
    }

    /// Whether a request can be sent: every member of some replica is connected and serves it.
    pub fn is_ready(&self) -> bool {
        self.ready_head().is_some()
    }

    /// The list index of the head for the next request: among the replicas whose members all serve, the one with the
    /// fewest requests.
    pub fn ready_head(&self) -> Option<usize> {
        let (topology, epoch) = self.topology()?;
        least_loaded(topology, |head| {
            let mut members = topology.layout.members(topology.place(head).replica);
            let is_ready = !self.is_assigning() && members.all(|member| self.accepts_requests(member, epoch));
            let report = self.node_of(head.index())?.report.as_ref();
            is_ready.then(|| report.map_or(0, |report| report.requests))
        })
        .and_then(|head| self.place_of(head.index()))
    }

    /// Whether a member serves the topology of this epoch and is not excluded: the head of its replica accepts no new
    /// requests otherwise.
    fn accepts_requests(&self, member: usize, epoch: Epoch) -> bool {
        let Some(node) = self.node_of(member).filter(|node| node.is_open()) else { return false };
        let serves = match &node.report {
            Some(report) if report.epoch >= epoch => report.topology.is_some() && report.state.serves(),
            // Committed a moment ago: the last report is older than that.
            Some(_) => matches!(self.assignment, AssignmentStatus::Running { epoch: ours, .. } if ours == epoch),
            None => false,
        };
        serves && self.exclusion(node).is_none()
    }
}
