//! Pictures of questions, and of what is under way.
use shared::{
    protocol::error::{Fault, FaultKind},
    telemetry::{NodeReport, NodeState},
    topology::{Exclusions, Rolling, rolling::Phase},
    units::Bytes,
};

use super::snapshot_tests::check_all;
use crate::{
    event::{AssignEvent, ClientEvent, Event, OperateEvent},
    fixtures::{NODES, Story, address, idle, name, running},
    keymap::KeyCode,
    state::operation::{Dialog, Question},
};

/// Ready, with the keys on the table of nodes.
fn cluster() -> Story {
    let mut story = Story::ready();
    story.key(KeyCode::Esc).key(KeyCode::Char('1'));
    story
}

fn asked(letter: char) -> Story {
    let mut story = cluster();
    story.key(KeyCode::Right).key(KeyCode::Char(letter));
    story
}

fn rolling(done: u16, before: Option<u64>, phase: Phase) -> Rolling {
    let targets = (0..NODES).map(|node| (name(node), address(node))).collect();
    Rolling { targets, done, before, phase, drain_ms: 1000, by: "me@here".into(), revision: 5 }
}

#[test]
fn a_restart_says_what_will_happen_and_an_open_one_what_can_be_done_about_it() {
    check_all("ask-restart", asked('R'));
    let mut story = cluster();
    let rolling = Some(rolling(1, Some(7), Phase::Runs));
    story.report(0, NodeReport { rolling, ..running(0, NodeState::Faulted, false) });
    story.report(1, idle(1)).at(3000).key(KeyCode::Char('R'));
    check_all("ask-rolling", story);
}

#[test]
fn taking_a_node_out_shows_what_would_be_left() {
    let mut story = asked('x');
    story.on(Event::Paste("fan stuck".to_owned()));
    check_all("ask-exclude", story);
    // Others have no room for its share.
    let mut story = cluster();
    for node in 0..NODES {
        let mut report = running(node, NodeState::Ready, false);
        if let Some(memory) = &mut report.health.memory {
            memory.available = Bytes(1 << 20);
        }
        story.report(node, report);
    }
    story.key(KeyCode::Char('x')).on(Event::Paste("fan stuck".to_owned())).key(KeyCode::Enter);
    check_all("ask-exclude-danger", story);
    check_all("ask-cordon", asked('c'));
    check_all("ask-drain", asked('d'));
}

#[test]
fn a_cordoned_member_of_the_only_replica_is_why_nothing_is_taken() {
    let mut story = cluster();
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(1), &address(1), Some("fan"), "me@here");
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) });
    check_all("cordoned", story);
}

#[test]
fn taking_a_node_in_says_why_it_is_out() {
    let mut story = cluster();
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(1), &address(1), Some("fan stuck"), "me@here");
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) }).key(KeyCode::Right);
    story.key(KeyCode::Char('x'));
    check_all("ask-include", story);
}

#[test]
fn an_assignment_shows_what_becomes_of_what_runs() {
    check_all("ask-assign", asked('r'));
    let mut story = Story::begin();
    story.all_connected().all_loading().key(KeyCode::Esc).key(KeyCode::Char('A'));
    check_all("ask-abort", story);
}

#[test]
fn somebody_elses_request_is_named_before_it_is_ended() {
    let mut story = cluster();
    let who = "request 7 of gateway pi3, 120 tokens so far".to_owned();
    story.state.dialog = Some(Dialog::plain(Question::CancelRequest { node: 0, number: 7, who }));
    check_all("ask-cancel", story);
}

#[test]
fn a_restart_under_way_is_in_the_last_line_and_so_is_one_that_paused() {
    let mut story = cluster();
    let runs = Some(rolling(1, Some(7), Phase::Runs));
    story.report(0, NodeReport { rolling: runs, ..running(0, NodeState::Faulted, false) }).report(1, idle(1)).at(3000);
    check_all("restarting", story);
    let mut story = cluster();
    let paused = Some(rolling(1, None, Phase::Paused("pi1 does not answer, for 91 s".into())));
    story.report(0, NodeReport { rolling: paused, ..running(0, NodeState::Ready, false) });
    check_all("paused", story);
}

#[test]
fn a_change_that_waits_and_one_that_failed_say_so() {
    let mut story = asked('x');
    story.on(Event::Paste("fan stuck".to_owned())).key(KeyCode::Enter);
    story.arrives(ClientEvent::Operate(OperateEvent::WaitsForRequests { count: 2 })).at(4000);
    check_all("changing", story);
    let mut story = asked('x');
    story.on(Event::Paste("fan stuck".to_owned())).key(KeyCode::Enter);
    let fault = Fault::new("pi3", FaultKind::Draining);
    story.arrives(ClientEvent::Operate(OperateEvent::ExcludeFailed(fault)));
    check_all("change-failed", story);
}

#[test]
fn a_dashboard_that_only_looks_says_so() {
    let mut story = cluster();
    story.state.readonly = true;
    story.key(KeyCode::Char('x'));
    check_all("readonly", story);
    let mut story = Story::begin();
    story.all_connected().arrives(ClientEvent::Assign(AssignEvent::Committing));
    check_all("committing", story);
}
