//! Snapshot tests of dialogs and of operations in progress.
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex},
    units::Bytes,
};
use telemetry::{NodeReport, NodeState};
use topology::{Exclusions, Layout, Rolling, rolling::Phase};

use super::snapshot::check_all;
use crate::{
    fixtures::{NODES, Story, address, idle, name, running},
    keymap::KeyCode,
    operator::command::Removal,
    state::operation::{Dialog, Question},
    update::event::{AssignEvent, ClientEvent, Event, OperateEvent},
    view::question::words,
};

/// A ready cluster with the focus on the table of nodes.
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
fn restart_dialog_shows_effects_or_controls_of_an_open_one() {
    check_all("ask-restart", asked('R'));
    let mut story = cluster();
    let rolling = Some(rolling(1, Some(7), Phase::Runs));
    story.report(0, NodeReport { rolling, ..running(0, NodeState::Faulted, false) });
    story.report(1, idle(1)).at(3000).key(KeyCode::Char('R'));
    check_all("ask-rolling", story);
}

#[test]
fn exclude_dialog_shows_the_remaining_capacity() {
    let mut story = asked('x');
    story.on(Event::Paste("fan stuck".to_owned()));
    check_all("ask-exclude", story);
    // The other nodes have no memory for its share.
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
fn cordoned_member_of_the_only_replica_is_named() {
    let mut story = cluster();
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(1), &address(1), Some("fan"), "me@here");
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) });
    check_all("cordoned", story);
}

#[test]
fn include_dialog_shows_the_reason_of_the_exclusion() {
    let mut story = cluster();
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(1), &address(1), Some("fan stuck"), "me@here");
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) }).key(KeyCode::Right);
    story.key(KeyCode::Char('x'));
    check_all("ask-include", story);
}

#[test]
fn include_dialog_calls_a_cordoned_node_cordoned() {
    let mut story = cluster();
    let mut exclusions = Exclusions::default();
    exclusions.cordon(&name(1), &address(1), "fan", "me@here");
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) });
    let first = &words(&story.state, &Dialog::plain(Question::In { node: 1 })).paragraphs[0].text;
    assert!(first.starts_with("pi1 is cordoned: fan (by me@here)."), "{first}");
}

#[test]
fn assign_dialog_shows_the_effect_on_running_requests() {
    check_all("ask-assign", asked('r'));
    let mut story = Story::begin();
    story.all_connected().all_loading().key(KeyCode::Esc).key(KeyCode::Char('A'));
    check_all("ask-abort", story);
}

#[test]
fn cancel_dialog_names_the_request_of_another_client() {
    let mut story = cluster();
    let who = "request 7 of gateway pi3, 120 tokens so far".to_owned();
    story.state.operations.dialog = Some(Dialog::plain(Question::CancelRequest { node: 0, number: 7, who }));
    check_all("ask-cancel", story);
}

#[test]
fn footer_shows_a_running_or_paused_restart() {
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
fn waiting_and_failed_changes_are_shown() {
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
fn read_only_dashboard_is_marked() {
    let mut story = cluster();
    story.state.readonly = true;
    story.key(KeyCode::Char('x'));
    check_all("readonly", story);
    let mut story = Story::begin();
    story.all_connected().arrives(ClientEvent::Assign(AssignEvent::Committing));
    check_all("committing", story);
}

/// pi0 and pi1 run one model, pi2 another, pi3 none: each dialog speaks of the group of its node.
#[test]
fn dialogs_name_the_nodes_of_their_own_group() {
    let mut story = cluster();
    for (node, group) in [(0, 0..2), (1, 0..2), (2, 2..3)] {
        let mut report = running(node, NodeState::Ready, false);
        let (topology, hash, member) = report.topology.as_mut().expect("it runs");
        *member = MemberIndex((node - group.start) as u16);
        topology.layout = Layout::alike(1, 1, group.len() as u16);
        topology.members = topology.members[group.clone()].to_vec();
        topology.model = format!("model-{}.gguf", group.start);
        *hash = topology.hash();
        (report.epoch, report.requests) = (Epoch(4), if node == 2 { 5 } else { 0 });
        story.report(node, report);
    }
    story.report(3, idle(3));
    let said = |question| {
        let words = words(&story.state, &Dialog::plain(question));
        words.paragraphs.into_iter().map(|paragraph| paragraph.text).collect::<Vec<_>>().join(" ")
    };
    let exclude = said(Question::Out { node: 0, how: Removal::Exclude });
    assert!(exclude.contains("assigned to pi1 without it") && exclude.contains("No request is running"), "{exclude}");
    let alone = said(Question::Out { node: 2, how: Removal::Exclude });
    assert!(!alone.contains("assigned to") && alone.contains("5 requests"), "{alone}");
    let free = said(Question::Out { node: 3, how: Removal::Exclude });
    assert!(!free.contains("assigned to") && free.contains("No request is running"), "{free}");
    assert!(said(Question::In { node: 3 }).contains("stay where they are"));
    assert!(said(Question::In { node: 0 }).contains("assigned again"));
    assert!(said(Question::Restart { which: vec![3] }).contains("No model is running on them"));
}
