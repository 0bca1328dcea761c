//! The node while its disk is slow or cannot be read: results of writes arrive late, after other events.
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, RequestId},
    units::Bytes,
};
use engine::port::ReplicaEvent;
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAnswer, RecoveryAsk},
};
use telemetry::NodeState;
use topology::Exclusions;

use super::{CONSOLE, OTHER, ask, failure, generate, node, other, out, prepare_of, running, topology};
use crate::node::{
    effect::{DiskEffect, Effect, ModelEffect, SessionEffect},
    event::{Event, ExclusionsKept, ReplyTo, SessionId},
    machine::Node,
};

#[test]
fn late_result_of_an_abandoned_write_prepares_nothing() {
    let mut node = node();
    prepare_of(&mut node, CONSOLE, (3, 4), topology(2));
    node.handle(Event::Loaded(Epoch(4), Ok(Bytes(1))));
    node.handle(Event::SessionClosed(CONSOLE));
    prepare_of(&mut node, OTHER, (3, 4), other());
    let (first, second) = (topology(2).hash(), other().hash());
    assert_eq!(node.handle(Event::Persisted(Epoch(4), first, Ok(()))), []);
    assert_eq!(node.state(), NodeState::Loading);
    node.handle(Event::Loaded(Epoch(4), Ok(Bytes(1))));
    assert_eq!(node.handle(Event::Persisted(Epoch(4), first, Ok(()))), [], "another topology of this epoch");
    let effects = node.handle(Event::Persisted(Epoch(4), second, Ok(())));
    let to = ReplyTo { session: OTHER, id: RequestId(1) };
    assert_eq!(effects, [Effect::respond(to, ResponseBody::Prepared)]);
    assert_eq!(node.handle(Event::Persisted(Epoch(4), second, Ok(()))), [], "prepared already");
}

#[test]
fn commit_is_answered_after_its_record_is_written() {
    let mut node = running();
    prepare_of(&mut node, CONSOLE, (4, 5), other());
    let hash = other().hash();
    node.handle(Event::Loaded(Epoch(5), Ok(Bytes(1))));
    node.handle(Event::Persisted(Epoch(5), hash, Ok(())));
    ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(5), hash });
    let to = ReplyTo { session: CONSOLE, id: RequestId(2) };
    let answer = Effect::respond_after_writes(to, ResponseBody::Committed);
    assert_eq!(node.handle(Event::Connected(Epoch(5), Ok(()))), [answer]);
}

#[test]
fn repeated_record_is_answered_after_earlier_writes() {
    let mut node = running();
    let learn = |node: &mut Node| {
        let learned = RecoveryAsk::Learn(Box::new(Committed::new(Epoch(5), other())));
        ask(node, OTHER, 3, RequestBody::Recovery(Box::new(learned)))
    };
    learn(&mut node);
    let to = ReplyTo { session: OTHER, id: RequestId(3) };
    let answer = ResponseBody::Recovery(RecoveryAnswer::Learned);
    assert_eq!(learn(&mut node), [Effect::respond_after_writes(to, answer)]);
}

fn exclude(node: &mut Node, session: SessionId, list: &Exclusions) -> Vec<Effect> {
    ask(node, session, 1, RequestBody::Exclude(list.clone()))
}

fn kept(session: SessionId, list: Exclusions, result: Result<(), Fault>) -> Event {
    Event::ExclusionsKept(ExclusionsKept { session, id: RequestId(1), list, result })
}

#[test]
fn lists_of_exclusions_are_written_one_after_another() {
    let write = |session, list| Effect::Disk(DiskEffect::KeepExclusions { session, id: RequestId(1), list });
    let mut both = out("pi2");
    both.merge(&out("pi3"));
    let mut node = node();
    assert_eq!(exclude(&mut node, CONSOLE, &out("pi2")), [write(CONSOLE, out("pi2"))]);
    assert_eq!(exclude(&mut node, OTHER, &out("pi3")), [], "it waits");
    let effects = node.handle(kept(CONSOLE, out("pi2"), Ok(())));
    let answer = |session| Effect::respond(ReplyTo { session, id: RequestId(1) }, ResponseBody::Excluded);
    assert_eq!(effects, [answer(CONSOLE), write(OTHER, both.clone())], "with what is on the disk");
    assert_eq!(exclude(&mut node, CONSOLE, &out("pi3")), [], "the same list again");
    assert_eq!(node.handle(kept(OTHER, both.clone(), Ok(()))), [answer(OTHER), answer(CONSOLE)]);
    assert_eq!(*node.exclusions(), both);
}

#[test]
fn failed_write_of_exclusions_is_not_part_of_the_next_one() {
    let mut node = node();
    exclude(&mut node, CONSOLE, &out("pi2"));
    exclude(&mut node, OTHER, &out("pi3"));
    let fault = Fault::new("pi1", FaultKind::StateUnwritable { reason: "full".into() });
    let effects = node.handle(kept(CONSOLE, out("pi2"), Err(fault)));
    assert!(matches!(failure(&effects), Some(FaultKind::StateUnwritable { .. })), "{effects:?}");
    let [_, Effect::Disk(DiskEffect::KeepExclusions { list, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*list, out("pi3"));
}

#[test]
fn head_that_could_not_store_the_inclusion_of_a_member_takes_requests() {
    let mut head = running();
    let mut list = Exclusions::default();
    list.say("pi2", "pi2:9999", Some("did not answer for 60 s"), "pi1 (by itself)");
    head.handle(kept(CONSOLE, list, Ok(())));
    assert_eq!(failure(&generate(&mut head, CONSOLE, 6)), None, "a vote ends its topology if it is to end");
    let refused = prepare_of(&mut head, CONSOLE, (4, 5), other());
    assert!(matches!(failure(&refused), Some(FaultKind::Excluded { .. })), "a new assignment: {refused:?}");
}

#[test]
fn waiting_lists_of_exclusions_are_bounded() {
    let mut node = node();
    let refused = (0..1000).position(|_| failure(&exclude(&mut node, OTHER, &out("pi2"))).is_some());
    assert!(refused.is_some_and(|count| count < 100), "{refused:?}");
    let effects = node.handle(kept(OTHER, out("pi2"), Ok(())));
    let answers = effects.iter().filter(|effect| matches!(effect, Effect::Session(SessionEffect::Respond { .. })));
    assert_eq!(answers.count(), refused.unwrap_or(0), "all of them");
}

#[test]
fn file_of_which_a_part_cannot_be_read_is_read_as_a_whole_before_the_next_load() {
    let distrust = Effect::Model(ModelEffect::Distrust { model: topology(2).model });
    let mut node = running();
    for is_again in [false, true] {
        let effects = node.handle(Event::Engine(Epoch(4), ReplicaEvent::Unreadable("read error at byte 7".into())));
        assert_eq!(effects.contains(&distrust), is_again, "its stored hash proves nothing any more: {effects:?}");
        assert_eq!(node.state(), NodeState::Faulted);
        // The replica comes back.
        node.running.as_mut().expect("it runs").fault = None;
    }
}
