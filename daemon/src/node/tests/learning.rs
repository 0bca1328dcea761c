//! What a node learns of topologies that others have decided.
use std::time::Duration;

use common::{fault::FaultKind, ids::Epoch};
use protocol::{
    message::RequestBody,
    recovery::{Ballot, Committed, RecoveryAsk, Vote},
};
use telemetry::NodeState;
use topology::{Exclusions, Layout, Topology};

use crate::node::{
    effect::{DiskEffect, Effect, EngineEffect},
    event::Record,
    tests::{
        OTHER, failure,
        recovery::{again, base, of, recover},
        running,
        steward::{self, bodies, tell, view},
        topology,
    },
};

#[test]
fn later_topology_replaces_older_and_nonmembers_drop_it() {
    let mut node = running();
    let later = Committed::new(Epoch(9), Topology { slots: 1, ..topology(2) });
    let effects = recover(&mut node, RecoveryAsk::Learn(Box::new(later.clone())));
    assert_eq!(effects[0], Effect::Engine(EngineEffect::Stop(Epoch(4))));
    assert_eq!((node.state(), node.epoch(), node.committed()), (NodeState::Idle, Epoch(9), Some(&later)));
    let older = recover(&mut node, RecoveryAsk::Learn(Box::new(base(5))));
    assert!(matches!(&older[..], [Effect::Disk(DiskEffect::Write { records, .. })] if records.is_empty()), "{older:?}");
    let mut without = Committed::new(Epoch(10), topology(2));
    without.topology.members[0].name = "pi9".into();
    let effects = recover(&mut node, RecoveryAsk::Learn(Box::new(without)));
    let Some(Effect::Disk(DiskEffect::Write { records, .. })) = effects.last() else { panic!("{effects:?}") };
    assert!(records.contains(&Record::Committed(None)) && node.committed().is_none(), "{records:?}");
}

#[test]
fn later_of_two_topologies_of_one_epoch_is_learned_and_a_left_one_is_not() {
    let (small, large) = (Committed::new(Epoch(5), topology(2)), Committed::new(Epoch(5), topology(3)));
    for (held, told) in [(&small, &large), (&large, &small)] {
        let mut node = of("pi1", Some(held.clone()));
        recover(&mut node, RecoveryAsk::Learn(Box::new(told.clone())));
        assert_eq!(node.committed(), Some(&large), "the one with more members");
    }
    // A topology without this node follows. Members of the earlier one that missed it ask for votes and bring it back.
    let mut node = of("pi1", Some(small.clone()));
    let mut other = topology(2);
    other.members[0].name = "pi9".into();
    let effects = recover(&mut node, RecoveryAsk::Learn(Box::new(Committed::new(Epoch(6), other.clone()))));
    assert!(node.committed().is_none() && node.known_epoch() == Epoch(6), "{effects:?}");
    let ballot = Ballot { round: 1, member: 1 };
    let vote = Vote { base: large.clone(), witness: None, ballot, next: None };
    let told = format!("{:?}", recover(&mut node, RecoveryAsk::Vote(Box::new(vote))));
    assert!(told.contains("Behind") && told.contains("epoch: Epoch(6)"), "{told}");
    recover(&mut node, RecoveryAsk::Learn(Box::new(large)));
    assert!(node.committed().is_none());
    let effects = again(&mut node, OTHER, 5, topology(2));
    assert!(matches!(failure(&effects), Some(FaultKind::Superseded { epoch: Epoch(6), .. })), "{effects:?}");
    let next = Committed::new(Epoch(7), topology(2));
    recover(&mut node, RecoveryAsk::Learn(Box::new(next.clone())));
    assert_eq!(node.committed(), Some(&next));
}

/// A topology of two other nodes.
fn of_another_group(epoch: u64) -> Committed {
    let mut topology = topology(2);
    topology.members.iter_mut().for_each(|member| member.name.insert(0, 'x'));
    Committed::new(Epoch(epoch), topology)
}

#[test]
fn later_topology_of_another_group_ends_nothing() {
    let mut node = running();
    recover(&mut node, RecoveryAsk::Learn(Box::new(of_another_group(9))));
    assert_eq!((node.state(), node.committed()), (NodeState::Ready, Some(&base(4))));
    // Both topologies remained of the same desired one.
    let desired = Some(Box::new(topology(3)));
    let mut node = of("pi1", Some(Committed { desired: desired.clone(), ..Committed::new(Epoch(5), topology(1)) }));
    let mut rest = Committed { desired, ..Committed::new(Epoch(6), topology(1)) };
    rest.topology.members[0].name = "pi2".into();
    recover(&mut node, RecoveryAsk::Learn(Box::new(rest)));
    assert_eq!(node.committed(), None);
}

#[test]
fn witness_stores_the_votes_of_each_group_and_follows_none() {
    let mut node = of("pi9", None);
    let ballot = Ballot { round: 1, member: 0 };
    for (base, count) in [(of_another_group(9), 1), (base(4), 2)] {
        let vote = Vote { base, witness: Some("pi9:9999".into()), ballot, next: None };
        let effects = recover(&mut node, RecoveryAsk::Vote(Box::new(vote)));
        let [Effect::Disk(DiskEffect::Write { records, then: Some(then) })] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert!(matches!(&records[..], [Record::Witnessed(groups)] if groups.len() == count), "{records:?}");
        assert!(format!("{then:?}").contains("Promised"), "{then:?}");
        assert_eq!((node.known_epoch(), node.committed()), (Epoch(0), None));
    }
}

#[test]
fn absent_member_that_an_operator_gave_another_model_is_no_longer_excluded() {
    let mut held = steward::base(2);
    let mut other = Committed::new(held.epoch.next(), held.topology.clone());
    held.desired = Some(Box::new(held.topology.clone()));
    let member = held.topology.members.pop().expect("there are two");
    held.topology.layout = Layout::tensor_parallel(1);
    (other.topology.members, other.topology.layout) = (vec![member.clone()], Layout::tensor_parallel(1));
    for (by, is_included) in [("pi1 (by itself)", true), ("me@desk", false)] {
        let mut list = Exclusions::default();
        list.say(&member.name, &member.address, Some("did not answer for 8 s"), by);
        let mut all = [view(&held, 0, NodeState::Ready), view(&other, 0, NodeState::Ready)];
        all[0].standing.as_mut().expect("it answers").exclusions = list;
        let own = all[0].standing.clone().expect("it answers");
        let mut serving = steward::steward(&held, 0);
        let now = Duration::from_secs(5);
        let asks = serving.look(now, own);
        let next = tell(&mut serving, now, &asks, &all);
        let told = bodies(&next).into_iter().find_map(|body| match body {
            RequestBody::Exclude(list) => Some(list.of(&member.name, &member.address).is_none()),
            _ => None,
        });
        assert_eq!(told, Some(is_included), "{by}: {next:?}");
    }
}
