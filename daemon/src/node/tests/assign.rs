//! Behaviour of a running replica while the next topology is prepared, and after it is committed.
use std::time::Duration;

use common::{
    fault::{FaultKind, Loss},
    ids::{Epoch, Rank, RequestId},
    units::Bytes,
};
use protocol::{
    message::{Previous, RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAsk},
};
use telemetry::NodeState;
use topology::{Layout, Topology};

use crate::node::effect::{AssignmentEffect, DiskEffect, Effect, EngineEffect, SessionEffect};
use crate::node::{
    event::{EngineCommand, Event, Record, ReplyTo},
    tests::*,
};

#[test]
fn running_topology_serves_until_next_commit() {
    let mut node = running();
    assert!(matches!(
        generate(&mut node, CONSOLE, 5)[..],
        [Effect::Engine(EngineEffect::Command(EngineCommand::Submit(_, _)))]
    ));
    prepare_of(&mut node, OTHER, (4, 5), other());
    assert_eq!(node.state(), NodeState::Serving, "while the next is loaded");
    node.handle(Event::Loaded(Epoch(5), Ok(Bytes(1))));
    node.handle(Event::Persisted(Epoch(5), other().hash(), Ok(())));
    let hash = other().hash();
    let effects = ask(&mut node, OTHER, 2, RequestBody::Commit { epoch: Epoch(5), hash });
    assert!(matches!(failure(&effects), Some(FaultKind::Superseded { epoch: Epoch(5), .. })), "{effects:?}");
    assert!(
        effects.contains(&Effect::Engine(EngineEffect::Stop(Epoch(4))))
            && effects.contains(&Effect::Assignment(AssignmentEffect::Connect(Epoch(5))))
    );
}

#[test]
fn prepared_shard_is_kept_while_its_console_asks_for_reports() {
    let mut node = node();
    prepare(&mut node, CONSOLE, 3, 4);
    node.handle(Event::Loaded(Epoch(4), Ok(Bytes(1))));
    node.handle(Event::Persisted(Epoch(4), topology(2).hash(), Ok(())));
    for (session, seconds) in [(CONSOLE, 50), (OTHER, 100)] {
        assert_eq!(node.handle(Event::Tick { now: Duration::from_secs(seconds) }), []);
        ask(&mut node, session, 7, RequestBody::Report);
    }
    assert_eq!(node.handle(Event::Tick { now: Duration::from_secs(109) }), [], "60 s since its console asked");
    let discard = Effect::Assignment(AssignmentEffect::Discard(Epoch(4)));
    assert_eq!(node.handle(Event::Tick { now: Duration::from_secs(110) }), [discard], "another session has asked");
}

#[test]
fn assignment_of_unchanged_replica_keeps_engine_and_requests() {
    let mut four = topology(4);
    four.layout = Layout::alike(2, 1, 2);
    let mut node = node();
    prepare_of(&mut node, CONSOLE, (3, 4), four.clone());
    node.handle(Event::Loaded(Epoch(4), Ok(Bytes(5))));
    node.handle(Event::Persisted(Epoch(4), four.hash(), Ok(())));
    ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(4), hash: four.hash() });
    node.handle(Event::Connected(Epoch(4), Ok(())));
    generate(&mut node, CONSOLE, 5);
    // The other replica has lost a rank.
    let mut three = Topology { members: four.members[..3].to_vec(), ..four.clone() };
    three.layout = "tp2+tp1".parse().expect("a layout");
    let hash = three.hash();
    assert_eq!(
        prepare_after(&mut node, OTHER, (4, 5), three.clone(), Previous::Stays),
        [Effect::Disk(DiskEffect::Persist(Epoch(5), hash))],
        "nothing is loaded"
    );
    node.handle(Event::Persisted(Epoch(5), hash, Ok(())));
    let effects = ask(&mut node, OTHER, 2, RequestBody::Commit { epoch: Epoch(5), hash });
    let kept = Record::Committed(Some(Committed::new(Epoch(5), three)));
    let to = ReplyTo { session: OTHER, id: RequestId(2) };
    let answer = Effect::respond_after_writes(to, ResponseBody::Committed);
    assert_eq!(effects, [Effect::Disk(DiskEffect::Write { records: vec![kept], then: None }), answer]);
    assert_eq!(
        (node.state(), node.request_count(), node.topology().map(|one| one.1)),
        (NodeState::Serving, 1, Some(hash))
    );
    // Engine and links keep the epoch in which they were started.
    let finished = matches!(
        finished(&mut node, 1)[..],
        [Effect::Session(SessionEffect::Respond { body: ResponseBody::Finished(_), .. })]
    );
    assert_eq!((finished, node.computes()), (true, Some(Epoch(4))));
    let effects = node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Silent));
    assert!(effects.contains(&Effect::Engine(EngineEffect::Abort(Epoch(4)))), "{effects:?}");
    // A topology learned while this replica is broken stops the old engine.
    let learned = Committed::new(Epoch(6), four);
    let effects = ask(&mut node, OTHER, 3, RequestBody::Recovery(Box::new(RecoveryAsk::Learn(Box::new(learned)))));
    assert!(effects.contains(&Effect::Engine(EngineEffect::Stop(Epoch(4)))), "{effects:?}");
}

#[test]
fn running_shard_serves_stays_or_leaves_as_prepare_says() {
    let prepared = |next, previous| {
        let mut node = running();
        let effects = prepare_after(&mut node, CONSOLE, (4, 5), next, previous);
        (effects, node.state())
    };
    let (effects, state) = prepared(other(), Previous::Serves);
    assert!(
        matches!(effects[..], [Effect::Assignment(AssignmentEffect::Load(_))]) && state == NodeState::Ready,
        "{effects:?}"
    );
    let (effects, state) = prepared(other(), Previous::Leaves);
    assert!(
        matches!(
            effects[..],
            [Effect::Engine(EngineEffect::Stop(Epoch(4))), Effect::Assignment(AssignmentEffect::Load(_))]
        ),
        "{effects:?}"
    );
    assert_eq!(state, NodeState::Loading);
    let (effects, _) = prepared(topology(2), Previous::Stays);
    assert!(matches!(effects[..], [Effect::Disk(DiskEffect::Persist(Epoch(5), _))]), "{effects:?}");
    // An engine of a different or broken replica cannot stay: its peers must not count on it.
    let (effects, _) = prepared(other(), Previous::Stays);
    assert!(matches!(failure(&effects), Some(FaultKind::NotServing { .. })), "{effects:?}");
}
