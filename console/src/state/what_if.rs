//! What the cluster could still serve without a node, computed from the nodes' reports: the preview before a node is
//! excluded. Pure.
use common::{ids::MemberIndex, units::Bytes};
use planner::replan::{Now, Outlook, ok_to_stop};
use telemetry::NodeReport;
use topology::Topology;

use crate::state::{State, node::NodeStatus, plan::Planning};

/// The outlook of a running topology without its member at this list index; `None` if the node holds no shard.
pub fn outlook(state: &State, place: usize) -> Option<Outlook> {
    let nodes = &state.cluster.nodes;
    let topology = state.cluster.topology_of(nodes.get(place)?)?;
    let leaving = topology.members.iter().position(|member| nodes[place].is(member))?;
    let now = topology.members.iter().map(|member| {
        let node = nodes.iter().find(|node| node.is(member));
        let standing = node.map(|node| node.status(state.now));
        let report = node.and_then(|node| node.report.as_ref());
        let shard = report.map_or(Bytes(0), |report| report.shard);
        Now {
            answers: matches!(standing, Some(NodeStatus::Reports(_))),
            serves: matches!(standing, Some(NodeStatus::Reports(state)) if state.serves()),
            free: report.and_then(NodeReport::free_for_next_shard).unwrap_or_default(),
            shard,
        }
    });
    let now: Vec<Now> = now.collect();
    let desired = self::desired(state, topology).unwrap_or(topology);
    let sizes = match &state.plan.answer {
        Planning::Done(planned) if planned.ask.model == topology.model => Some(&planned.sizes),
        _ => None,
    };
    Some(ok_to_stop(topology, desired, MemberIndex(leaving as u16), &now, sizes))
}

/// The desired topology, if the running one only approximates it.
fn desired<'s>(state: &'s State, running: &Topology) -> Option<&'s Topology> {
    state
        .cluster
        .nodes
        .iter()
        .filter_map(|node| node.report.as_ref())
        .filter(|report| report.topology.as_ref().is_some_and(|(held, ..)| held == running))
        .find_map(|report| report.desired.as_deref())
}

/// Whether other replicas keep serving without interruption.
pub fn serves_without(outlook: &Outlook) -> bool {
    outlook.replicas > 0
}

#[cfg(test)]
mod tests {
    use telemetry::NodeState;

    use super::*;
    use crate::fixtures::{NODES, Story, running};

    #[test]
    fn outlook_needs_a_topology_and_counts_the_remaining_ranks() {
        let story = Story::ready();
        let outlook = outlook(&story.state, 2).expect("node is a member");
        assert_eq!((outlook.replicas, outlook.has_majority), (0, true));
        assert_eq!(outlook.layout().map(|layout| layout.node_count()), Some(NODES - 1));
        assert!(!serves_without(&outlook) && outlook.is_ok());
        assert_eq!(super::outlook(&Story::begin().state, 2), None);
    }

    #[test]
    fn nodes_without_memory_or_reports_are_not_counted_on() {
        let mut story = Story::ready();
        for node in 0..NODES {
            let mut report = running(node, NodeState::Ready, false);
            if let Some(memory) = &mut report.health.memory {
                memory.available = Bytes(0);
            }
            story.report(node, report);
        }
        let found = outlook(&story.state, 0).expect("node is a member");
        assert!(found.topology.is_err(), "no room: {found:?}");
        // No node has reported for a minute, so it is unknown whether they serve.
        let mut silent = Story::ready();
        silent.at(60_000);
        let outlook = outlook(&silent.state, 0).expect("node is a member");
        assert!(!outlook.has_majority && outlook.topology.is_err());
    }
}
