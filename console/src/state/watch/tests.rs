//! Tests of the changes that become events: each change once, no duplicates, and no flood from a flapping finding.
use common::fault::{Fault, FaultKind};
use telemetry::{NodeReport, NodeState, Severity, health::ThrottleBits};
use topology::Exclusions;

use crate::{
    fixtures::{NODES, Story, address, idle, name, running},
    update::effect::Effect,
    update::event::ClientEvent,
};

fn texts(story: &Story, node: Option<usize>) -> Vec<&str> {
    let entries = story.state.journal.events.entries().iter();
    entries.filter(|entry| entry.node == node).map(|entry| entry.text.as_str()).collect()
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
        let alerts = story.effects.iter().filter_map(|effect| match effect {
            Effect::Alert(alert) => Some((alert.kind.name(), alert.node.as_str())),
            _ => None,
        });
        let alerts: Vec<(&str, &str)> = alerts.collect();
        let expected = [
            ("node-lost", "pi1"),
            ("cluster-broken", ""),
            ("throttled", "pi2"),
            ("node-returned", "pi1"),
            ("cluster-serves", ""),
        ];
        assert_eq!(alerts, if is_on { &expected[..] } else { &[] });
    }
}
