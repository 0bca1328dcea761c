//! Restarts and exclusions as keys and events, without a terminal or a node.
use shared::{
    ids::Epoch,
    protocol::error::{Fault, FaultKind},
    telemetry::{NodeReport, NodeState},
    topology::{Exclusions, Layout},
};

use crate::{
    effect::{Effect, Wanted},
    event::{AssignEvent, ClientEvent, Event, OperateEvent, RestartStep},
    fixtures::{NODES, Story, address, idle, name, running, topology, wanted},
    keymap::{Key, KeyCode},
    state::{
        Assignment,
        operation::{Dialog, Operation},
        request::Phase,
    },
};

/// Ready, with the keys outside of the prompt box.
fn ready() -> Story {
    let mut story = Story::ready();
    story.key(KeyCode::Esc);
    story.effects.clear();
    story
}

fn press(story: &mut Story, letter: char) -> &mut Story {
    story.key(KeyCode::Char(letter))
}

fn operate(story: &mut Story, event: OperateEvent) -> &mut Story {
    story.arrives(ClientEvent::Operate(event))
}

/// Every node says that node 2 is out, or in again.
fn said(story: &mut Story, reason: Option<&str>) {
    let mut exclusions = story.state.exclusions.clone();
    exclusions.say(&name(2), &address(2), reason, "me@here");
    for node in 0..NODES {
        let exclusions: Exclusions = exclusions.clone();
        story.report(node, NodeReport { exclusions, ..running(node, NodeState::Ready, false) });
    }
}

/// Node 2 is out and the others hold tp3.
fn without_two() -> Story {
    let mut story = ready();
    said(&mut story, Some("fan stuck"));
    let mut rest = topology();
    rest.members.remove(2);
    rest.layout = Layout::tensor_parallel(3);
    let running = Some((Epoch(4), Box::new(rest)));
    operate(&mut story, OperateEvent::Excluded { node: name(2), out: true, running });
    story
}

#[test]
fn a_restart_asks_first_and_no_is_no() {
    for no in [Key::plain(KeyCode::Esc), Key::control('c'), Key::plain(KeyCode::Char('n'))] {
        let mut story = ready();
        press(&mut story, 'R');
        assert!(matches!(story.state.dialog, Some(Dialog::Restart { .. })));
        story.on(Event::Key(no));
        assert_eq!((story.state.dialog.clone(), story.effects.len()), (None, 0), "{no}");
    }
    let mut story = ready();
    press(press(&mut story, 'R'), 'q');
    assert!(story.state.dialog.is_some() && story.effects.is_empty(), "a question takes all keys");
    press(&mut story, 'y');
    assert_eq!(story.effects, [Effect::Restart(vec![0, 1, 2, 3])]);
}

#[test]
fn a_restart_holds_prompts_until_a_topology_runs_and_counts_its_nodes() {
    let mut story = ready();
    press(&mut story, 'R').key(KeyCode::Enter);
    operate(&mut story, OperateEvent::Restart { node: 0, step: RestartStep::Draining });
    story.report(0, NodeReport { epoch: Epoch(3), ..idle(0) }).effects.clear();
    story.key(KeyCode::Enter).key(KeyCode::Enter);
    assert_eq!(story.state.request.phase, Phase::Held);
    assert_eq!(story.effects, [], "nothing is assigned beside a restart");
    operate(&mut story, OperateEvent::Assign(AssignEvent::Committing));
    operate(&mut story, OperateEvent::Restart { node: 0, step: RestartStep::Done { seconds: 1.0 } });
    assert!(matches!(&story.state.operation, Some(Operation::Restart(restart)) if restart.done == 1));
    story.all_report(NodeState::Ready, false);
    assert!(matches!(story.effects.as_slice(), [Effect::Generate { head: 0, .. }]), "{:?}", story.effects);
    operate(&mut story, OperateEvent::Restarted);
    assert_eq!(story.state.operation, None);
}

#[test]
fn a_restart_that_stopped_goes_on_with_what_is_left_or_is_forgotten() {
    let fault = Fault::new("pi1", FaultKind::NotBack { seconds: 60 });
    let stopped = || {
        let mut story = ready();
        press(&mut story, 'R').key(KeyCode::Enter).key(KeyCode::Esc);
        assert_eq!(story.effects.last(), Some(&Effect::StopRestart));
        let remaining = vec![1, 2, 3];
        operate(&mut story, OperateEvent::RestartStopped { fault: Some(fault.clone()), remaining });
        story.effects.clear();
        story
    };
    let mut story = stopped();
    press(&mut story, 'R').key(KeyCode::Enter);
    assert_eq!(story.effects, [Effect::Restart(vec![1, 2, 3])]);
    let mut story = stopped();
    story.key(KeyCode::Esc);
    assert_eq!((story.state.operation.clone(), story.effects.len()), (None, 0));
}

#[test]
fn a_node_that_nothing_would_start_again_is_not_restarted() {
    let mut story = ready();
    story.report(1, NodeReport { supervised: false, ..running(1, NodeState::Ready, false) });
    press(&mut story, 'R');
    assert_eq!(story.state.dialog, None);
    assert!(story.state.notice.as_deref().is_some_and(|notice| notice.contains("pi1")));
}

#[test]
fn an_exclusion_needs_a_reason_of_one_bounded_line() {
    let mut story = ready();
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(&mut story, 'x').key(KeyCode::Enter);
    assert!(story.state.dialog.is_some() && story.state.notice.is_some() && story.effects.is_empty());
    story.on(Event::Paste("fan\nstuck ".to_owned()));
    story.on(Event::Paste("x".repeat(10_000)));
    press(&mut story, '!').key(KeyCode::Backspace).key(KeyCode::Enter);
    assert_eq!(story.effects, [Effect::Exclude { node: 2, reason: Some("fan stuck".to_owned()) }]);
    press(&mut story, 'x');
    assert_eq!(story.state.dialog, None, "one at a time");
    press(&mut story, 'r');
    assert_eq!(story.effects.len(), 1, "nothing is assigned beside it");
}

#[test]
fn without_a_node_the_rest_is_assigned_and_used_and_a_dead_node_that_is_out_is_not_missed() {
    let mut story = without_two();
    assert_eq!(story.state.assignment, Assignment::Running { epoch: Epoch(4), reused: false });
    let fault = Fault::new(address(2), FaultKind::SessionLost { reason: "reset".into() });
    story.arrives(ClientEvent::Disconnected { node: 2, fault });
    assert!(story.state.all_open());
    press(&mut story, 'r');
    let rest = Wanted { layout: Layout::tensor_parallel(3), ..wanted() };
    assert_eq!(story.effects, [Effect::Assign { wanted: rest, members: vec![0, 1, 3] }]);
    // It does not answer: it cannot be taken in.
    story.arrives(ClientEvent::Assign(AssignEvent::Failed(Fault::new("pi0", FaultKind::Draining))));
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(&mut story, 'x');
    assert_eq!(story.state.dialog, None);
}

#[test]
fn a_dashboard_that_opens_later_assigns_without_the_node_that_is_out_whether_it_answers_or_not() {
    for answers in [true, false] {
        let mut story = Story::begin();
        let mut exclusions = Exclusions::default();
        exclusions.say(&name(2), &address(2), Some("fan stuck"), "me@here");
        for node in (0..NODES).filter(|node| answers || *node != 2) {
            let exclusions = exclusions.clone();
            story.connected(node).report(node, NodeReport { exclusions, ..idle(node) });
        }
        let rest = Wanted { layout: Layout::tensor_parallel(3), ..wanted() };
        assert_eq!(story.effects, [Effect::Assign { wanted: rest, members: vec![0, 1, 3] }], "{answers}");
    }
}

#[test]
fn a_node_that_is_out_is_taken_in_by_the_same_key_and_all_are_wanted_again() {
    let mut story = without_two();
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(press(&mut story, 'x'), 'y');
    assert_eq!(story.effects, [Effect::Exclude { node: 2, reason: None }]);
    said(&mut story, None);
    operate(&mut story, OperateEvent::Excluded { node: name(2), out: false, running: None });
    story.effects.clear();
    press(&mut story, 'r');
    assert_eq!(story.effects, [crate::fixtures::assign_all()]);
}

#[test]
fn the_last_node_stays() {
    let mut story = ready();
    let mut exclusions = Exclusions::default();
    (1..NODES).for_each(|node| exclusions.say(&name(node), &address(node), Some("x"), "me"));
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) });
    press(&mut story, 'x');
    assert_eq!(story.state.dialog, None);
    assert!(story.state.notice.as_deref().is_some_and(|notice| notice.contains("last node")));
}

#[test]
fn an_exclusion_that_failed_says_why_and_gives_the_keys_back() {
    let mut story = ready();
    press(&mut story, 'x').on(Event::Paste("hot".to_owned())).key(KeyCode::Enter);
    operate(&mut story, OperateEvent::WaitsForRequests { count: 2 });
    assert!(matches!(story.state.operation, Some(Operation::Change { requests: 2, out: true, .. })));
    let fault = Fault::new("pi3", FaultKind::Draining);
    operate(&mut story, OperateEvent::ExcludeFailed(fault.clone()));
    assert_eq!((story.state.operation.clone(), story.state.assignment.clone()), (None, Assignment::Failed(fault)));
    assert!(story.state.notice.as_deref().is_some_and(|notice| notice.contains("pi3")));
}
