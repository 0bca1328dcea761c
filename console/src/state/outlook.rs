//! What would be left without a node, from what the nodes report: the preview before one is taken out. Pure.
use shared::{
    ids::MemberIndex,
    telemetry::{NodeReport, NodeState},
    topology::{
        Topology,
        replan::{Now, Outlook, ok_to_stop},
    },
    units::Bytes,
};

use crate::state::{State, node::Standing, plan::Planning};

/// What is left of the topology that runs without the node at this place of the list; `None`: it holds no shard of it.
pub fn outlook(state: &State, place: usize) -> Option<Outlook> {
    let (topology, _) = state.topology()?;
    let leaving = state.member_of(state.nodes.get(place)?)?;
    let now = |member: usize| {
        let node = state.node_of(member);
        let standing = node.map(|node| node.standing(state.now));
        let report = node.and_then(|node| node.report.as_ref());
        let shard = report.map_or(Bytes(0), |report| report.shard);
        Now {
            answers: matches!(standing, Some(Standing::Reports(_))),
            serves: matches!(standing, Some(Standing::Reports(NodeState::Ready | NodeState::Serving))),
            free: report.and_then(NodeReport::free_for_next_shard).unwrap_or_default(),
            shard,
        }
    };
    let now: Vec<Now> = (0..topology.members.len()).map(now).collect();
    let desired = self::desired(state).unwrap_or(topology);
    let sizes = match &state.planning {
        Planning::Done(planned) if planned.ask.model == topology.model => Some(&planned.sizes),
        _ => None,
    };
    Some(ok_to_stop(topology, desired, MemberIndex(leaving as u16), &now, sizes))
}

/// The desired topology, if the running one only approximates it.
pub fn desired(state: &State) -> Option<&Topology> {
    let (running, _) = state.topology()?;
    let holds = |report: &&NodeReport| report.topology.as_ref().is_some_and(|(held, ..)| held == running);
    state
        .nodes
        .iter()
        .filter_map(|node| node.report.as_ref())
        .filter(holds)
        .find_map(|report| report.desired.as_deref())
}

/// Whether other replicas serve on without a pause.
pub fn serves_without(outlook: &Outlook) -> bool {
    outlook.replicas > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NODES, Story, running};

    #[test]
    fn without_one_of_four_ranks_three_are_left_and_without_a_topology_there_is_nothing_to_say() {
        let story = Story::ready();
        let outlook = outlook(&story.state, 2).expect("it is a member");
        assert_eq!((outlook.replicas, outlook.has_majority), (0, true));
        assert_eq!(outlook.layout().map(|layout| layout.node_count()), Some(NODES - 1));
        assert!(!serves_without(&outlook) && outlook.is_ok());
        assert_eq!(super::outlook(&Story::begin().state, 2), None);
    }

    #[test]
    fn a_rest_without_room_or_without_an_answer_is_not_counted_on() {
        let mut story = Story::ready();
        for node in 0..NODES {
            let mut report = running(node, NodeState::Ready, false);
            if let Some(memory) = &mut report.health.memory {
                memory.available = Bytes(0);
            }
            story.report(node, report);
        }
        let found = outlook(&story.state, 0).expect("it is a member");
        assert!(found.topology.is_err(), "no room: {found:?}");
        // Nobody has said anything for a minute: whether they serve is unknown.
        let mut silent = Story::ready();
        silent.at(60_000);
        let outlook = outlook(&silent.state, 0).expect("it is a member");
        assert!(!outlook.has_majority && outlook.topology.is_err());
    }
}
