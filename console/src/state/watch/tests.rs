//! Tests of the changes that become events: each change once, no duplicates, and no flood from a flapping finding.
use common::fault::{Fault, FaultKind};
use telemetry::{NodeReport, NodeState, Severity, health::ThrottleBits};
use topology::Exclusions;

use crate::{
    fixtures::{NODES, Story, address, idle, name, running},
    state::status::{ClusterStatus, status},
    update::effect::Effect,
    update::event::{AssignEvent, ClientEvent, OperateEvent},
};

fn texts(story: &Story, node: Option<usize>) -> Vec<&str> {
    let entries = story.state.journal.events.entries().iter();
    entries.filter(|entry| entry.node == node).map(|entry| entry.text.as_str()).collect()
}

/// Kinds and nodes of the alerts so far.
fn alerts(story: &Story) -> Vec<(&str, &str)> {
    let alerts = story.effects.iter().filter_map(|effect| match effect {
        Effect::Alert(alert) => Some((alert.kind.name(), alert.node.as_str())),
        _ => None,
    });
    alerts.collect()
}

/// A node reports these exclusions.
fn tells(story: &mut Story, node: usize, exclusions: &Exclusions) {
    let exclusions = exclusions.clone();
    story.report(node, NodeReport { exclusions, ..running(node, NodeState::Ready, false) });
}

#[test]
fn each_change_of_a_node_becomes_one_event() {
    let mut story = Story::begin();
    let reason = "connection refused".to_owned();
    let refused = Fault::new(address(1), FaultKind::Unreachable { address: address(1), reason });
    for _ in 0..3 {
        story.arrives(ClientEvent::Disconnected { node: 1, fault: refused.clone() });
    }
    for _ in 0..3 {
        story.connected(1).report(1, idle(1));
    }
    for state in [NodeState::Ready, NodeState::Serving, NodeState::Ready] {
        story.report(1, running(1, state, false));
    }
    story.report(1, NodeReport { instance: 9, ..running(1, NodeState::Ready, false) });
    let lost = Fault::new("pi1", FaultKind::SessionLost { reason: "reset by peer".to_owned() });
    story.arrives(ClientEvent::Disconnected { node: 1, fault: lost });
    let said = texts(&story, Some(1));
    assert!(said[0].starts_with("does not answer: "), "{said:?}");
    assert_eq!(said[1..5], ["connected", "is idle", "is ready", "the daemon was started again"]);
    assert!(said[5].starts_with("connection lost: ") && said.len() == 6, "{said:?}");
}

#[test]
fn silence_of_a_node_becomes_an_event_by_time_alone() {
    let mut story = Story::ready();
    let before = story.state.journal.events.entries().len();
    story.at(2500).at(2750).at(3000);
    assert_eq!(story.state.journal.events.entries().len(), before + NODES, "one event per node");
    story.report(2, running(2, NodeState::Ready, false));
    assert_eq!(texts(&story, Some(2)).last(), Some(&"reports again"));
}

#[test]
fn flapping_finding_is_reported_once_and_once_when_gone() {
    let mut story = Story::ready();
    let mut hot = running(0, NodeState::Ready, false);
    hot.health.firmware = Some(ThrottleBits(1));
    let count = |story: &Story, what: &str| texts(story, Some(0)).iter().filter(|text| text.contains(what)).count();
    for second in 1..20 {
        let report = if second % 2 == 0 { running(0, NodeState::Ready, false) } else { hot.clone() };
        story.at(1000 * second).report(0, report);
    }
    assert_eq!((count(&story, "under-voltage now"), count(&story, "no longer")), (1, 0));
    let worst = story.state.journal.events.entries().iter().map(|entry| entry.severity).max();
    assert_eq!(worst, Some(Severity::Error));
    for second in 20..40 {
        story.at(1000 * second).report(0, running(0, NodeState::Ready, false));
    }
    assert_eq!(count(&story, "no longer: under voltage"), 1);
}

#[test]
fn topologies_failures_stragglers_and_exclusions_are_events() {
    let mut story = Story::generating();
    story.at(2400).all_report(NodeState::Serving, true);
    assert!(texts(&story, Some(2)).iter().any(|text| text.starts_with("delays the others: 32 %")));
    assert!(texts(&story, None).contains(&"epoch 3: tp4 of bard-q8_0.gguf on 4 nodes"));
    let story = Story::lost();
    assert!(texts(&story, None).iter().any(|text| text.starts_with("request failed: ")));
    assert!(texts(&story, Some(0)).iter().any(|text| text.starts_with("faulted: ")));
    let mut story = Story::ready();
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(2), &address(2), Some("fan stuck"), "me@here");
    for _ in 0..2 {
        for node in 0..NODES {
            let exclusions = exclusions.clone();
            story.report(node, NodeReport { exclusions, ..running(node, NodeState::Ready, false) });
        }
    }
    assert_eq!(texts(&story, Some(2)).iter().filter(|text| **text == "excluded: fan stuck (me@here)").count(), 1);
}

#[test]
fn alerts_follow_losses_throttling_and_service_where_they_are_on() {
    for is_on in [false, true] {
        let mut story = Story::ready();
        story.state.preferences.alerts.bell = is_on;
        let lost = Fault::new("pi1", FaultKind::SessionLost { reason: "reset by peer".to_owned() });
        story.arrives(ClientEvent::Disconnected { node: 1, fault: lost });
        let mut weak = running(2, NodeState::Ready, false);
        weak.health.firmware = Some(ThrottleBits(1));
        story.report(2, weak);
        story.connected(1).report(1, running(1, NodeState::Ready, false));
        let expected = [
            ("node-lost", "pi1"),
            ("cluster-broken", ""),
            ("throttled", "pi2"),
            ("node-returned", "pi1"),
            ("cluster-serves", ""),
        ];
        assert_eq!(alerts(&story), if is_on { &expected[..] } else { &[] });
    }
}

#[test]
fn cordon_has_its_own_event_and_no_alert() {
    let mut story = Story::ready();
    story.state.preferences.alerts.bell = true;
    let (name, address) = (name(2), address(2));
    let mut exclusions = Exclusions::default();
    for reason in [Some("dead"), None] {
        exclusions.cordon(&name, &address, "fan", "me@here");
        tells(&mut story, 2, &exclusions);
        exclusions.say(&name, &address, reason, "me@here");
        tells(&mut story, 2, &exclusions);
    }
    let said = texts(&story, Some(2));
    let expected = ["cordoned: fan (me@here)", "excluded: dead (me@here)", "cordoned: fan (me@here)", "uncordoned"];
    assert!(said.ends_with(&expected), "{said:?}");
    assert_eq!(alerts(&story), [("node-excluded", "pi2")]);
}

#[test]
fn exclusions_from_before_the_start_do_not_alert() {
    let mut exclusions = Exclusions::default();
    (2..NODES).for_each(|node| exclusions.say(&name(node), &address(node), Some("fan stuck"), "me@here"));
    let mut story = Story::begin();
    story.state.preferences.alerts.bell = true;
    let away = FaultKind::Unreachable { address: address(3), reason: "connection refused".to_owned() };
    let away = ClientEvent::Disconnected { node: 3, fault: Fault::new(address(3), away) };
    story.arrives(away.clone()).connected(0).connected(1).connected(2);
    (0..3).for_each(|node| tells(&mut story, node, &exclusions));
    story.arrives(away.clone());
    assert_eq!(alerts(&story), []);
    for reason in [None, Some("dead")] {
        (2..NODES).for_each(|node| exclusions.say(&name(node), &address(node), reason, "me@here"));
        tells(&mut story, 2, &exclusions);
        story.arrives(away.clone());
    }
    assert_eq!(alerts(&story), [("node-excluded", "pi2"), ("node-excluded", address(3).as_str())]);
    for node in [2, 3] {
        let said = texts(&story, Some(node));
        assert!(said.ends_with(&["included again", "excluded: dead (me@here)"]), "{said:?}");
        assert!(!said.iter().any(|text| text.contains("fan stuck")), "{said:?}");
    }
}

#[test]
fn earlier_failed_command_does_not_hide_a_loss() {
    let mut story = Story::ready();
    story.state.preferences.alerts.bell = true;
    let refused = Fault::new("pi3", FaultKind::Draining);
    story.arrives(ClientEvent::Operate(OperateEvent::ExcludeFailed(refused)));
    assert_eq!(status(&story.state), ClusterStatus::Ready);
    let lost = Fault::new("pi1", FaultKind::SessionLost { reason: "reset by peer".to_owned() });
    story.arrives(ClientEvent::Disconnected { node: 1, fault: lost });
    assert_eq!(status(&story.state), ClusterStatus::Broken("pi1"));
    assert_eq!(alerts(&story), [("node-lost", "pi1"), ("cluster-broken", "")]);
}

#[test]
fn failed_assignment_is_the_status_while_nothing_has_served_since() {
    let mut connected = Story::begin();
    connected.all_connected();
    for mut story in [connected, Story::lost()] {
        let fault = Fault::new("pi3", FaultKind::Draining);
        story.arrives(ClientEvent::Assign(AssignEvent::Failed(fault.clone())));
        assert_eq!(status(&story.state), ClusterStatus::Refused(&fault));
        story.arrives(ClientEvent::Assign(AssignEvent::Failed(fault.clone())));
        assert_eq!(status(&story.state), ClusterStatus::Refused(&fault));
    }
}
