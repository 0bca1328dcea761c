//! The state machine alone: events in, effects out.
mod assign;
mod breaker;
mod disk;
mod failing;
mod learning;
mod quorum;
mod recovery;
mod returning;
mod shape;
pub(crate) mod steward;
mod unload;

use std::time::Duration;

use collectives::{Algorithm, Choice};
use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind, Loss},
    ids::{ContentRoot, Epoch, MemberIndex, ModelIdentity, ModelRoots, Rank, RequestId},
    precision::{Exchange, KvFormat},
    sampling::SamplingParameters,
    units::Bytes,
};
use engine::RequestKey;
use protocol::{
    bench::{BenchLinks, LINK_TOKENS_MAX},
    message::{Finished, Generate, Prepare, Previous, Request, RequestBody, ResponseBody},
    recovery::Committed,
};
use telemetry::{LinkBench, NodeState};
use topology::{Exclusions, Layout, Member, Topology};

use crate::node::effect::{AssignmentEffect, DiskEffect, Effect, EngineEffect, SessionEffect};
use crate::node::{
    event::{EngineCommand, Event, ExclusionsKept, PeerDrain, Record, SessionId},
    machine::{Node, NodeInit, Patience, QUEUE_MAX, RESTART_CODE},
};
use crate::text::AnswerEvent;

pub(in crate::node) const CONSOLE: SessionId = SessionId(1);
pub(in crate::node) const OTHER: SessionId = SessionId(2);

pub(in crate::node) fn node() -> Node {
    let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
    let (name, epoch, exclusions) = ("pi1".into(), Epoch(3), Exclusions::default());
    Node::new(NodeInit { name, epoch, exclusions, supervised: true, ..NodeInit::default() }, patience)
}

pub(crate) fn topology(world: u16) -> Topology {
    let members = (0..world).map(|index| Member {
        name: format!("pi{}", index + 1),
        address: format!("127.0.0.{}:9999", index + 2),
        weight: 1,
        layers: 0..6,
        cores: Vec::new(),
        threads: 1,
        spin: false,
    });
    Topology {
        layout: Layout::tensor_parallel(world),
        members: members.collect(),
        model: "m.gguf".into(),
        identity: ModelIdentity::default(),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: 512,
        slots: 4,
    }
}

pub(in crate::node) fn ask(node: &mut Node, session: SessionId, id: u64, body: RequestBody) -> Vec<Effect> {
    let by = format!("console {}", session.0);
    node.handle(Event::Request { session, by, request: Request { id: RequestId(id), body } })
}

pub(in crate::node) fn prepare(node: &mut Node, session: SessionId, seen: u64, epoch: u64) -> Vec<Effect> {
    prepare_of(node, session, (seen, epoch), topology(2))
}

pub(in crate::node) fn prepare_of(
    node: &mut Node,
    session: SessionId,
    epochs: (u64, u64),
    topology: Topology,
) -> Vec<Effect> {
    prepare_after(node, session, epochs, topology, Previous::Serves)
}

pub(in crate::node) fn prepare_after(
    node: &mut Node,
    session: SessionId,
    epochs: (u64, u64),
    topology: Topology,
    previous: Previous,
) -> Vec<Effect> {
    let (seen, epoch, member) = (Epoch(epochs.0), Epoch(epochs.1), MemberIndex(0));
    let prepare = Prepare { seen, epoch, topology, member, desired: None, previous };
    ask(node, session, 1, RequestBody::Prepare(Box::new(prepare)))
}

/// Another topology of the same nodes.
pub(in crate::node) fn other() -> Topology {
    Topology { slots: 1, ..topology(2) }
}

pub(in crate::node) fn failure(effects: &[Effect]) -> Option<&FaultKind> {
    effects.iter().find_map(|effect| match effect {
        Effect::Session(SessionEffect::Respond { body: ResponseBody::Failed(Fault { kind, .. }), .. }) => Some(kind),
        _ => None,
    })
}

/// A node that runs the two-rank topology as its head at epoch 4.
pub(in crate::node) fn running() -> Node {
    let mut node = node();
    assert!(matches!(prepare(&mut node, CONSOLE, 3, 4)[..], [Effect::Assignment(AssignmentEffect::Load(_))]));
    assert_eq!(node.state(), NodeState::Loading);
    let hash = topology(2).hash();
    assert_eq!(node.handle(Event::Loaded(Epoch(4), Ok(Bytes(5)))), [Effect::Disk(DiskEffect::Persist(Epoch(4), hash))]);
    assert_eq!(node.epoch(), Epoch(3), "an epoch counts only when it is on the disk");
    node.handle(Event::Persisted(Epoch(4), hash, Ok(())));
    assert_eq!((node.state(), node.epoch()), (NodeState::Prepared, Epoch(4)));
    assert!(node.expects_links(Epoch(4), hash) && !node.expects_links(Epoch(5), hash));
    let effects = ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(4), hash });
    let committed = Committed::new(Epoch(4), topology(2));
    let records = vec![Record::Committed(Some(committed)), Record::Neighbours(vec!["127.0.0.3:9999".into()])];
    assert_eq!(
        effects,
        [
            Effect::Disk(DiskEffect::Write { records, then: None }),
            Effect::Assignment(AssignmentEffect::Connect(Epoch(4)))
        ],
        "kept before it counts"
    );
    node.handle(Event::Connected(Epoch(4), Ok(())));
    assert_eq!(node.state(), NodeState::Ready);
    node
}

pub(in crate::node) fn generate(node: &mut Node, session: SessionId, id: u64) -> Vec<Effect> {
    let sampling = SamplingParameters::default();
    let request = Generate::new("x", 3, sampling, Vec::new());
    ask(node, session, id, RequestBody::Generate(Box::new(request)))
}

fn bench_links(node: &mut Node, session: SessionId, id: u64, tokens: u32) -> Vec<Effect> {
    let wanted = BenchLinks { tokens: vec![tokens], algorithms: vec![Algorithm::Direct], repeats: 5 };
    ask(node, session, id, RequestBody::BenchLinks(wanted))
}

#[test]
fn request_waits_while_links_are_timed() {
    assert!(matches!(failure(&bench_links(&mut node(), CONSOLE, 1, 1)), Some(FaultKind::NotServing { .. })));
    let mut busy = running();
    generate(&mut busy, CONSOLE, 3);
    assert_eq!(failure(&bench_links(&mut busy, OTHER, 1, 1)), Some(&FaultKind::RequestsRun { count: 1 }));
    let mut node = running();
    let parameter = failure(&bench_links(&mut node, CONSOLE, 7, LINK_TOKENS_MAX + 1)).cloned();
    assert!(matches!(parameter, Some(FaultKind::ParameterInvalid { .. })), "{parameter:?}");
    let effects = bench_links(&mut node, CONSOLE, 8, 1);
    assert!(
        matches!(effects[..], [Effect::Engine(EngineEffect::Command(EngineCommand::BenchLinks(RequestKey(1), _)))]),
        "{effects:?}"
    );
    assert_eq!(failure(&bench_links(&mut node, OTHER, 1, 1)), Some(&FaultKind::RequestsRun { count: 1 }));
    assert!(matches!(
        generate(&mut node, OTHER, 2)[..],
        [Effect::Engine(EngineEffect::Command(EngineCommand::Submit(_, _)))]
    ));
    let (exchange, columns) = (Exchange::F32, 256);
    let found = LinkBench { ranks: 2, exchange, columns, times: Vec::new(), left_out: vec![1] };
    let told = node.handle(Event::Answer(Epoch(4), RequestKey(1), AnswerEvent::LinksBenched(found.clone())));
    let body = ResponseBody::BenchedLinks(found);
    assert_eq!(told, [Effect::Session(SessionEffect::Respond { session: CONSOLE, id: RequestId(8), body })]);
}

#[test]
fn node_lost_while_links_are_timed_ends_the_bench_by_name() {
    let mut node = running();
    bench_links(&mut node, CONSOLE, 7, 1);
    let effects = node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Reset));
    assert_eq!(failure(&effects), Some(&FaultKind::NodeLost { how: Loss::Reset }));
    assert!(effects.contains(&Effect::Engine(EngineEffect::Abort(Epoch(4)))), "{effects:?}");
}

pub(in crate::node) fn finished(node: &mut Node, key: u64) -> Vec<Effect> {
    let finished = Finished {
        reason: FinishReason::Stop,
        times: common::latency::RequestTimes::default(),
        ranks: Vec::new(),
        sampling_rounds: 0,
    };
    node.handle(Event::Answer(Epoch(4), RequestKey(key), AnswerEvent::Finished(Box::new(finished))))
}

#[test]
fn concurrent_prepare_is_refused_with_the_name_of_the_winner() {
    let mut node = node();
    prepare(&mut node, CONSOLE, 3, 4);
    let effects = prepare(&mut node, OTHER, 3, 4);
    assert!(matches!(failure(&effects), Some(FaultKind::PrepareOpen { by, .. }) if by == "console 1"), "{effects:?}");
    let mut node = running();
    let effects = prepare(&mut node, OTHER, 3, 5);
    assert!(matches!(failure(&effects), Some(FaultKind::EpochMoved { expected: Epoch(3), actual: Epoch(4) })));
    let effects = prepare(&mut node, OTHER, 4, 3);
    assert!(matches!(failure(&effects), Some(FaultKind::Superseded { epoch: Epoch(4), by }) if by == "console 1"));
    let hash = topology(2).hash();
    let effects = ask(&mut node, OTHER, 9, RequestBody::Commit { epoch: Epoch(3), hash });
    assert!(matches!(failure(&effects), Some(FaultKind::Superseded { .. })), "{effects:?}");
}

#[test]
fn prepare_ends_by_abort_session_end_lease_or_failure() {
    let hash = topology(2).hash();
    let discard = Effect::Assignment(AssignmentEffect::Discard(Epoch(4)));
    let mut first = node();
    prepare(&mut first, CONSOLE, 3, 4);
    let effects = ask(&mut first, CONSOLE, 2, RequestBody::Abort { epoch: Epoch(4), hash });
    assert!(effects.contains(&discard) && first.state() == NodeState::Idle);
    let mut second = node();
    prepare(&mut second, CONSOLE, 3, 4);
    assert_eq!(second.handle(Event::SessionClosed(OTHER)), []);
    assert_eq!(second.handle(Event::SessionClosed(CONSOLE)), std::slice::from_ref(&discard));
    let mut third = node();
    prepare(&mut third, CONSOLE, 3, 4);
    third.handle(Event::Loaded(Epoch(4), Ok(Bytes(1))));
    third.handle(Event::Persisted(Epoch(4), topology(2).hash(), Ok(())));
    assert_eq!(third.handle(Event::Tick { now: Duration::from_secs(59) }), []);
    assert_eq!(third.handle(Event::Tick { now: Duration::from_secs(60) }), std::slice::from_ref(&discard));
    assert_eq!((third.state(), third.epoch()), (NodeState::Idle, Epoch(4)), "the promised epoch stays used");
    let mut fourth = node();
    prepare(&mut fourth, CONSOLE, 3, 4);
    let fault = Fault::new("pi1", FaultKind::StateUnwritable { reason: "full".into() });
    fourth.handle(Event::Loaded(Epoch(4), Ok(Bytes(1))));
    let effects = fourth.handle(Event::Persisted(Epoch(4), topology(2).hash(), Err(fault)));
    assert!(effects.contains(&discard) && fourth.epoch() == Epoch(3));
    assert!(matches!(failure(&effects), Some(FaultKind::StateUnwritable { .. })));
}

#[test]
fn lost_rank_fails_every_request_once_by_its_name() {
    let mut node = running();
    generate(&mut node, CONSOLE, 5);
    generate(&mut node, OTHER, 5);
    assert_eq!(node.state(), NodeState::Serving);
    let effects = node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Silent));
    let lost = effects.iter().filter(|effect| {
        matches!(effect, Effect::Session(SessionEffect::Respond { body: ResponseBody::Failed(fault), .. })
            if fault.node == "pi2" && fault.kind == FaultKind::NodeLost { how: Loss::Silent })
    });
    assert_eq!(lost.count(), 2, "{effects:?}");
    assert!(effects.contains(&Effect::Engine(EngineEffect::Abort(Epoch(4)))));
    assert_eq!(node.state(), NodeState::Faulted);
    assert_eq!(node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Reset)), [], "it is lost once");
    assert_eq!(node.handle(Event::PeerLost(Epoch(3), Rank(1), Loss::Reset)), [], "a different epoch");
    assert!(matches!(failure(&generate(&mut node, CONSOLE, 6)), Some(FaultKind::NotServing { .. })));
    assert!(
        prepare(&mut node, CONSOLE, 4, 5).contains(&Effect::Engine(EngineEffect::Stop(Epoch(4)))),
        "its memory is free for the next"
    );
}

#[test]
fn queue_is_bounded_and_session_end_cancels_its_requests() {
    let mut node = running();
    for id in 0..QUEUE_MAX as u64 {
        assert!(failure(&generate(&mut node, CONSOLE, id)).is_none());
    }
    assert!(matches!(failure(&generate(&mut node, OTHER, 1)), Some(FaultKind::QueueFull { .. })));
    let effects = node.handle(Event::SessionClosed(CONSOLE));
    assert_eq!(effects.len(), QUEUE_MAX);
    assert!(
        effects.iter().all(|effect| matches!(effect, Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(_)))))
    );
    assert_eq!(node.state(), NodeState::Ready);
    assert!(failure(&generate(&mut node, OTHER, 2)).is_none());
    assert!(
        matches!(failure(&generate(&mut node, OTHER, 2)), Some(FaultKind::ParameterInvalid { .. })),
        "an id in use"
    );
}

#[test]
fn invalid_request_is_refused_before_the_engine_sees_it() {
    let mut node = running();
    let mut refused = |change: fn(&mut Generate)| {
        let sampling = SamplingParameters::default();
        let mut request = Generate::new("x", 3, sampling, Vec::new());
        change(&mut request);
        let effects = ask(&mut node, CONSOLE, 8, RequestBody::Generate(Box::new(request)));
        matches!(failure(&effects), Some(FaultKind::ParameterInvalid { .. }))
    };
    assert!(refused(|request| request.max_tokens = 0));
    assert!(refused(|request| request.sampling.temperature = f32::NAN));
    assert!(refused(|request| request.stop = vec![String::new(); 17]));
    assert!(refused(|request| request.prompt = "x".repeat((2 << 20) + 1).into()));
}

#[test]
fn resuming_with_other_weights_is_refused_despite_same_header() {
    let mut node = running();
    let served = topology(2).roots();
    let other = |mut roots: ModelRoots| {
        roots.content = Some(ContentRoot([9; 32]));
        roots
    };
    let mut is_refused = |id: u64, model: ModelRoots| {
        let request = Generate::new("x", 3, SamplingParameters::default(), Vec::new());
        let request = Generate { model: Some(model.into()), ..request };
        let effects = ask(&mut node, CONSOLE, id, RequestBody::Generate(Box::new(request)));
        matches!(failure(&effects), Some(FaultKind::ModelReplaced { .. }))
    };
    assert!(!is_refused(8, served) && is_refused(9, ModelRoots { identity: ModelIdentity([9; 32]), ..served }));
    assert_eq!(is_refused(10, other(served)), served.content.is_some());
    let known = ModelRoots { content: Some(ContentRoot([1; 32])), ..served };
    assert!(known.differs(&other(served)) && !known.differs(&ModelRoots { content: None, ..served }));
}

#[test]
fn draining_head_leaves_after_last_request_or_its_time_limit() {
    let mut node = running();
    generate(&mut node, CONSOLE, 5);
    assert_eq!(node.handle(Event::Terminate { now: Duration::ZERO }), [Effect::Engine(EngineEffect::AnnounceDraining)]);
    assert_eq!(node.state(), NodeState::Draining);
    assert!(matches!(failure(&generate(&mut node, OTHER, 6)), Some(FaultKind::Draining)));
    let effects = finished(&mut node, 1);
    assert_eq!(effects.last(), Some(&Effect::Exit(0)));
    let mut slow = running();
    generate(&mut slow, CONSOLE, 5);
    slow.handle(Event::Terminate { now: Duration::ZERO });
    let effects = slow.handle(Event::Tick { now: Duration::from_secs(20) });
    assert!(matches!(failure(&effects), Some(FaultKind::DrainEnded)) && effects.contains(&Effect::Exit(0)));
    assert_eq!(node.handle(Event::Terminate { now: Duration::ZERO }), [], "it exits once");
    let mut idle = super::tests::node();
    assert!(idle.handle(Event::Terminate { now: Duration::ZERO }).contains(&Effect::Exit(0)));
}

#[test]
fn head_takes_no_new_work_while_a_rank_drains() {
    let mut node = running();
    let drain = PeerDrain { draining: true, busy: false };
    assert_eq!(
        node.handle(Event::PeerDrains(Epoch(4), Rank(1), drain)),
        [Effect::Engine(EngineEffect::AnnounceDraining)]
    );
    assert!(matches!(failure(&generate(&mut node, CONSOLE, 5)), Some(FaultKind::Draining)));
}

fn out(member: &str) -> Exclusions {
    let mut list = Exclusions::default();
    list.say(member, &format!("{member}:9999"), Some("fan stuck"), "me@here");
    list
}

#[test]
fn restart_drains_then_exits_with_the_restart_code() {
    let mut idle = node();
    let effects = ask(&mut idle, CONSOLE, 1, RequestBody::Restart);
    assert!(
        matches!(effects[0], Effect::Session(SessionEffect::Respond { body: ResponseBody::Restarting, .. })),
        "{effects:?}"
    );
    assert_eq!(effects.last(), Some(&Effect::Exit(RESTART_CODE)));

    let mut busy = running();
    generate(&mut busy, CONSOLE, 5);
    let effects = ask(&mut busy, OTHER, 1, RequestBody::Restart);
    assert!(
        effects.contains(&Effect::Engine(EngineEffect::AnnounceDraining))
            && !effects.contains(&Effect::Exit(RESTART_CODE))
    );
    assert!(matches!(failure(&ask(&mut busy, OTHER, 2, RequestBody::Restart)), Some(FaultKind::Draining)));
    assert!(matches!(failure(&generate(&mut busy, CONSOLE, 6)), Some(FaultKind::Draining)));
    assert_eq!(finished(&mut busy, 1).last(), Some(&Effect::Exit(RESTART_CODE)));

    let (name, epoch, exclusions) = ("pi1".into(), Epoch(0), Exclusions::default());
    let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
    let mut alone = Node::new(NodeInit { name, epoch, exclusions, ..NodeInit::default() }, patience);
    let effects = ask(&mut alone, CONSOLE, 1, RequestBody::Restart);
    assert_eq!((failure(&effects), effects.len()), (Some(&FaultKind::Unsupervised), 1));
    assert_eq!(alone.state(), NodeState::Idle);
}

#[test]
fn exclusions_are_stored_before_the_answer() {
    let mut node = node();
    let effects = ask(&mut node, CONSOLE, 1, RequestBody::Exclude(out("pi2")));
    assert_eq!(
        effects,
        [Effect::Disk(DiskEffect::KeepExclusions { session: CONSOLE, id: RequestId(1), list: out("pi2") })]
    );
    let kept = keeps(&mut node, out("pi2"), Ok(()));
    assert!(
        matches!(kept[..], [Effect::Session(SessionEffect::Respond { body: ResponseBody::Excluded, .. })]),
        "{kept:?}"
    );
    let again = ask(&mut node, CONSOLE, 2, RequestBody::Exclude(out("pi2")));
    assert!(
        matches!(again[..], [Effect::Session(SessionEffect::Respond { body: ResponseBody::Excluded, .. })]),
        "{again:?}"
    );
    let mut bad = out("pi2");
    bad.0[0].reason = Some("two\nlines".into());
    let refused = ask(&mut node, CONSOLE, 3, RequestBody::Exclude(bad));
    assert!(matches!(failure(&refused), Some(FaultKind::Malformed { .. })), "{refused:?}");
}

fn keeps(node: &mut Node, list: Exclusions, result: Result<(), Fault>) -> Vec<Effect> {
    node.handle(Event::ExclusionsKept(ExclusionsKept { session: CONSOLE, id: RequestId(1), list, result }))
}

#[test]
fn list_that_cannot_be_stored_leaves_service_unchanged() {
    let mut head = running();
    ask(&mut head, OTHER, 1, RequestBody::Exclude(out("pi2")));
    let fault = Fault::new("pi1", FaultKind::StateUnwritable { reason: "full".into() });
    let refused = keeps(&mut head, out("pi2"), Err(fault));
    assert!(matches!(failure(&refused), Some(FaultKind::StateUnwritable { .. })));
    assert_eq!(head.exclusions(), &Exclusions::default());
    assert_eq!(failure(&generate(&mut head, CONSOLE, 6)), None, "it keeps serving");
}

#[test]
fn excluded_member_blocks_new_requests_and_prepares() {
    let mut head = running();
    generate(&mut head, CONSOLE, 5);
    keeps(&mut head, out("pi2"), Ok(()));
    let excluded =
        |effects: &[Effect]| matches!(failure(effects), Some(FaultKind::Excluded { member, .. }) if member == "pi2");
    assert!(excluded(&generate(&mut head, CONSOLE, 6)));
    assert_eq!(head.request_count(), 1, "running requests continue");
    assert!(matches!(
        finished(&mut head, 1)[..],
        [Effect::Session(SessionEffect::Respond { body: ResponseBody::Finished(_), .. })]
    ));
    assert!(excluded(&prepare(&mut head, CONSOLE, 4, 5)));
    let mut include = out("pi2");
    include.say("pi2", "pi2:9999", None, "me@here");
    keeps(&mut head, include, Ok(()));
    assert!(matches!(
        prepare_of(&mut head, CONSOLE, (4, 5), other())[..],
        [Effect::Assignment(AssignmentEffect::Load(_))]
    ));
}

#[test]
fn excluded_node_drops_its_shard_when_the_others_do() {
    let mut node = running();
    keeps(&mut node, out("pi1"), Ok(()));
    assert_eq!(node.state(), NodeState::Ready);
    let effects = node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Reset));
    assert_eq!((effects, node.state()), (vec![Effect::Engine(EngineEffect::Stop(Epoch(4)))], NodeState::Idle));
}

#[test]
fn cancel_of_a_link_bench_is_refused_by_name() {
    let mut node = running();
    bench_links(&mut node, CONSOLE, 1, 1);
    let refused = ask(&mut node, OTHER, 2, RequestBody::CancelRunning { number: 1 });
    let reason = failure(&refused).map(ToString::to_string).unwrap_or_default();
    assert!(reason.contains("request 1 is a link benchmark") && refused.len() == 1, "{refused:?}");
}

#[test]
fn any_operator_may_end_a_request_by_its_reported_number() {
    let mut node = running();
    (1..=2).for_each(|id| drop(generate(&mut node, CONSOLE, id)));
    let told: Vec<(u64, String)> = node.traces().into_iter().map(|one| (one.number, one.by)).collect();
    assert_eq!(told, [(1, "console 1".to_owned()), (2, "console 1".to_owned())]);
    let cancel = |node: &mut Node, number| ask(node, OTHER, 10, RequestBody::CancelRunning { number });
    let effects = cancel(&mut node, 2);
    assert_eq!(effects[0], Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(RequestKey(2)))));
    assert!(matches!(failure(&cancel(&mut node, 99)), Some(FaultKind::ParameterInvalid { .. })));
    finished(&mut node, 2);
    assert!(matches!(failure(&cancel(&mut node, 2)), Some(FaultKind::ParameterInvalid { .. })), "it is over");
    // A number from an earlier topology identifies no request here.
    assert!(matches!(
        prepare_of(&mut node, CONSOLE, (4, 5), other())[..],
        [Effect::Assignment(AssignmentEffect::Load(_))]
    ));
    let hash = other().hash();
    node.handle(Event::Loaded(Epoch(5), Ok(Bytes(5))));
    node.handle(Event::Persisted(Epoch(5), hash, Ok(())));
    ask(&mut node, CONSOLE, 12, RequestBody::Commit { epoch: Epoch(5), hash });
    node.handle(Event::Connected(Epoch(5), Ok(())));
    generate(&mut node, CONSOLE, 3);
    assert_eq!(node.traces().iter().map(|one| one.number).collect::<Vec<_>>(), [3]);
}
