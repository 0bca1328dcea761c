//! A member that answers but cannot load its shard, or is lost each time, is voted out after a while.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    ids::{ContentRoot, Epoch},
    units::Bytes,
};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::Committed,
};
use telemetry::NodeState;
use topology::Exclusions;

use crate::node::{
    steward::{Reply, Steward, StewardAsk, View},
    tests::steward::{base, steward, tell, view},
};

/// How an attempt to bring the topology up went.
#[derive(Debug, PartialEq)]
enum BringResult {
    /// All prepared, then all committed.
    Serves,
    /// The steward paused, or nothing could be done.
    Rests,
    /// One failed.
    Fails,
    /// A topology on these members was planned.
    Plans(Vec<u16>),
}

/// Lets the steward try once. All members load, except one with a fault.
fn attempt(steward: &mut Steward, now: Duration, base: &Committed, failing: Option<(usize, FaultKind)>) -> BringResult {
    attempt_with(steward, now, base, failing, &Exclusions::default())
}

/// As [`attempt`], with this list of exclusions.
fn attempt_with(
    steward: &mut Steward,
    now: Duration,
    base: &Committed,
    failing: Option<(usize, FaultKind)>,
    list: &Exclusions,
) -> BringResult {
    let mut all = idle(base);
    let standings = all.iter_mut().filter_map(|view| view.standing.as_mut());
    standings.for_each(|standing| standing.exclusions.clone_from(list));
    attempt_on(steward, now, 0, &all, failing)
}

fn idle(base: &Committed) -> Vec<View> {
    (0..base.topology.members.len()).map(|index| view(base, index, NodeState::Idle)).collect()
}

/// As [`attempt`], with the steward of member `own` and these views.
fn attempt_on(
    steward: &mut Steward,
    now: Duration,
    own: usize,
    all: &[View],
    failing: Option<(usize, FaultKind)>,
) -> BringResult {
    let asks = steward.look(now, all[own].standing.clone().expect("it answers"));
    let mut asks = tell(steward, now, &asks, all);
    if let Some(StewardAsk::Plan { stay, .. }) = asks.first() {
        return BringResult::Plans(stay.iter().map(|one| one.member.0).collect());
    }
    let mut end = BringResult::Rests;
    while !asks.is_empty() {
        let mut next = Vec::new();
        // A member that is silent is the last one to be waited for.
        asks.sort_by_key(|ask| match (ask, &failing) {
            (StewardAsk::Content { address, .. }, Some((one, FaultKind::Timeout { .. }))) => {
                *address == all[*one].address
            }
            _ => false,
        });
        for ask in asks {
            let (question, address, body) = match ask {
                StewardAsk::Node { question, address, body, .. } => (question, address, Some(body)),
                StewardAsk::Content { question, address, .. } => (question, address, None),
                other => panic!("{other:?}"),
            };
            let place = all.iter().position(|view| view.address == address).expect("it is a member's");
            let fault = failing.as_ref().filter(|one| one.0 == place).map(|one| one.1.clone());
            let fault = fault.map(|kind| Fault::new(format!("pi{}", place + 1), kind));
            let reply = match (body, fault) {
                (None, Some(fault)) => {
                    end = BringResult::Fails;
                    Reply::Content(Err(fault))
                }
                (Some(RequestBody::Prepare(_)), Some(fault)) => {
                    end = BringResult::Fails;
                    Reply::Node(Err(fault))
                }
                (None, None) => Reply::Content(Ok(())),
                (Some(RequestBody::Prepare(_)), None) => Reply::Node(Ok(ResponseBody::Prepared)),
                (Some(RequestBody::Commit { .. }), _) => {
                    end = BringResult::Serves;
                    Reply::Node(Ok(ResponseBody::Committed))
                }
                (Some(_), _) => Reply::Node(Ok(ResponseBody::Aborted)),
            };
            next.extend(steward.hear(now, question, reply));
        }
        asks = next;
    }
    end
}

fn unreadable() -> FaultKind {
    FaultKind::ModelInvalid { model: "m.gguf".into(), reason: "read error\nat byte 7".into() }
}

#[test]
fn member_that_cannot_load_is_left_out_after_the_patience_for_absent_ones() {
    let short = FaultKind::MemoryShort { needed: Bytes(9), available: Bytes(1) };
    // Even if it is the node that leads.
    let hangs = FaultKind::Timeout { what: "hashing its model file".into(), seconds: 60 };
    let faults = [(1, unreadable(), [0, 2]), (2, short, [0, 1]), (0, unreadable(), [1, 2]), (1, hangs, [0, 2])];
    for (failing, kind, stay) in faults {
        let mut base = base(3);
        // Files are compared first.
        base.topology.content = matches!(kind, FaultKind::Timeout { .. }).then_some(ContentRoot([1; 32]));
        let mut leader = steward(&base, 0);
        let plans = (10..200).find_map(|second| {
            let now = Duration::from_secs(second);
            match attempt(&mut leader, now, &base, Some((failing, kind.clone()))) {
                BringResult::Plans(stay) => Some((second, stay)),
                BringResult::Serves => panic!("it serves with {failing}"),
                BringResult::Rests | BringResult::Fails => None,
            }
        });
        let (second, planned) = plans.expect("it is left out");
        assert!((70..90).contains(&second) && planned == stay, "{failing}: {planned:?} after {second} s");
    }
}

/// How the steward of the first member acts until second 200. The second member fails in each second for which `fails`.
fn acts(fails: impl Fn(u64) -> Option<FaultKind>, base: impl Fn(u64) -> Committed, list: &Exclusions) -> bool {
    let mut leader = steward(&base(0), 0);
    (10..200).any(|second| {
        let failing = fails(second).map(|kind| (1, kind));
        let end = attempt_with(&mut leader, Duration::from_secs(second), &base(second), failing, list);
        matches!(end, BringResult::Plans(_))
    })
}

/// Tries once a second with three members, of which `weak` is away in the seconds of `away`; returns when a topology is
/// planned, and its members.
fn planned_without(own: usize, weak: usize, away: impl Fn(u64) -> bool) -> Option<(u64, Vec<u16>)> {
    let base = base(3);
    let mut member = steward(&base, own);
    (10..300).find_map(|second| {
        let mut all = idle(&base);
        if away(second) {
            all[weak].standing = None;
        }
        let lost = FaultKind::SessionLost { reason: "closed by the node".into() };
        match attempt_on(&mut member, Duration::from_secs(second), own, &all, Some((weak, lost))) {
            BringResult::Plans(stay) => Some((second, stay)),
            _ => None,
        }
    })
}

#[test]
fn member_lost_in_each_load_is_left_out_although_it_returns() {
    // It answers for 5 s and restarts within 20 s.
    let is_away = |second: u64| second % 25 >= 5;
    let (second, stay) = planned_without(0, 1, is_away).expect("it is left out");
    assert!((70..100).contains(&second) && stay == [0, 2], "{stay:?} after {second} s");
    // It leads, so that only its absences are seen.
    let (second, stay) = planned_without(1, 0, is_away).expect("it is left out");
    assert!((70..100).contains(&second) && stay == [1, 2], "{stay:?} after {second} s");
    assert_eq!(planned_without(1, 0, |second| is_away(second) && second < 50), None, "two restarts");
}

#[test]
fn failures_of_the_past_and_of_crossing_commands_leave_no_one_out() {
    let (same, none) = (|_| base(3), Exclusions::default());
    let unreadable_until = |end: u64| move |second| (second < end).then(unreadable);
    assert!(acts(unreadable_until(100), same, &none), "it is left out if nothing else happens");
    assert!(!acts(unreadable_until(60), same, &none));
    let is_left_out = acts(|second| (second < 120 && !(62..75).contains(&second)).then(unreadable), same, &none);
    assert!(!is_left_out, "failures in a row count");
    let crossing = FaultKind::NotPrepared { epoch: Epoch(4) };
    assert!(!acts(|second| Some(if second < 60 { unreadable() } else { crossing.clone() }), same, &none));
    let is_left_out =
        acts(|_| Some(unreadable()), |second| Committed { epoch: Epoch(4 + second / 50), ..base(3) }, &none);
    assert!(!is_left_out, "failures with another topology do not count");
    // If a second member cannot load it either, the cause may be the model.
    let mut other = Exclusions::default();
    other.say("pi9", "pi9:9999", Some("cannot load its shard: read error"), "pi1 (by itself)");
    assert!(acts(|_| Some(unreadable()), same, &other), "of another topology");
    let desired = Some(Box::new(base(4).topology));
    other.say("pi4", "pi4:9999", Some("cannot load its shard: read error"), "pi1 (by itself)");
    assert!(!acts(|_| Some(unreadable()), |_| Committed { desired: desired.clone(), ..base(3) }, &other));
}
