//! Tests of restarts, exclusions and other operator commands as keys and events, without a terminal or nodes.
use common::{
    fault::{Fault, FaultKind},
    ids::Epoch,
};
use telemetry::{NodeReport, NodeState, RequestReport, RequestStage};
use topology::{Exclusions, Layout, Rolling, rolling::Phase};

use crate::{
    fixtures::{NODES, Story, address, idle, name, running, topology, wanted},
    keymap::{Key, KeyCode},
    operator::command::{OperatorCommand, Removal, RollingCommand},
    state::{
        AssignmentStatus,
        operation::{Operation, Question},
        request::Phase::Held,
    },
    update::effect::{DesiredTopology, Effect},
    update::event::{AssignEvent, ClientEvent, Event, OperateEvent},
};

/// A ready cluster, with the focus outside the prompt box.
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

/// Every node reports that node 2 is excluded (`Some(reason)`) or included again (`None`).
fn said(story: &mut Story, reason: Option<&str>) {
    let mut exclusions = story.state.cluster.exclusions.clone();
    exclusions.say(&name(2), &address(2), reason, "me@here");
    for node in 0..NODES {
        let exclusions: Exclusions = exclusions.clone();
        story.report(node, NodeReport { exclusions, ..running(node, NodeState::Ready, false) });
    }
}

/// Node 2 is excluded and the other nodes hold tp3.
fn without_two() -> Story {
    let mut story = ready();
    said(&mut story, Some("fan stuck"));
    assigned_to_the_rest(&mut story);
    story
}

fn assigned_to_the_rest(story: &mut Story) {
    let mut rest = topology();
    rest.members.remove(2);
    rest.layout = Layout::tensor_parallel(3);
    let running = Some((Epoch(4), Box::new(rest)));
    operate(story, OperateEvent::Excluded { node: name(2), out: true, running });
}

/// A rolling restart of all nodes as the nodes report it, with `done` nodes completed.
fn rolling(done: u16, before: Option<u64>, phase: Phase, revision: u64) -> Rolling {
    let targets = (0..NODES).map(|node| (name(node), address(node))).collect();
    Rolling { targets, done, before, phase, drain_ms: 1000, by: "me@here".into(), revision }
}

/// Node 0 reports this restart.
fn rolls(story: &mut Story, rolling: Rolling) -> &mut Story {
    story.report(0, NodeReport { rolling: Some(rolling), ..running(0, NodeState::Ready, false) })
}

/// Begins a drain of the node that is selected at first.
fn drain_first(story: &mut Story) {
    press(story, 'd').on(Event::Paste("fan".to_owned()));
    story.key(KeyCode::Tab).on(Event::Paste(name(0))).key(KeyCode::Enter);
    assert!(drains(story), "{:?}", story.state.operations);
}

fn drains(story: &Story) -> bool {
    matches!(story.state.operations.running, Some(Operation::Change { out: Some(Removal::Drain), .. }))
}

fn question(story: &Story) -> Option<&Question> {
    story.state.operations.dialog.as_ref().map(|dialog| &dialog.question)
}

fn notice(story: &Story) -> &str {
    story.state.screen.notice.as_deref().unwrap_or_default()
}

#[test]
fn restart_asks_first_and_can_be_declined() {
    for no in [Key::plain(KeyCode::Esc), Key::control('c'), Key::plain(KeyCode::Char('n'))] {
        let mut story = ready();
        press(&mut story, 'R');
        assert!(matches!(question(&story), Some(Question::Restart { .. })));
        story.on(Event::Key(no));
        assert_eq!((story.state.operations.dialog.clone(), story.effects.len()), (None, 0), "{no}");
    }
    let mut story = ready();
    press(press(&mut story, 'R'), 'q');
    assert!(story.state.operations.dialog.is_some() && story.effects.is_empty(), "a dialog takes all keys");
    press(&mut story, 'y');
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::Roll(RollingCommand::Begin(vec![0, 1, 2, 3])))]);
    press(&mut story, 'x');
    assert_eq!(story.state.operations.dialog, None, "only one operation at a time");
    operate(&mut story, OperateEvent::Rolled(Box::new(rolling(0, None, Phase::Runs, 1))));
    assert!(story.state.cluster.rolling_runs() && story.state.operations.running.is_none());
}

#[test]
fn later_dashboard_controls_a_running_restart() {
    let mut story = ready();
    rolls(&mut story, rolling(1, Some(7), Phase::Runs, 4));
    press(press(&mut story, 'R'), 'p');
    press(press(&mut story, 'R'), 'r');
    assert_eq!(
        story.effects,
        [Effect::Operate(OperatorCommand::Roll(RollingCommand::Pause))],
        "only one command at a time"
    );
    let paused = rolling(2, None, Phase::Paused("me@here said so".into()), 6);
    operate(&mut story, OperateEvent::Rolled(Box::new(paused)));
    assert!(!story.state.cluster.rolling_runs() && story.state.cluster.open_rolling().is_some());
    press(press(&mut story, 'R'), 'p');
    assert_eq!(story.effects.len(), 1, "the restart is already paused");
    press(&mut story, 'r');
    assert_eq!(story.effects.last(), Some(&Effect::Operate(OperatorCommand::Roll(RollingCommand::Resume))));
    operate(&mut story, OperateEvent::Rolled(Box::new(rolling(2, None, Phase::Runs, 7))));
    press(press(&mut story, 'R'), 'a');
    assert_eq!(story.effects.last(), Some(&Effect::Operate(OperatorCommand::Roll(RollingCommand::Abort))));
    operate(&mut story, OperateEvent::Rolled(Box::new(rolling(3, None, Phase::Aborted, 9))));
    assert!(notice(&story).contains("ended after 3 of 4"));
    // A node that was away reports an older state of the restart.
    rolls(&mut story, rolling(1, None, Phase::Runs, 5));
    assert!(story.state.cluster.open_rolling().is_none());
    press(&mut story, 'R');
    assert!(matches!(question(&story), Some(Question::Restart { .. })));
}

#[test]
fn restart_holds_prompts_and_reports_its_end() {
    let mut story = ready();
    rolls(&mut story, rolling(0, Some(7), Phase::Runs, 2));
    story.report(1, NodeReport { epoch: Epoch(3), ..idle(1) }).effects.clear();
    press(&mut story, 'i').key(KeyCode::Enter);
    assert_eq!(story.state.generation.request.phase, Held);
    assert_eq!(story.effects, [], "nothing is assigned during a restart");
    story.all_report(NodeState::Ready, false);
    assert!(matches!(story.effects.as_slice(), [Effect::Generate { head: 0, .. }]), "{:?}", story.effects);
    rolls(&mut story, rolling(4, None, Phase::Done, 12));
    assert_eq!(notice(&story), "all 4 nodes are restarted");
    // A dashboard that opens later does not announce a restart that is already over.
    let mut later = ready();
    rolls(&mut later, rolling(4, None, Phase::Done, 12));
    assert_eq!(later.state.screen.notice, None);
}

#[test]
fn node_that_cannot_come_back_is_not_restarted() {
    let report = running(1, NodeState::Ready, false);
    for report in [NodeReport { supervised: false, ..report.clone() }, NodeReport { recovers: false, ..report }] {
        let mut story = ready();
        story.report(1, report);
        press(&mut story, 'R');
        assert_eq!(story.state.operations.dialog, None);
        assert!(notice(&story).contains("pi1"), "{}", notice(&story));
    }
    let mut story = ready();
    let fault = Fault::new("pi1", FaultKind::SessionLost { reason: "reset".into() });
    story.arrives(ClientEvent::Disconnected { node: 1, fault });
    press(&mut story, 'R');
    assert!(story.state.operations.dialog.is_none() && notice(&story).contains("does not answer"));
}

#[test]
fn exclusion_needs_a_bounded_one_line_reason() {
    let mut story = ready();
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(&mut story, 'x').key(KeyCode::Enter);
    let error = |story: &Story| story.state.operations.dialog.as_ref().and_then(|dialog| dialog.error.clone());
    assert!(error(&story).is_some_and(|error| error.contains("type a reason")) && story.effects.is_empty());
    story.on(Event::Paste("fan\nstuck ".to_owned()));
    story.on(Event::Paste("x".repeat(10_000)));
    press(&mut story, '!').key(KeyCode::Backspace).key(KeyCode::Enter);
    let (reason, how) = ("fan stuck".to_owned(), Removal::Exclude);
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::Out { node: 2, reason, how })]);
    press(&mut story, 'x');
    assert_eq!(story.state.operations.dialog, None, "only one operation at a time");
    press(&mut story, 'r').key(KeyCode::Enter);
    assert_eq!(story.effects.len(), 1, "nothing is assigned meanwhile");
}

#[test]
fn rest_is_assigned_without_a_dead_excluded_node() {
    let mut story = without_two();
    assert_eq!(story.state.cluster.assignment, AssignmentStatus::Running { epoch: Epoch(4), reused: false });
    let fault = Fault::new(address(2), FaultKind::SessionLost { reason: "reset".into() });
    story.arrives(ClientEvent::Disconnected { node: 2, fault });
    assert!(story.state.cluster.all_open());
    press(&mut story, 'r').key(KeyCode::Enter);
    let rest = DesiredTopology { layout: Layout::tensor_parallel(3), ..wanted() };
    assert_eq!(story.effects, [Effect::Assign { wanted: rest, members: vec![0, 1, 3] }]);
    // The node does not answer, so it cannot be included.
    let topology = story.state.cluster.assigned.clone().map(Box::new).expect("remaining nodes were assigned");
    story.arrives(ClientEvent::Assign(AssignEvent::Running { epoch: Epoch(5), topology, reused: false }));
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(&mut story, 'x');
    assert_eq!(story.state.operations.dialog, None);
}

#[test]
fn later_dashboard_assigns_without_the_excluded_node() {
    for answers in [true, false] {
        let mut story = Story::begin();
        let mut exclusions = Exclusions::default();
        exclusions.say(&name(2), &address(2), Some("fan stuck"), "me@here");
        for node in (0..NODES).filter(|node| answers || *node != 2) {
            let exclusions = exclusions.clone();
            story.connected(node).report(node, NodeReport { exclusions, ..idle(node) });
        }
        let rest = DesiredTopology { layout: Layout::tensor_parallel(3), ..wanted() };
        assert_eq!(story.effects, [Effect::Assign { wanted: rest, members: vec![0, 1, 3] }], "{answers}");
    }
}

#[test]
fn just_excluded_node_can_be_included_before_any_report() {
    let mut story = ready();
    let mut said = Exclusions::default();
    said.say(&name(2), &address(2), Some("fan stuck"), "me@here");
    operate(&mut story, OperateEvent::Said(said.0[0].clone()));
    assigned_to_the_rest(&mut story);
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(press(&mut story, 'x'), 'y');
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::In { node: 2 })]);
}

#[test]
fn same_key_includes_an_excluded_node_and_all_are_requested() {
    let mut story = without_two();
    story.key(KeyCode::Right).key(KeyCode::Right);
    press(press(&mut story, 'x'), 'y');
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::In { node: 2 })]);
    // The nodes have received the inclusion, and none has reported it yet.
    let mut said = story.state.cluster.exclusions.clone();
    said.say(&name(2), &address(2), None, "me@here");
    operate(&mut story, OperateEvent::Said(said.0[0].clone()));
    operate(&mut story, OperateEvent::Excluded { node: name(2), out: false, running: None });
    story.effects.clear();
    press(press(&mut story, 'r'), 'y');
    assert_eq!(story.effects, [crate::fixtures::assign_all()]);
}

#[test]
fn excluding_the_last_serving_node_needs_its_name() {
    let mut story = ready();
    let mut exclusions = Exclusions::default();
    (1..NODES).for_each(|node| exclusions.say(&name(node), &address(node), Some("x"), "me"));
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) });
    press(&mut story, 'x').on(Event::Paste("sd card".to_owned())).key(KeyCode::Enter);
    let error = story.state.operations.dialog.as_ref().and_then(|dialog| dialog.error.clone());
    assert!(error.is_some_and(|error| error.contains("type pi0")) && story.effects.is_empty());
    story.on(Event::Paste("pi1".to_owned())).key(KeyCode::Enter);
    assert_eq!(story.effects, [], "another node's name does not confirm");
    story
        .key(KeyCode::Backspace)
        .on(Event::Paste("0".to_owned()))
        .key(KeyCode::Tab)
        .key(KeyCode::Tab)
        .key(KeyCode::Enter);
    let (reason, how) = ("sd card".to_owned(), Removal::Exclude);
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::Out { node: 0, reason, how })]);
    // Cordoning a node of the only replica needs its name; excluding one of four nodes does not.
    let mut story = ready();
    press(&mut story, 'c');
    assert!(story.state.operations.dialog.as_ref().is_some_and(|dialog| dialog.name.is_some()));
    let mut story = ready();
    press(&mut story, 'x');
    assert!(story.state.operations.dialog.as_ref().is_some_and(|dialog| dialog.name.is_none()), "three nodes remain");
}

#[test]
fn exclusion_that_became_dangerous_needs_the_name() {
    let mut story = ready();
    press(&mut story, 'x').on(Event::Paste("sd card".to_owned()));
    let dialog = |story: &Story| story.state.operations.dialog.clone().expect("the dialog is open");
    assert_eq!(dialog(&story).name, None, "three nodes remain");
    let mut exclusions = Exclusions::default();
    (1..NODES).for_each(|node| exclusions.say(&name(node), &address(node), Some("x"), "me"));
    story.report(0, NodeReport { exclusions, ..running(0, NodeState::Ready, false) }).key(KeyCode::Enter);
    let asked = dialog(&story);
    assert!(asked.in_name && asked.error.is_some_and(|error| error.contains("type pi0")) && story.effects.is_empty());
    story.on(Event::Paste("pi0".to_owned())).key(KeyCode::Enter);
    let (reason, how) = ("sd card".to_owned(), Removal::Exclude);
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::Out { node: 0, reason, how })]);
}

#[test]
fn cordoned_node_takes_no_prompt_and_offers_every_next_step() {
    let mut story = ready();
    press(&mut story, 'c').on(Event::Paste("fan".to_owned()));
    story.key(KeyCode::Tab).on(Event::Paste(name(0))).key(KeyCode::Enter);
    let cordon = OperatorCommand::Out { node: 0, reason: "fan".to_owned(), how: Removal::Cordon };
    assert_eq!(story.effects, [Effect::Operate(cordon)]);
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(0), &address(0), Some("fan"), "me@here");
    story.report(1, NodeReport { exclusions, ..running(1, NodeState::Ready, false) });
    operate(&mut story, OperateEvent::Cordoned { node: name(0), drained: None });
    assert!(!story.state.cluster.is_ready() && notice(&story).contains("accepts no new requests"));
    story.effects.clear();
    press(&mut story, 'i').key(KeyCode::Enter);
    assert_eq!(story.effects, [], "a prompt does not assign a topology without it");
    assert!(notice(&story).contains("r assigns the topology without it"), "{}", notice(&story));
    story.key(KeyCode::Tab).key(KeyCode::Up);
    press(&mut story, 'c');
    assert_eq!(question(&story), Some(&Question::In { node: 0 }));
    story.key(KeyCode::Esc);
    for (key, how) in [('d', Removal::Drain), ('x', Removal::Exclude)] {
        press(&mut story, key);
        assert_eq!(question(&story), Some(&Question::Out { node: 0, how }));
        story.key(KeyCode::Esc);
    }
}

#[test]
fn assignment_asks_first_and_can_be_aborted_while_loading() {
    let mut story = ready();
    press(&mut story, 'A');
    assert!(notice(&story).contains("no assignment"));
    press(&mut story, 'r').key(KeyCode::Esc);
    assert_eq!(story.effects, []);
    press(&mut story, 'r').key(KeyCode::Enter);
    assert_eq!(story.effects, [crate::fixtures::assign_all()]);
    press(&mut story, 'x');
    assert!(notice(&story).contains("A aborts"));
    press(&mut story, 'A').key(KeyCode::Enter);
    assert_eq!(story.effects.last(), Some(&Effect::Operate(OperatorCommand::AbortAssignment)));
    let fault = Fault::new("console", FaultKind::AssignmentAborted { epoch: Epoch(4) });
    story.arrives(ClientEvent::Assign(AssignEvent::Failed(fault)));
    assert!(!story.state.cluster.is_assigning());
    // An assignment that still waits for nodes is withdrawn at once.
    let mut waits = Story::begin();
    waits.connected(0).key(KeyCode::Esc);
    press(&mut waits, 'A');
    waits.all_connected();
    assert_eq!((waits.state.cluster.assignment.clone(), waits.effects.len()), (AssignmentStatus::Nothing, 0));
}

#[test]
fn read_only_dashboard_issues_no_command_for_any_key() {
    let bound = crate::keymap::BINDINGS.iter().flat_map(|binding| binding.keys.to_vec());
    let keys: Vec<Key> = bound.filter(|key| *key != Key::control('c') && key.code != KeyCode::Char('q')).collect();
    for mut story in [Story::begin(), Story::ready(), Story::generating(), Story::lost(), ready()] {
        story.state.readonly = true;
        story.state.generation.request = crate::state::request::Request::nothing();
        story.effects.clear();
        for page in crate::state::Page::ALL {
            for key in &keys {
                for key in [*key, Key::plain(KeyCode::Enter), Key::plain(KeyCode::Char('y'))] {
                    story.on(Event::Key(key));
                }
                story.state.screen.focus = crate::state::Focus::first_of(page);
            }
        }
        story.on(Event::Paste("x".to_owned())).all_connected();
        // Local actions are allowed, and so are planner queries.
        story.effects.retain(Effect::acts);
        assert_eq!(story.effects, []);
    }
    let mut story = ready();
    story.state.readonly = true;
    press(&mut story, 'x');
    assert!(notice(&story).contains("--readonly"));
}

#[test]
fn failed_exclusion_shows_its_reason_and_unblocks_keys() {
    let mut story = ready();
    press(&mut story, 'x').on(Event::Paste("hot".to_owned())).key(KeyCode::Enter);
    operate(&mut story, OperateEvent::WaitsForRequests { count: 2 });
    assert!(matches!(
        story.state.operations.running,
        Some(Operation::Change { requests: 2, out: Some(Removal::Exclude), .. })
    ));
    press(&mut story, 'A').key(KeyCode::Enter);
    assert_eq!(
        story.effects.last(),
        Some(&Effect::Operate(OperatorCommand::AbortAssignment)),
        "can be aborted while waiting"
    );
    let fault = Fault::new("pi3", FaultKind::Draining);
    operate(&mut story, OperateEvent::ExcludeFailed(fault.clone()));
    assert_eq!(
        (story.state.operations.running.clone(), story.state.cluster.assignment.clone()),
        (None, AssignmentStatus::Failed(fault))
    );
    assert!(story.state.screen.notice.as_deref().is_some_and(|notice| notice.contains("pi3")));
}

fn trace(number: u64, stage: RequestStage) -> RequestReport {
    let (by, max_tokens) = ("ann@desk".into(), 256);
    RequestReport { number, by, stage, age_ms: 900, prompt_tokens: 9, tokens: 120, max_tokens }
}

#[test]
fn cancelled_request_leaves_a_drain_under_way_abortable() {
    let mut story = ready();
    let traces = vec![trace(7, RequestStage::Decoding)];
    story.report(1, NodeReport { traces, ..running(1, NodeState::Serving, false) });
    drain_first(&mut story);
    press(&mut story, '5');
    let refused = OperateEvent::CommandRefused(Fault::new("pi1", FaultKind::Draining));
    for ended in [OperateEvent::RequestCancelled { node: name(1) }, refused] {
        press(&mut story, 'X').key(KeyCode::Enter);
        let cancel = OperatorCommand::CancelRequest { node: 1, number: 7 };
        assert_eq!(story.effects.last(), Some(&Effect::Operate(cancel)));
        assert!(drains(&story), "while the cancellation is sent");
        operate(&mut story, ended);
        assert!(drains(&story), "after its end");
    }
    press(&mut story, 'A').key(KeyCode::Enter);
    assert_eq!(story.effects.last(), Some(&Effect::Operate(OperatorCommand::AbortAssignment)));
    operate(&mut story, OperateEvent::Cordoned { node: name(0), drained: Some(false) });
    assert_eq!(story.state.operations.running, None);
}

#[test]
fn command_for_a_paused_restart_leaves_a_drain_under_way() {
    let mut story = ready();
    rolls(&mut story, rolling(2, None, Phase::Paused("requested by me@here".into()), 6));
    drain_first(&mut story);
    press(press(&mut story, 'R'), 'r');
    assert_eq!(story.effects.last(), Some(&Effect::Operate(OperatorCommand::Roll(RollingCommand::Resume))));
    assert!(drains(&story), "while the command is sent");
    operate(&mut story, OperateEvent::Rolled(Box::new(rolling(2, None, Phase::Runs, 7))));
    assert!(drains(&story), "after its end");
    operate(&mut story, OperateEvent::Refused(Fault::new("pi0", FaultKind::Draining)));
    assert_eq!(story.state.operations.running, None);
}

#[test]
fn any_running_request_is_cancelled_by_its_number() {
    let over = RequestStage::Failed(Box::new(Fault::new("pi1", FaultKind::Draining)));
    let mut story = ready();
    let traces = vec![trace(6, over), trace(7, RequestStage::Decoding)];
    story.report(1, NodeReport { traces, ..running(1, NodeState::Serving, false) });
    press(press(&mut story, '5'), 'X');
    assert!(
        matches!(question(&story), Some(Question::CancelRequest { node: 1, number: 7, .. })),
        "{:?}",
        question(&story)
    );
    story.key(KeyCode::Enter);
    assert_eq!(story.effects, [Effect::Operate(OperatorCommand::CancelRequest { node: 1, number: 7 })]);
    operate(&mut story, OperateEvent::RequestCancelled { node: name(1) });
    assert!(notice(&story).contains("pi1 ends"));
    story.key(KeyCode::Down);
    press(&mut story, 'X');
    assert!(story.state.operations.dialog.is_none() && notice(&story).contains("no request"));
}
