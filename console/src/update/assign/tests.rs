//! Tests of a start: when it asks, and how it leaves the layout to the planner.
use common::precision::KvFormat;
use telemetry::NodeState;

use super::*;
use crate::{
    fixtures::{NODES, Story, idle, running, sizes, wanted},
    keymap::KeyCode,
    operator::desired::TopologyRequest,
    operator::planner_query::{PlannerAnswer, PlannerQuery},
    state::operation::Question,
    update::event::ClientEvent,
};

/// No node is connected, and no layout was requested.
fn begin() -> Story {
    let mut story = Story::begin();
    story.state.plan.requested =
        Some(TopologyRequest { layout: None, context_length: None, ..TopologyRequest::from(&wanted()) });
    story.key(KeyCode::Esc);
    story
}

/// These nodes connect, each on its own machine.
fn connect(story: &mut Story, nodes: std::ops::Range<usize>) {
    for node in nodes {
        story.connected(node);
        story.state.cluster.nodes[node].machine.0 = format!("machine {node}");
        story.report(node, idle(node));
    }
}

/// The only effect so far, which must be a planner query.
fn asked(story: &mut Story) -> PlannerQuery {
    let effects = std::mem::take(&mut story.effects);
    let [Effect::Plan(ask)] = effects.as_slice() else { panic!("{effects:?}") };
    (**ask).clone()
}

/// The planner's answer, limited to candidates of `count` nodes.
fn answer(story: &mut Story, ask: PlannerQuery, count: usize) {
    let mut planned = PlannerAnswer::new(ask, sizes());
    planned.plan.ranked.retain(|candidate| candidate.layout.node_count() == count);
    assert!(!planned.plan.ranked.is_empty(), "{count} nodes fit");
    story.arrives(ClientEvent::Planned(Ok(Box::new(planned))));
}

/// Number of members assigned by the only effect so far.
fn assigned(story: &Story) -> usize {
    let [Effect::Assign { wanted, members }] = story.effects.as_slice() else { panic!("{:?}", story.effects) };
    assert_eq!(wanted.layout.node_count(), members.len());
    members.len()
}

#[test]
fn abort_while_planning_assigns_nothing() {
    let mut story = begin();
    connect(&mut story, 0..NODES);
    let ask = asked(&mut story);
    story.key(KeyCode::Char('A'));
    assert_eq!((story.state.plan.assigns_best, &story.state.cluster.assignment), (false, &AssignmentStatus::Nothing));
    answer(&mut story, ask, NODES);
    story.report(0, idle(0));
    assert_eq!(story.effects, []);
}

#[test]
fn layout_of_a_subset_is_not_kept_for_all_nodes() {
    for count in [2, NODES] {
        let mut story = begin();
        connect(&mut story, 0..NODES);
        let ask = asked(&mut story);
        answer(&mut story, ask, count);
        assert_eq!(assigned(&story), count);
        assert_eq!(story.state.plan.desired.is_some(), count == NODES);
    }
}

#[test]
fn plan_of_some_nodes_is_not_the_answer_for_all() {
    for answers_early in [true, false] {
        let mut story = begin();
        connect(&mut story, 0..2);
        story.key(KeyCode::Char('2')).key(KeyCode::Char('p'));
        let early = asked(&mut story);
        assert_eq!(early.nodes.len(), 2);
        if answers_early {
            answer(&mut story, early, 2);
            connect(&mut story, 2..NODES);
        } else {
            connect(&mut story, 2..NODES);
            assert_eq!(story.effects, [], "only one query at a time");
            answer(&mut story, early, 2);
        }
        let ask = asked(&mut story);
        assert_eq!(ask.nodes.len(), NODES);
        answer(&mut story, ask, NODES);
        assert_eq!(assigned(&story), NODES);
    }
}

#[test]
fn known_answer_to_the_same_question_is_assigned() {
    let mut other = begin();
    connect(&mut other, 0..NODES);
    let mut ask = asked(&mut other);
    ask.now_unix_ms += 1;
    let mut story = begin();
    connect(&mut story, 0..NODES - 1);
    answer(&mut story, ask, 2);
    connect(&mut story, NODES - 1..NODES);
    assert_eq!(assigned(&story), 2);
}

#[test]
fn lost_node_delays_the_assignment_until_it_is_back() {
    use common::fault::{Fault, FaultKind};
    let mut story = begin();
    connect(&mut story, 0..NODES);
    let ask = asked(&mut story);
    story.arrives(ClientEvent::Disconnected { node: 1, fault: Fault::new("pi1", FaultKind::Draining) });
    answer(&mut story, ask, 2);
    assert_eq!(story.effects, []);
    connect(&mut story, 1..2);
    assert_eq!(assigned(&story), 2);
}

#[test]
fn other_settings_replace_a_serving_topology_only_after_a_question() {
    for (state, is_asked) in [(NodeState::Ready, true), (NodeState::Faulted, false)] {
        let other = DesiredTopology { kv: KvFormat::Q8, ..wanted() };
        let mut story = Story::begin();
        story.state.plan.requested = Some(TopologyRequest::from(&other));
        story.state.plan.desired = Some(other.clone());
        for node in 0..NODES {
            story.connected(node).report(node, running(node, state, false));
        }
        let members: Vec<usize> = (0..NODES).collect();
        let question = story.state.operations.dialog.take().map(|dialog| dialog.question);
        if is_asked {
            assert_eq!((question, story.effects.len()), (Some(Question::Assign { wanted: other, members }), 0));
        } else {
            // It is restored.
            assert_eq!((question, story.effects), (None, vec![Effect::Assign { wanted: other, members }]));
        }
    }
}
