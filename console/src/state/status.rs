//! The status of the cluster in one word, and the operator's next step, shown on an empty or broken screen.
use common::{fault::Fault, units::Bytes};
use telemetry::NodeState;
use topology::{Member, Topology};

use crate::state::{
    AssignmentStatus, Page, State,
    node::{Link, Node, NodeStatus},
    nodes::requests,
    operation::Operation,
};

/// The status of the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClusterStatus<'a> {
    /// No node was named.
    Empty,
    /// Some nodes have not answered yet.
    Connecting,
    /// The assignment starts once this node is connected.
    WaitsFor(&'a Node),
    /// Nodes load; the share of all shards that is loaded.
    Loading(f64),
    /// Nodes switch to the new topology.
    Committing,
    /// The assignment failed.
    Refused(&'a Fault),
    /// Nodes restart one by one.
    Restarting,
    /// A node is being excluded or included.
    Changing,
    /// A member is disconnected or faulted.
    Broken(&'a str),
    /// A topology could serve, but this member is cordoned.
    Cordoned(&'a str),
    /// A member has stopped reporting: its state is unknown.
    Silent(&'a Node),
    /// No topology runs.
    Idle,
    /// A topology runs.
    Ready,
    /// The topology is working on requests.
    Serving,
}

/// The status of the cluster.
pub fn status(state: &State) -> ClusterStatus<'_> {
    if state.cluster.nodes.is_empty() {
        return ClusterStatus::Empty;
    }
    let absent =
        state.cluster.usable().into_iter().map(|place| &state.cluster.nodes[place]).find(|node| !node.is_open());
    match (&state.cluster.assignment, absent) {
        (AssignmentStatus::Loading, _) => return ClusterStatus::Loading(loaded(state)),
        (AssignmentStatus::Committing, _) => return ClusterStatus::Committing,
        (AssignmentStatus::Failed(fault), _) if !state.cluster.is_ready() => return ClusterStatus::Refused(fault),
        (AssignmentStatus::WaitsForNodes, Some(node)) => return ClusterStatus::WaitsFor(node),
        (AssignmentStatus::Nothing | AssignmentStatus::Running { .. }, _)
        | (AssignmentStatus::WaitsForNodes, None)
        | (AssignmentStatus::Failed(_), _) => {}
    }
    if state.cluster.is_ready() {
        if let Some(node) = silent(state) {
            return ClusterStatus::Silent(node);
        }
        // Requests of this console, other consoles, or clients of the HTTP API.
        let works = state.generation.request.is_sent() || requests(state) > 0;
        return if works { ClusterStatus::Serving } else { ClusterStatus::Ready };
    }
    if state.cluster.rolling_runs() {
        return ClusterStatus::Restarting;
    }
    if let Some(Operation::Change { .. }) = state.operations.running {
        return ClusterStatus::Changing;
    }
    if let Some((topology, _)) = state.cluster.topology() {
        return match culprit(state, topology) {
            Some(name) => ClusterStatus::Broken(name),
            None => match (cordoned(state), silent(state)) {
                (Some(name), _) => ClusterStatus::Cordoned(name),
                (None, Some(node)) => ClusterStatus::Silent(node),
                (None, None) => ClusterStatus::Committing,
            },
        };
    }
    if state.cluster.nodes.iter().any(|node| node.link == Link::Connecting) {
        ClusterStatus::Connecting
    } else {
        ClusterStatus::Idle
    }
}

/// The member that keeps a topology from running: a disconnected one, otherwise the one that most peers' faults name,
/// otherwise one that holds no shard, drains or is faulted itself.
fn culprit<'a>(state: &'a State, topology: &'a Topology) -> Option<&'a str> {
    let members = || (0..topology.members.len()).map(|member| (member, state.cluster.node_of(member)));
    let first =
        |test: &dyn Fn(&Node) -> bool| members().find(|(_, node)| node.is_some_and(test)).map(|(member, _)| member);
    let first_in = |wanted: NodeState| first(&|node| node.report.as_ref().is_some_and(|report| report.state == wanted));
    let holds_no_shard = [NodeState::Idle, NodeState::Benching].map(NodeStatus::Reports);
    let gone = members().find(|(_, node)| !node.is_some_and(Node::is_open)).map(|(member, _)| member);
    let member = gone
        .or_else(|| blamed(state, topology))
        .or_else(|| first(&|node| holds_no_shard.contains(&node.status(state.now))))
        .or_else(|| first_in(NodeState::Draining))
        .or_else(|| first_in(NodeState::Faulted))?;
    Some(&topology.members[member].name)
}

/// The member that most of its peers' faults name.
fn blamed(state: &State, topology: &Topology) -> Option<usize> {
    let open = state.cluster.nodes.iter().filter(|node| node.is_open());
    let faults: Vec<(&Node, &Fault)> = open.filter_map(|node| Some((node, node.fault()?))).collect();
    let blames = topology.members.iter().enumerate().map(|(member, Member { name, .. })| {
        let count = faults.iter().filter(|(node, fault)| fault.node == *name && node.name() != name).count();
        (count, member)
    });
    let most = blames.max_by_key(|(count, _)| *count);
    most.filter(|(count, _)| *count > 0).map(|(_, member)| member)
}

/// A connected member that is cordoned.
pub fn cordoned(state: &State) -> Option<&str> {
    state.cluster.nodes.iter().find(|node| node.is_open() && state.cluster.is_cordoned(node)).map(Node::name)
}

/// A member that has sent nothing for a while.
fn silent(state: &State) -> Option<&Node> {
    members(state).find(|node| matches!(node.status(state.now), NodeStatus::Stale(_)))
}

/// The members of the topology that were named to this console.
fn members(state: &State) -> impl Iterator<Item = &Node> {
    let count = state.cluster.topology().map_or(0, |(topology, _)| topology.members.len());
    (0..count).filter_map(|member| state.cluster.node_of(member))
}

/// The share of all shards that is loaded.
fn loaded(state: &State) -> f64 {
    let loads = state.cluster.nodes.iter().filter_map(|node| node.load);
    let (done, total) = loads.fold((0, 0), |sum, load| (sum.0 + load.done.0, sum.1 + load.total.0));
    common::latency::ratio(Bytes(done).0 as f64, Bytes(total).0 as f64)
}

/// The operator's next step, in one sentence; without keys that a read-only dashboard refuses.
pub fn hint(state: &State) -> String {
    if state.readonly {
        return situation(state);
    }
    match status(state) {
        ClusterStatus::Empty => "No nodes. Start again with --nodes ADDRESS,ADDRESS,..".to_owned(),
        ClusterStatus::Connecting => "Waiting for the nodes to answer.".to_owned(),
        ClusterStatus::WaitsFor(node) => match node.fault() {
            Some(fault) => format!("The assignment waits for {}: {}.", node.name(), fault.next()),
            None => format!("The assignment starts when {} answers.", node.name()),
        },
        ClusterStatus::Loading(_) => {
            "The nodes load their shards. A prompt sent now is kept until they are ready.".to_owned()
        }
        ClusterStatus::Committing => "The nodes open their links to each other.".to_owned(),
        ClusterStatus::Refused(fault) => format!("Next: {}. Then r assigns again.", fault.next()),
        ClusterStatus::Restarting => {
            "The nodes restart one by one. A prompt sent now is kept until a topology runs.".to_owned()
        }
        ClusterStatus::Changing => {
            "The topology is being assigned. A prompt sent now starts when it serves.".to_owned()
        }
        ClusterStatus::Cordoned(name) => {
            format!("{name} is cordoned. c uncordons it, r assigns the topology without it.")
        }
        ClusterStatus::Broken(name) if silent(state).is_some_and(|node| node.name() == name) => {
            format!("{name} sends nothing: its process is stopped, or it is cut off. r assigns again once it answers.")
        }
        ClusterStatus::Broken(name) if state.cluster.recovers() && state.cluster.all_open() => {
            format!("{name} left the topology. The nodes recover by themselves; r assigns it at once.")
        }
        ClusterStatus::Broken(name) if state.cluster.recovers() => {
            format!("{name} is missing: start brambled there. A prompt sent now waits until the nodes serve.")
        }
        ClusterStatus::Broken(name) if state.cluster.all_open() => {
            format!("{name} left the topology. r, or the next prompt, assigns it again.")
        }
        ClusterStatus::Broken(name) => {
            format!("{name} is missing. Start brambled there; r, or the next prompt, assigns again.")
        }
        ClusterStatus::Silent(node) => {
            format!("{} sends nothing: what is shown of it is old. A prompt may have to wait for it.", node.name())
        }
        ClusterStatus::Idle => match state.assignable() {
            Some(_) => "No topology runs. r, or the next prompt, assigns it.".to_owned(),
            None => "No model is loaded. Press M to choose one.".to_owned(),
        },
        ClusterStatus::Ready if state.screen.focus.page == Page::Generate => {
            "Ready. Type a prompt below; Enter generates.".to_owned()
        }
        ClusterStatus::Ready => "Ready. i to type a prompt.".to_owned(),
        ClusterStatus::Serving if state.generation.request.is_sent() => "Generating. Esc cancels.".to_owned(),
        ClusterStatus::Serving => "Serving requests of other clients. i to type a prompt, 5 shows them.".to_owned(),
    }
}

/// What the cluster does, in one sentence, for a read-only dashboard.
fn situation(state: &State) -> String {
    match status(state) {
        ClusterStatus::Empty => "No nodes.".to_owned(),
        ClusterStatus::Connecting => "Waiting for the nodes to answer.".to_owned(),
        ClusterStatus::WaitsFor(node) => format!("The assignment waits for {}.", node.name()),
        ClusterStatus::Loading(_) => "The nodes load their shards.".to_owned(),
        ClusterStatus::Committing => "The nodes open their links to each other.".to_owned(),
        ClusterStatus::Refused(fault) => format!("Next: {}.", fault.next()),
        ClusterStatus::Restarting => "The nodes restart one by one.".to_owned(),
        ClusterStatus::Changing => "The topology is being assigned.".to_owned(),
        ClusterStatus::Cordoned(name) => format!("{name} is cordoned: it takes no new requests."),
        ClusterStatus::Broken(name) => format!("{name} is missing; without it the topology does not serve."),
        ClusterStatus::Silent(node) => format!("{} sends nothing: what is shown of it is old.", node.name()),
        ClusterStatus::Idle => "No topology runs.".to_owned(),
        ClusterStatus::Ready => "Ready.".to_owned(),
        ClusterStatus::Serving => "Serving requests; 5 shows them.".to_owned(),
    }
}
