//! Tests of events and their effects. A `Story` sends events to the state and collects the effects that it requests.
mod keys;
mod models;
mod preferences;

use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    ids::Epoch,
};
use telemetry::NodeState;

use super::{
    effect::Effect,
    event::{AssignEvent, ClientEvent, Event, GenerateEvent, Signal},
    *,
};
use crate::{
    fixtures::{NODES, Story, address, assign_all, defaults, finished, idle, lost_fault, running, topology},
    keymap::Panel,
    state::{AssignmentStatus, node::NodeStatus, request::Phase},
};

fn prompt_of(effect: &Effect) -> Option<&str> {
    match effect {
        Effect::Generate { generate, .. } => generate.prompt.text(),
        _ => None,
    }
}

#[test]
fn assignment_starts_when_the_last_node_answers() {
    let mut story = Story::begin();
    for node in 0..NODES {
        assert_eq!(story.effects, []);
        story.connected(node);
        assert_eq!(story.effects, [], "its report carries the exclusions");
        story.report(node, idle(node));
    }
    assert_eq!(story.effects, [assign_all()]);
    story.connected(0).report(0, idle(0));
    assert_eq!(story.effects.len(), 1, "a reconnecting node does not start another assignment");
}

#[test]
fn nothing_is_assigned_without_a_requested_topology() {
    let addresses: Vec<String> = (0..NODES).map(address).collect();
    let mut story = Story::with(State::new(&addresses, None, "x", defaults()));
    story.all_connected().key(KeyCode::Enter);
    assert!(story.effects.iter().all(|effect| !effect.acts()) && story.state.screen.focus.page == Page::Models);
    assert_eq!(story.state.screen.editor.text(), "x", "the prompt is kept");
}

#[test]
fn console_without_a_request_uses_the_running_topology() {
    let addresses: Vec<String> = (0..NODES).map(address).collect();
    let mut story = Story::with(State::new(&addresses, None, "x", defaults()));
    story.all_connected().all_report(NodeState::Ready, false).key(KeyCode::Enter);
    assert_eq!(story.effects.iter().filter_map(prompt_of).collect::<Vec<_>>(), ["x"]);
}

#[test]
fn prompt_goes_to_the_head_with_its_own_seed() {
    let mut story = Story::finished();
    story.on(Event::Paste("again".to_owned())).key(KeyCode::Enter);
    let sent: Vec<(&str, u64)> = (story.effects.iter())
        .filter_map(|effect| match effect {
            Effect::Generate { generate, .. } => Some((generate.prompt.text()?, generate.sampling.seed)),
            _ => None,
        })
        .collect();
    assert_eq!(sent, [("ROMEO:", 42), ("again", 43)]);
    assert_eq!(story.state.generation.request.text, "");
}

#[test]
fn prompt_sent_while_nodes_load_is_held_until_they_run() {
    let mut story = Story::begin();
    story.all_connected().all_loading().key(KeyCode::Enter);
    assert_eq!(story.state.generation.request.phase, Phase::Held);
    assert_eq!(story.effects.iter().filter_map(prompt_of).count(), 0);
    story.running();
    assert_eq!(story.effects.iter().filter_map(prompt_of).collect::<Vec<_>>(), ["ROMEO:"]);
    assert_eq!(story.state.generation.request.phase, Phase::Queued);
}

#[test]
fn held_prompt_fails_with_the_assignment_or_is_withdrawn() {
    let mut story = Story::begin();
    story.all_connected().key(KeyCode::Enter).arrives(ClientEvent::Assign(AssignEvent::Failed(lost_fault())));
    assert_eq!(story.state.generation.request.phase, Phase::Failed(lost_fault()));
    let mut story = Story::begin();
    story.key(KeyCode::Enter).key(KeyCode::Esc).all_connected().running();
    assert_eq!(story.state.generation.request.phase, Phase::Withdrawn);
    assert_eq!(story.effects, [assign_all()]);
}

#[test]
fn escape_cancels_until_the_answer_ends() {
    let mut story = Story::generating();
    story.effects.clear();
    story.key(KeyCode::Esc);
    assert_eq!(story.effects, [Effect::Cancel]);
    assert_eq!(story.state.screen.focus.panel, Panel::Prompt, "the first Esc only cancels");
    story.token("late").key(KeyCode::Esc);
    assert_eq!(story.state.generation.request.phase, Phase::Cancelling);
    assert_eq!((story.effects.len(), story.state.screen.focus.panel), (1, Panel::Text));
    story.generate(GenerateEvent::Finished(Box::new(finished())));
    let before = story.state.generation.request.clone();
    story.token("after the end").generate(GenerateEvent::Failed(lost_fault()));
    assert_eq!(story.state.generation.request, before);
}

#[test]
fn only_one_generation_runs_at_a_time() {
    let mut story = Story::generating();
    story.effects.clear();
    story.on(Event::Paste("next".to_owned())).key(KeyCode::Enter);
    assert_eq!(story.effects, []);
    assert!(story.state.screen.notice.is_some());
    assert_eq!(story.state.screen.editor.text(), "next");
}

#[test]
fn control_c_cancels_first_and_then_quits() {
    let mut story = Story::generating();
    story.effects.clear();
    let interrupt = Event::Key(Key::control('c'));
    story.on(interrupt.clone());
    assert_eq!(story.effects, [Effect::Cancel]);
    story.on(interrupt.clone());
    assert_eq!(story.effects[1..], [Effect::Cancel, Effect::Quit(130)]);
    let mut story = Story::ready();
    story.effects.clear();
    story.on(interrupt);
    assert_eq!(story.effects, [Effect::Quit(130)]);
}

#[test]
fn q_is_a_letter_in_the_prompt_box_and_quits_elsewhere() {
    let mut story = Story::ready();
    story.effects.clear();
    story.key(KeyCode::Char('q'));
    assert_eq!((story.effects.len(), story.state.screen.editor.text()), (0, "ROMEO:q"));
    story.key(KeyCode::Tab).key(KeyCode::Char('q'));
    assert_eq!(story.effects, [Effect::Quit(0)]);
}

#[test]
fn quitting_the_console_cancels_its_generation() {
    for (event, code) in [
        (Event::Signal(Signal::Terminate), 143),
        (Event::Signal(Signal::Interrupt), 130),
        (Event::Signal(Signal::HangUp), 129),
    ] {
        let mut story = Story::generating();
        story.effects.clear();
        story.on(event);
        assert_eq!(story.effects, [Effect::Cancel, Effect::Quit(code)]);
        assert!(story.state.is_ending);
    }
}

#[test]
fn tick_marks_a_silent_node_stale_after_two_seconds() {
    let mut story = Story::ready();
    let standing = |story: &Story| story.state.cluster.nodes[1].status(story.state.now);
    assert_eq!(standing(story.at(2010)), NodeStatus::Reports(NodeState::Ready));
    for node in [0, 2, 3] {
        story.report(node, running(node, NodeState::Ready, false));
    }
    let effects = update(&mut story.state, Event::Tick { now: Duration::from_millis(2250) });
    assert_eq!(standing(&story), NodeStatus::Stale(2));
    assert_eq!(effects, [Effect::Draw]);
    assert_eq!(update(&mut story.state, Event::Tick { now: Duration::from_millis(2500) }), [], "nothing changed");
    assert_eq!(update(&mut story.state, Event::Tick { now: Duration::from_millis(3010) }), [Effect::Draw]);
    assert_eq!(story.state.cluster.nodes[0].status(story.state.now), NodeStatus::Reports(NodeState::Ready));
    story.report(1, running(1, NodeState::Ready, false));
    assert_eq!(standing(&story), NodeStatus::Reports(NodeState::Ready));
}

#[test]
fn tick_renders_nothing_while_nothing_changes() {
    let mut story = Story::ready();
    for now in (20..2000).step_by(10) {
        assert_eq!(update(&mut story.state, Event::Tick { now: Duration::from_millis(now) }), []);
    }
}

#[test]
fn next_prompt_assigns_after_a_lost_node_is_back() {
    let mut story = Story::lost();
    assert_eq!(story.state.generation.request.phase, Phase::Failed(lost_fault()));
    assert!(!story.state.cluster.is_ready());
    // Without a state folder, the nodes do not restore the topology.
    for node in [0, 1, 3] {
        story.report(node, telemetry::NodeReport { recovers: false, ..running(node, NodeState::Faulted, false) });
    }
    story.effects.clear();
    story.on(Event::Paste("once more".to_owned())).key(KeyCode::Enter);
    assert_eq!((story.effects.len(), &story.state.cluster.assignment), (0, &AssignmentStatus::WaitsForNodes));
    // A restarted node keeps its epoch and holds no shard.
    let back = crate::fixtures::idle(2);
    story.connected(2).report(2, telemetry::NodeReport { epoch: Epoch(3), ..back });
    assert_eq!(story.effects, [assign_all()]);
    let assigned = AssignEvent::Running { epoch: Epoch(4), topology: Box::new(topology()), reused: false };
    story.arrives(ClientEvent::Assign(assigned));
    assert_eq!(story.effects.iter().filter_map(prompt_of).collect::<Vec<_>>(), ["once more"]);
}

#[test]
fn r_assigns_again_but_only_once_at_a_time() {
    let mut story = Story::lost();
    story.connected(2).report(2, idle(2)).key(KeyCode::Esc);
    story.effects.clear();
    story.key(KeyCode::Char('r')).key(KeyCode::Enter).key(KeyCode::Char('r'));
    assert_eq!(story.effects, [assign_all()]);
    assert!(story.state.screen.notice.is_some());
}

#[test]
fn layers_of_an_older_epoch_are_dropped() {
    let mut story = Story::generating();
    assert_eq!(story.state.cluster.nodes[0].layers.len(), 6);
    story.report(0, running(0, NodeState::Serving, false));
    assert_eq!(story.state.cluster.nodes[0].layers.len(), 6, "a report without layers keeps the previous ones");
    let mut next = running(0, NodeState::Ready, false);
    next.epoch = Epoch(4);
    story.report(0, next);
    assert_eq!(story.state.cluster.nodes[0].layers.len(), 0);
}

#[test]
fn hostile_report_changes_only_its_own_row() {
    let mut story = Story::ready();
    let mut report = running(1, NodeState::Serving, true);
    report.layers[0].layer = common::ids::LayerIndex(u32::MAX);
    report.name = "\u{1b}[2Jevil\nname".to_owned();
    story.report(1, report).connected(99).report(99, idle(0));
    story.arrives(ClientEvent::Disconnected { node: 99, fault: Fault::new("x", FaultKind::NotHead) });
    assert_eq!(story.state.cluster.nodes[1].name(), "[2Jevil name");
    assert_eq!(story.state.cluster.nodes[1].layers.len(), 6);
    assert_eq!(story.state.cluster.nodes.len(), NODES);
}

#[test]
fn text_is_bounded_and_keeps_its_end() {
    let mut story = Story::generating();
    for _ in 0..70 {
        story.token(&"é\u{7}".repeat(4000));
    }
    let text = &story.state.generation.request.text;
    assert!(text.len() <= crate::state::request::TEXT_BYTES_MAX && text.len() > 60_000);
    assert!(story.state.generation.request.is_cut && text.ends_with('é') && !text.contains('\u{7}'));
}

#[test]
fn times_on_the_console_clock_follow_their_definitions() {
    let story = Story::generating();
    assert_eq!(story.state.generation.request.ttft_ms(), Some(100.0));
    let tpot = story.state.generation.request.tpot_ms().expect("several tokens arrived");
    assert!((tpot - 20.0).abs() < 1e-9, "{tpot}");
    let story = Story::finished();
    assert_eq!(story.state.generation.request.ttft_ms(), Some(98.0));
    assert_eq!(story.state.generation.request.network_fraction(), Some(0.4));
}

#[test]
fn paste_arrives_as_text_with_returns_as_new_lines() {
    let mut story = Story::ready();
    story.key(KeyCode::Esc).on(Event::Paste("q\rr\r\n?\u{3}".to_owned()));
    assert_eq!(story.state.screen.editor.text(), "ROMEO:q\nr\n?");
    assert_eq!((story.state.screen.focus.panel, story.state.is_ending), (Panel::Prompt, false));
}

#[test]
fn help_page_scrolls_and_other_keys_close_it() {
    let mut story = Story::ready();
    story.key(KeyCode::Function(1)).key(KeyCode::Down);
    assert_eq!(story.state.screen.help, Some(1));
    story.key(KeyCode::End).key(KeyCode::Down);
    assert_eq!(story.state.screen.help, Some(6));
    story.key(KeyCode::Char('x'));
    assert_eq!((story.state.screen.help, story.state.screen.editor.text()), (None, "ROMEO:"));
}
