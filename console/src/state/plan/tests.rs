//! Tests of candidates: the planner query, the rows, and the changes that an assignment would make.
use common::{
    fault::{Fault, FaultKind},
    ids::Epoch,
};
use telemetry::{NodeReport, NodeState};

use crate::{
    fixtures::{NODES, Story, running, sizes},
    keymap::{Key, KeyCode},
    operator::planner_query::PlannerAnswer,
    state::{
        AssignmentStatus,
        operation::Question,
        plan::{Planning, division, preview, table},
    },
    update::effect::Effect,
    update::event::{ClientEvent, Event},
};

/// Four nodes serve, and the planner has answered.
pub(crate) fn planned() -> Story {
    let mut story = Story::finished();
    story.key(KeyCode::Esc).key(KeyCode::Char('2'));
    story.effects.clear();
    story.key(KeyCode::Char('p'));
    let [Effect::Plan(ask)] = story.effects.as_slice() else { panic!("{:?}", story.effects) };
    let planned = PlannerAnswer::new((**ask).clone(), sizes());
    story.effects.clear();
    story.arrives(ClientEvent::Planned(Ok(Box::new(planned))));
    story
}

#[test]
fn planner_query_names_running_model_and_connected_nodes() {
    let mut story = Story::lost();
    story.key(KeyCode::Esc).key(KeyCode::Char('2'));
    story.effects.clear();
    story.key(KeyCode::Char('p'));
    let [Effect::Plan(ask)] = story.effects.as_slice() else { panic!("{:?}", story.effects) };
    assert_eq!((ask.model.as_str(), ask.nodes.len(), ask.context), ("bard-q8_0.gguf", NODES - 1, Some(512)));
    assert_eq!(story.state.plan.answer, Planning::Asked);
    story.key(KeyCode::Char('p'));
    assert_eq!(story.effects.len(), 1, "only one query at a time");
    let fault = Fault::new("pi0", FaultKind::Draining);
    story.arrives(ClientEvent::Planned(Err(fault.clone())));
    assert_eq!(story.state.plan.answer, Planning::Failed(fault));
}

#[test]
fn candidates_are_ranked_with_the_running_one_marked() {
    let story = planned();
    let rows = table(&story.state).rows;
    assert!(rows.len() > 3, "{rows:?}");
    let runs: Vec<&str> =
        rows.iter().filter(|row| row.cells[10].text.starts_with("runs at 50.0")).map(|row| row.key.as_str()).collect();
    assert_eq!(runs, ["tp4"]);
    let division = division(&story.state).expect("known sizes");
    assert_eq!(division.len(), NODES);
    // 6 layers, 8 heads on 4 ranks, 64 elements, 512 positions, f16, keys and values.
    assert!(division.iter().all(|one| one.kv.0 == 6 * 2 * 64 * 512 * 2 * 2 && one.weights.0 > 1 << 20), "{division:?}");
    // The head also holds the tokenizer.
    assert!(division[0].working > division[1].working && division[1].working == division[3].working, "{division:?}");
    assert!(division.iter().all(|one| one.total().0 == one.weights.0 + one.kv.0 + one.working.0));
}

#[test]
fn measured_speed_outlives_a_failed_assignment() {
    let mut story = planned();
    story.report(0, NodeReport { epoch: Epoch(4), ..running(0, NodeState::Ready, false) });
    let rows = table(&story.state).rows;
    assert!(rows.iter().any(|row| row.key == "tp4" && row.cells[10].text == "runs at 50.0"), "{rows:?}");
}

#[test]
fn assigning_a_candidate_asks_and_shows_the_changes() {
    let mut story = planned();
    for node in 0..NODES {
        let mut report = running(node, NodeState::Serving, false);
        report.requests = u32::from(node == 0);
        story.report(node, report);
    }
    for letter in "/tp2".chars() {
        story.key(KeyCode::Char(letter));
    }
    story.key(KeyCode::Enter);
    let key = crate::state::tables::selected(&story.state, crate::state::Page::Topology);
    story.key(KeyCode::Enter);
    let Some(Question::Assign { wanted, .. }) =
        story.state.operations.dialog.as_ref().map(|dialog| dialog.question.clone())
    else {
        panic!("{:?}", story.state.operations.dialog)
    };
    let words = preview(&story.state, &wanted).join("\n");
    assert!(words.contains("Predicted: ") && words.contains("measured now: 50.0"), "{words}");
    story.on(Event::Key(Key::plain(KeyCode::Esc)));
    assert_eq!((story.state.operations.dialog.clone(), story.effects.len()), (None, 0));
    story.key(KeyCode::Enter).key(KeyCode::Enter);
    let [Effect::Assign { wanted, members }] = story.effects.as_slice() else { panic!("{:?}", story.effects) };
    assert_eq!((wanted.layout.to_string(), members.len()), (key, wanted.layout.node_count()));
    assert_eq!(wanted.context_length, Some(512));
    assert_eq!(story.state.cluster.assignment, AssignmentStatus::Loading);
}

#[test]
fn layouts_that_do_not_fit_are_listed_but_not_assignable() {
    let mut story = planned();
    let Planning::Done(before) = story.state.plan.answer.clone() else { panic!("planner has answered") };
    let mut ask = before.ask.clone();
    ask.nodes.iter_mut().for_each(|node| node.memory = 1);
    story.arrives(ClientEvent::Planned(Ok(Box::new(PlannerAnswer::new(ask, sizes())))));
    let rows = table(&story.state).rows;
    assert!(!rows.is_empty() && rows.iter().all(|row| row.key.starts_with("no ")), "{rows:?}");
    story.key(KeyCode::Enter);
    assert_eq!(story.state.operations.dialog, None);
    assert!(story.state.screen.notice.is_some());
}
