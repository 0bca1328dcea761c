//! Unloading a topology, and the other nodes of the cluster.
use std::time::Duration;

use common::{
    fault::FaultKind,
    ids::{Epoch, MemberIndex, RequestId, TopologyHash},
    units::Bytes,
};
use protocol::{
    message::{RequestBody, ResponseBody, Unload},
    recovery::{Ballot, Committed, RecoveryAsk, Standing, Vote},
};
use telemetry::NodeState;
use topology::{Layout, Topology};

use super::{
    CONSOLE, OTHER, ask, failure, finished, generate, other, prepare_of,
    recovery::{again, base, of, recover},
    running, steward, topology,
};
use crate::node::{
    Event, Node,
    effect::{AssignmentEffect, DiskEffect, Effect, EngineEffect, PendingAnswer},
    event::{Record, ReplyTo},
    quorum::Votes,
    steward::{Decision, Reply, StewardAsk},
};

fn unload(node: &mut Node, if_idle: bool) -> Vec<Effect> {
    let unload = Unload { epoch: Epoch(4), hash: topology(2).hash(), if_idle };
    ask(node, OTHER, 9, RequestBody::Unload(unload))
}

fn done() -> Option<PendingAnswer> {
    Some(PendingAnswer { to: ReplyTo { session: OTHER, id: RequestId(9) }, body: ResponseBody::Done })
}

fn name() -> (Epoch, TopologyHash) {
    (Epoch(4), topology(2).hash())
}

#[test]
fn unload_frees_the_node_and_no_recovery_brings_the_topology_back() {
    let mut node = running();
    let effects = unload(&mut node, true);
    let votes = Votes { promised: Ballot::default(), base: base(4), accepted: None };
    let records = vec![Record::Votes(votes), Record::Committed(None), Record::Unloaded(Some(name()))];
    let expected =
        [Effect::Engine(EngineEffect::Stop(Epoch(4))), Effect::Disk(DiskEffect::Write { records, then: done() })];
    assert_eq!(effects, expected);
    assert_eq!((node.state(), node.unloaded(), node.committed()), (NodeState::Idle, Some(name()), None));
    let again = unload(&mut node, false);
    assert_eq!(again, [Effect::Disk(DiskEffect::Write { records: Vec::new(), then: done() })], "it is repeated");
    let brings = prepare_of(&mut node, CONSOLE, (4, 4), topology(2));
    assert!(matches!(failure(&brings), Some(FaultKind::NotServing { .. })), "{brings:?}");
    let learn = RecoveryAsk::Learn(Box::new(Committed::new(Epoch(4), topology(2))));
    ask(&mut node, CONSOLE, 3, RequestBody::Recovery(Box::new(learn)));
    assert_eq!(node.committed(), None, "a member that has not heard of it teaches nothing");
    let next = prepare_of(&mut node, CONSOLE, (4, 5), topology(2));
    assert!(matches!(next[..], [Effect::Assignment(AssignmentEffect::Load(_))]), "an operator may: {next:?}");
}

/// A vote of the other member on what follows epoch 4.
fn vote(round: u32, next: Option<Committed>) -> RecoveryAsk {
    RecoveryAsk::Vote(Box::new(Vote { base: base(4), witness: None, ballot: Ballot { round, member: 1 }, next }))
}

#[test]
fn returning_member_does_not_bring_back_an_unloaded_topology() {
    let mut node = running();
    unload(&mut node, false);
    // Another topology is assigned and unloaded before the other member of the first one is back.
    let hash = topology(1).hash();
    prepare_of(&mut node, CONSOLE, (4, 5), topology(1));
    node.handle(Event::Loaded(Epoch(5), Ok(Bytes(5))));
    node.handle(Event::Persisted(Epoch(5), hash, Ok(())));
    ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(5), hash });
    node.handle(Event::Connected(Epoch(5), Ok(())));
    assert_eq!(node.state(), NodeState::Ready);
    ask(&mut node, OTHER, 9, RequestBody::Unload(Unload { epoch: Epoch(5), hash, if_idle: false }));
    let told = format!("{:?}", recover(&mut node, vote(1, None)));
    assert!(told.contains("Behind") && told.contains("epoch: Epoch(5)"), "{told}");
    recover(&mut node, RecoveryAsk::Learn(Box::new(base(4))));
    assert_eq!(node.committed(), None);
    let mut back = of("pi2", Some(base(4)));
    recover(&mut back, RecoveryAsk::Learn(Box::new(Committed::new(Epoch(5), topology(1)))));
    assert_eq!(back.committed(), None, "it drops its record");
}

#[test]
fn unload_ends_the_next_topology_that_a_vote_has_chosen() {
    let next = Committed::new(Epoch(5), other());
    for prepares in [true, false] {
        let mut node = running();
        recover(&mut node, vote(1, Some(next.clone())));
        if prepares {
            let effects = again(&mut node, CONSOLE, 5, other());
            assert!(matches!(effects[..], [Effect::Assignment(AssignmentEffect::Load(_))]), "{effects:?}");
        }
        let effects = unload(&mut node, false);
        assert_eq!(matches!(failure(&effects), Some(FaultKind::NotServing { .. })), prepares, "{effects:?}");
        assert_eq!(effects.contains(&Effect::Assignment(AssignmentEffect::Discard(Epoch(5)))), prepares);
        assert_eq!(node.named_unloaded(), Some(name()));
        let brings = again(&mut node, CONSOLE, 5, other());
        assert!(matches!(failure(&brings), Some(FaultKind::NotServing { .. })), "{brings:?}");
        // The members that were not unloaded have learned it, and find that it was unloaded here.
        recover(&mut node, RecoveryAsk::Learn(Box::new(next.clone())));
        assert_eq!((node.committed(), node.unloaded()), (None, Some(next.name())));
        assert_eq!(node.state(), NodeState::Idle);
        let told = format!("{:?}", recover(&mut node, vote(2, None)));
        assert!(told.contains("Behind") && told.contains("epoch: Epoch(5)"), "{told}");
        let repeated = unload(&mut node, false);
        assert_eq!(repeated, [Effect::Disk(DiskEffect::Write { records: Vec::new(), then: done() })]);
    }
}

#[test]
fn head_with_requests_is_unloaded_only_by_force() {
    let mut node = running();
    generate(&mut node, CONSOLE, 3);
    assert_eq!(failure(&unload(&mut node, true)), Some(&FaultKind::RequestsRun { count: 1 }));
    assert_eq!(node.state(), NodeState::Serving);
    let effects = unload(&mut node, false);
    assert!(matches!(failure(&effects), Some(FaultKind::NotServing { .. })), "its client gets an error: {effects:?}");
    assert_eq!(node.state(), NodeState::Idle);
}

#[test]
fn other_topologies_and_open_assignments_are_not_unloaded() {
    let mut node = running();
    let earlier = Unload { epoch: Epoch(3), hash: topology(2).hash(), if_idle: false };
    let refused = ask(&mut node, OTHER, 9, RequestBody::Unload(earlier));
    assert!(matches!(failure(&refused), Some(FaultKind::NotServing { .. })), "{refused:?}");
    prepare_of(&mut node, CONSOLE, (4, 5), other());
    assert!(matches!(failure(&unload(&mut node, false)), Some(FaultKind::PrepareOpen { .. })));
}

#[test]
fn idle_time_begins_with_the_end_of_the_last_request() {
    let at = |node: &mut Node, second| drop(node.handle(Event::Tick { now: Duration::from_secs(second) }));
    let mut node = running();
    assert_eq!(node.idle(), None, "it stays");
    let unloads = Topology { unload_after: Some(30), ..topology(2) };
    prepare_of(&mut node, CONSOLE, (4, 5), unloads.clone());
    node.handle(Event::Loaded(Epoch(5), Ok(Bytes(5))));
    node.handle(Event::Persisted(Epoch(5), unloads.hash(), Ok(())));
    ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(5), hash: unloads.hash() });
    node.handle(Event::Connected(Epoch(5), Ok(())));
    at(&mut node, 7);
    assert_eq!(node.idle(), Some(7));
    generate(&mut node, CONSOLE, 3);
    at(&mut node, 9);
    assert_eq!(node.idle(), Some(0));
    // An answer of the earlier engine changes nothing.
    finished(&mut node, 1);
    assert_eq!(node.idle(), Some(0));
}

#[test]
fn neighbours_are_kept_up_to_the_largest_cluster_and_checked() {
    let mut node = running();
    let meet = |node: &mut Node, list: Vec<String>| ask(node, OTHER, 9, RequestBody::Neighbours(list));
    let effects = meet(&mut node, vec!["pi3:9999".into(), "127.0.0.3:9999".into()]);
    let records = vec![Record::Neighbours(vec!["127.0.0.3:9999".into(), "pi3:9999".into()])];
    assert_eq!(effects, [Effect::Disk(DiskEffect::Write { records, then: done() })]);
    let again = meet(&mut node, vec!["pi3:9999".into()]);
    assert_eq!(again, [Effect::Disk(DiskEffect::Write { records: Vec::new(), then: done() })]);
    for odd in ["pi3", ":9999", "pi3:x", "pi\n3:9999", &format!("{}:1", "a".repeat(300))] {
        assert!(matches!(failure(&meet(&mut node, vec![odd.into()])), Some(FaultKind::Malformed { .. })), "{odd:?}");
    }
    let many = |first: usize| (first..first + 64).map(|index| format!("n{index}:1")).collect::<Vec<_>>();
    meet(&mut node, many(0));
    meet(&mut node, many(64));
    assert_eq!(node.neighbours().count(), common::limits::NODES_MAX.min(130));
}

#[test]
fn neighbour_that_was_not_named_for_longest_makes_room() {
    let mut node = running();
    node.keep_neighbours(["configured:1".to_owned()]);
    let name = |node: &mut Node, second: u64, list: &[String]| {
        node.handle(Event::Tick { now: Duration::from_secs(second) });
        let effects = ask(node, OTHER, 9, RequestBody::Neighbours(list.to_vec()));
        let [Effect::Disk(DiskEffect::Write { records, .. })] = &effects[..] else { panic!("{effects:?}") };
        let neighbours: Vec<String> = node.neighbours().cloned().collect();
        let is_stored = records[..] == [Record::Neighbours(neighbours.clone())];
        (is_stored, neighbours)
    };
    let most = common::limits::NODES_MAX;
    let early: Vec<String> = (2..most).map(|index| format!("n{index:02}:1")).collect();
    name(&mut node, 1, &["configured:1".to_owned()]);
    assert_eq!(name(&mut node, 2, &early).1.len(), most, "with the other member of the topology");
    assert!(!name(&mut node, 3, &early[..1]).0, "it is there already");
    let (is_stored, left) = name(&mut node, 4, &["new:1".to_owned()]);
    assert!(is_stored && left.len() == most, "{left:?}");
    let gone: Vec<&String> = early.iter().filter(|address| !left.contains(address)).collect();
    assert_eq!(gone, [&early[1]], "the first one was named again");
    let late: Vec<String> = (0..most).map(|index| format!("late{index:02}:1")).collect();
    let (_, left) = name(&mut node, 5, &late);
    for kept in ["127.0.0.3:9999", "configured:1"] {
        assert!(left.iter().any(|address| address == kept), "{kept}: {left:?}");
    }
    assert!(!left.contains(&early[0]) && left.len() == most, "{left:?}");
}

#[test]
fn members_forget_what_another_one_has_unloaded() {
    let base = steward::base(2);
    let mut views: Vec<_> = (0..2).map(|index| steward::view(&base, index, NodeState::Idle)).collect();
    let standing: &mut Standing = views[1].standing.as_mut().expect("it answers");
    (standing.committed, standing.unloaded) = (None, Some(base.name()));
    let decision = |views: &[_]| crate::node::steward::decide(MemberIndex(0), &base, views, &steward::RULES);
    assert_eq!(decision(&views), Decision::Forget);
    views[1].standing.as_mut().expect("it answers").unloaded = Some((Epoch(3), base.topology.hash()));
    assert_ne!(decision(&views), Decision::Forget, "that was an earlier one");
}

#[test]
fn later_unload_ends_what_absent_members_still_hold() {
    let mut base = steward::base(4);
    base.topology.layout = Layout::alike(2, 1, 2);
    let decision = |unloaded: u64| {
        let mut views: Vec<_> = (0..4).map(|index| steward::view(&base, index, NodeState::Idle)).collect();
        for view in &mut views[2..] {
            let standing = view.standing.as_mut().expect("it answers");
            (standing.committed, standing.epoch) = (None, base.epoch.max(Epoch(unloaded)));
            standing.unloaded = Some((Epoch(unloaded), other().hash()));
        }
        crate::node::steward::decide(MemberIndex(0), &base, &views, &steward::RULES)
    };
    // The first replica is complete: its members were away while the others unloaded this topology and a later one.
    assert_eq!(decision(6), Decision::Forget);
    assert_eq!(decision(3), Decision::Bring(vec![MemberIndex(0), MemberIndex(1)]), "that was an earlier one");
}

#[test]
fn steward_of_an_idle_head_unloads_it_first_and_then_the_others() {
    let mut base = steward::base(2);
    base.topology.unload_after = Some(30);
    let mut own = steward::view(&base, 0, NodeState::Ready).standing.expect("it answers");
    own.idle = Some(29);
    let mut head = steward::steward(&base, 0);
    let asked = |asks: &[StewardAsk]| -> Vec<(String, bool)> {
        let unloads = asks.iter().filter_map(|ask| match ask {
            StewardAsk::Node { address, body: RequestBody::Unload(unload), .. } => {
                Some((address.clone(), unload.if_idle))
            }
            _ => None,
        });
        unloads.collect()
    };
    assert_eq!(asked(&head.look(Duration::from_secs(29), own.clone())), []);
    own.idle = Some(30);
    let asks = head.look(Duration::from_secs(30), own.clone());
    let [StewardAsk::Node { question, .. }] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!(asked(&asks).len(), 1);
    assert!(asked(&asks)[0].1, "a request may have arrived");
    let mut busy = steward::steward(&base, 0);
    let first = busy.look(Duration::from_secs(30), own);
    let [StewardAsk::Node { question: refused, .. }] = &first[..] else { panic!("{first:?}") };
    let fault = common::fault::Fault::new("pi1", FaultKind::RequestsRun { count: 1 });
    assert_eq!(busy.hear(Duration::from_secs(30), *refused, Reply::Node(Err(fault))), []);
    let others = head.hear(Duration::from_secs(30), *question, Reply::Node(Ok(ResponseBody::Done)));
    assert_eq!(asked(&others), [(base.topology.members[1].address.clone(), false)]);
}
