//! The nodes and the topology on them: sessions, reports, exclusions, the rolling restart and this console's assignment.
use std::{cmp::Reverse, time::Duration};

use common::{fault::Fault, ids::Epoch};
use telemetry::{NodeReport, NodeState};
use topology::{Exclusion, Exclusions, Rolling, Topology, rolling};

use super::{node::Node, sync};
use crate::operator::{desired::least_loaded, groups::share_members};

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

/// A topology that a node holds, or that this console has committed.
#[derive(Clone, Copy, Debug)]
struct KnownTopology<'c> {
    topology: &'c Topology,
    /// Whether a node that answers serves it.
    serves: bool,
    /// Whether it is loaded by a node without a topology to recover: until it serves, another one may.
    is_new: bool,
    /// The highest epoch that the node has seen: the topology's own, or that of an assignment that failed or loads.
    epoch: Epoch,
}

impl<'c> KnownTopology<'c> {
    /// The one that a node reported last.
    fn of(node: &'c Node) -> Option<Self> {
        let report = node.report.as_ref()?;
        let (topology, ..) = report.topology.as_ref()?;
        let loads = matches!(report.state, NodeState::Loading | NodeState::Prepared | NodeState::Connecting);
        let serves = node.is_open() && report.state.serves();
        Some(Self { topology, serves, is_new: loads && !node.is_interrupted, epoch: report.epoch })
    }
}

/// The nodes and the topology on them.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterState {
    /// The nodes in the order in which they were named.
    pub nodes: Vec<Node>,
    /// Progress of the assignment.
    pub assignment: AssignmentStatus,
    /// Whether a topology has served since the assignment failed.
    has_outlived_failure: bool,
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
            has_outlived_failure: false,
            assigned: None,
            exclusions: Exclusions::default(),
            rolling: None,
            rolling_since: Duration::ZERO,
            sync: sync::SyncHistory::default(),
        }
    }

    /// The topology that this console has committed, and its epoch.
    fn committed(&self) -> Option<(&Topology, Epoch)> {
        let AssignmentStatus::Running { epoch, .. } = self.assignment else { return None };
        self.assigned.as_ref().map(|topology| (topology, epoch))
    }

    /// The topologies of the groups of nodes. Of topologies with a common member, one that serves counts, then the one
    /// of the highest epoch. Epochs alone do not decide: a failed assignment may have raised those of some nodes.
    fn known(&self) -> Vec<KnownTopology<'_>> {
        // Of equal ones, the last counts.
        let mut all: Vec<KnownTopology<'_>> = self.nodes.iter().rev().filter_map(KnownTopology::of).collect();
        let latest = all.iter().map(|one| one.epoch).max().unwrap_or_default();
        if let Some((topology, epoch)) = self.committed().filter(|(_, epoch)| *epoch >= latest) {
            // The nodes' last reports may be older than the commit.
            all.insert(0, KnownTopology { topology, serves: true, is_new: false, epoch });
        }
        all.sort_by_key(|one| Reverse((one.serves, one.epoch)));
        let mut known: Vec<KnownTopology<'_>> = Vec::new();
        for one in all {
            match known.iter_mut().find(|other| share_members(other.topology, one.topology)) {
                Some(other) => other.is_new &= one.is_new,
                None => known.push(one),
            }
        }
        known
    }

    /// The topology of the highest epoch, and that epoch; it may not be running. One that nodes load for the first time
    /// counts only if there is no other. The epoch is the topology's own or a later one: see [`NodeReport::epoch`].
    pub fn topology(&self) -> Option<(&Topology, Epoch)> {
        let latest = self.known().into_iter().rev().max_by_key(|one| (!one.is_new, one.epoch))?;
        Some((latest.topology, latest.epoch))
    }

    /// The topologies of the groups of nodes, beginning with [`Self::topology`].
    pub fn groups(&self) -> Vec<&Topology> {
        let mut all: Vec<&Topology> = self.known().into_iter().map(|one| one.topology).collect();
        if let Some((first, _)) = self.topology() {
            all.retain(|other| !share_members(first, other));
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
        target.is_some_and(|(name, address)| node.is_named(name, address))
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

    /// An assignment has failed.
    pub fn fail(&mut self, fault: Fault) {
        (self.assignment, self.has_outlived_failure) = (AssignmentStatus::Failed(fault), false);
    }

    /// Forgets an assignment that has failed when a topology breaks that has served since: the break has another reason.
    pub fn observe_failure(&mut self) {
        if !matches!(self.assignment, AssignmentStatus::Failed(_)) {
            return;
        }
        if self.is_ready() {
            self.has_outlived_failure = true;
        } else if self.has_outlived_failure {
            self.assignment = AssignmentStatus::Nothing;
        }
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
        let (topology, _) = self.topology()?;
        least_loaded(topology, |head| {
            let mut members = topology.layout.members(topology.place(head).replica);
            let is_ready = !self.is_assigning() && members.all(|member| self.accepts_requests(member, topology));
            let report = self.node_of(head.index())?.report.as_ref();
            is_ready.then(|| report.map_or(0, |report| report.requests))
        })
        .and_then(|head| self.place_of(head.index()))
    }

    /// Whether a member serves the topology and is not excluded: the head of its replica accepts no new requests
    /// otherwise.
    fn accepts_requests(&self, member: usize, topology: &Topology) -> bool {
        let node = topology.members.get(member).and_then(|member| self.nodes.iter().find(|node| node.is(member)));
        let Some(node) = node.filter(|node| node.is_open()) else { return false };
        let Some(report) = &node.report else { return false };
        let holds = report.topology.as_ref().is_some_and(|(held, ..)| held == topology);
        let serves = if holds { report.serves(topology) } else { self.is_before_commit(report, topology) };
        serves && self.exclusion(node).is_none()
    }

    /// Whether this console has committed the topology after a node sent this report, in which it does not hold it yet.
    fn is_before_commit(&self, report: &NodeReport, topology: &Topology) -> bool {
        let Some((_, epoch)) = self.committed().filter(|(committed, _)| *committed == topology) else { return false };
        // A prepared node has seen the epoch, and may serve the previous topology until the commit.
        report.epoch < epoch || (report.epoch == epoch && report.state.serves())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use common::ids::MemberIndex;
    use topology::Layout;

    use super::*;
    use crate::{
        fixtures::{NODES, Story, address, idle, lost_fault, name, running, topology},
        keymap::KeyCode,
        state::status::{ClusterStatus, status},
        update::effect::Effect,
        update::event::{AssignEvent, ClientEvent},
    };

    /// A topology of these nodes with this model.
    fn on(nodes: Range<usize>, model: &str) -> Topology {
        let all = topology();
        let (layout, members) = (Layout::tensor_parallel(nodes.len() as u16), all.members[nodes].to_vec());
        Topology { layout, members, model: model.to_owned(), ..all }
    }

    /// A node that holds this topology reports.
    fn reports(story: &mut Story, node: usize, held: &Topology, epoch: u64, state: NodeState) {
        let rank = held.members.iter().position(|member| member.name == name(node)).expect("it is a member");
        let topology = Some((held.clone(), held.hash(), MemberIndex(rank as u16)));
        story.report(node, NodeReport { epoch: Epoch(epoch), topology, ..running(node, state, false) });
    }

    /// Texts of the events about topologies since the first one.
    fn epochs(story: &Story) -> Vec<&str> {
        let texts = story.state.journal.events.entries().iter().map(|entry| entry.text.as_str());
        texts.filter(|text| text.starts_with("epoch ")).skip(1).collect()
    }

    #[test]
    fn failed_assignment_leaves_the_serving_topology_ready() {
        for is_own in [false, true] {
            let mut story = Story::ready();
            for node in 0..3 {
                reports(&mut story, node, &topology(), 4, NodeState::Ready);
            }
            if is_own {
                story.arrives(ClientEvent::Assign(AssignEvent::Failed(lost_fault())));
            }
            assert!(story.state.cluster.is_ready());
            assert_eq!(status(&story.state), ClusterStatus::Ready);
            assert_eq!(epochs(&story), [""; 0]);
            story.effects.clear();
            story.key(KeyCode::Enter);
            assert!(matches!(story.effects.as_slice(), [Effect::Generate { head: 0, .. }]), "{:?}", story.effects);
        }
    }

    #[test]
    fn committed_topology_counts_before_the_nodes_report_it() {
        let mut story = Story::ready();
        // Two nodes are prepared: they have seen the epoch, and still serve the previous topology.
        for node in 0..2 {
            reports(&mut story, node, &topology(), 4, NodeState::Ready);
        }
        let next = on(0..NODES, "next.gguf");
        let assigned = AssignEvent::Running { epoch: Epoch(4), topology: Box::new(next.clone()), reused: false };
        story.arrives(ClientEvent::Assign(assigned));
        assert_eq!(story.state.cluster.topology(), Some((&next, Epoch(4))));
        assert!(story.state.cluster.is_ready());
        assert_eq!(epochs(&story), ["epoch 4: tp4 of next.gguf on 4 nodes"]);
        // A later report is not older than the commit.
        story.report(1, NodeReport { epoch: Epoch(4), ..idle(1) });
        assert!(!story.state.cluster.is_ready());
        reports(&mut story, 1, &next, 4, NodeState::Faulted);
        assert!(!story.state.cluster.is_ready());
        reports(&mut story, 1, &next, 4, NodeState::Ready);
        assert!(story.state.cluster.is_ready());
    }

    #[test]
    fn model_that_other_nodes_load_hides_the_serving_one_only_when_it_serves() {
        let (first, second) = (on(0..3, "first.gguf"), on(3..4, "second.gguf"));
        let mut story = Story::ready();
        for node in 0..3 {
            reports(&mut story, node, &first, 4, NodeState::Ready);
        }
        story.report(3, idle(3));
        reports(&mut story, 3, &second, 5, NodeState::Loading);
        assert_eq!(story.state.cluster.topology(), Some((&first, Epoch(4))));
        assert!(story.state.cluster.is_ready());
        assert_eq!(story.state.cluster.groups(), [&first, &second]);
        // It does not disappear when it breaks or is replaced, nor while it recovers: a prompt would go to the other model.
        let broken = [NodeState::Ready, NodeState::Faulted, NodeState::Loading];
        for state in broken.into_iter().chain([NodeState::Ready, NodeState::Connecting]) {
            reports(&mut story, 3, &second, 5, state);
            assert_eq!(story.state.cluster.topology(), Some((&second, Epoch(5))), "{state:?}");
            assert_eq!(story.state.cluster.is_ready(), state == NodeState::Ready);
        }
    }

    #[test]
    fn nodes_that_swapped_their_addresses_are_told_apart_by_name() {
        let mut story = Story::ready();
        story.report(0, running(1, NodeState::Ready, false)).report(1, running(0, NodeState::Ready, false));
        let cluster = &story.state.cluster;
        let members: Vec<Option<usize>> = cluster.nodes.iter().map(|node| cluster.member_of(node)).collect();
        assert_eq!(members, [Some(1), Some(0), Some(2), Some(3)]);
        assert_eq!((cluster.place_of(0), cluster.place_of(1), cluster.ready_head()), (Some(1), Some(0), Some(1)));
        assert_eq!(cluster.member_of(&Node::new(&address(2))), Some(2), "its name is not known yet");
    }
}
