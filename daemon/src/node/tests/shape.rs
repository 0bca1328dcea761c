//! How a steward changes a topology while it serves: members return or leave, shares are balanced.
use std::{ops::RangeInclusive, time::Duration};

use assignment::fixtures;
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, Rank},
    units::Bytes,
};
use planner::replan::replan;
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Ballot, Committed, RecoveryAnswer, RecoveryAsk, Slow, VoteReply},
};
use telemetry::NodeState;
use topology::{Exclusions, Layout, Member, Rolling, Topology, rolling::Phase};

use crate::config::Recovery;
use crate::node::{
    steward::{Question, Reply, Steward, StewardAsk, StewardSettings, View, with_shares},
    tests::steward::{base, bodies, steward, tell, view},
};

/// The first member's steward of a degraded topology, that topology, and the views of all desired members; the last one
/// is back.
pub(super) fn degraded() -> (Steward, Committed, Vec<View>) {
    let mut asked = base(4);
    asked.topology.layout = Layout::alike(2, 1, 2);
    let mut held = Committed { epoch: Epoch(5), ..asked.clone() };
    held.topology.members.pop();
    held.topology.layout = "tp2+tp1".parse().expect("a layout");
    held.desired = Some(Box::new(asked.topology.clone()));
    let mut all: Vec<View> = (0..3).map(|index| view(&held, index, NodeState::Serving)).collect();
    let mut back = view(&asked, 3, NodeState::Idle);
    let standing = back.standing.as_mut().expect("it answers");
    (standing.committed, standing.epoch) = (None, Epoch(4));
    all.push(back);
    (steward(&held, 0), held, all)
}

/// Answers the plan and the question about the returned member's model; returns the question that follows.
fn compared(steward: &mut Steward, plan: Question, wanted: &Topology) -> Question {
    let now = Duration::from_secs(13);
    let asks = steward.hear(now, plan, Reply::Plan(Ok(wanted.clone())));
    let [StewardAsk::Content { question, address, topology }] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!((address, &**topology), (&wanted.members[3].address, wanted), "only the returned member is asked");
    let asks = steward.hear(now, *question, Reply::Content(Ok(())));
    let [StewardAsk::Node { question, address, .. }] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!(address, &wanted.members[3].address);
    *question
}

/// As [`compared`], and answers that the member holds nothing; returns the questions that follow.
fn voting(steward: &mut Steward, plan: Question, wanted: &Topology) -> Vec<StewardAsk> {
    let question = compared(steward, plan, wanted);
    steward.hear(Duration::from_secs(13), question, Reply::Node(Ok(holds(None))))
}

/// The answer of an idle node that holds this topology.
pub(super) fn holds(committed: Option<Committed>) -> ResponseBody {
    let mut standing = view(&base(4), 3, NodeState::Idle).standing.expect("it answers");
    standing.committed = committed;
    ResponseBody::Recovery(RecoveryAnswer::Standing(Box::new(standing)))
}

/// Answers all questions of a vote and of the steps after it; returns the kind of request of each stage and the number
/// of nodes. Voters promise with `promise`: the proposal that they have accepted, and their epoch. A prepare at an
/// address is answered with `prepared`.
fn followed(
    steward: &mut Steward,
    mut asks: Vec<StewardAsk>,
    promise: (Option<(Ballot, Committed)>, Epoch),
    prepared: impl Fn(&str) -> Result<ResponseBody, Fault>,
) -> Vec<(&'static str, usize)> {
    let mut seen = Vec::new();
    while !asks.is_empty() && seen.len() < 12 {
        let kinds: Vec<&str> = bodies(&asks).into_iter().map(kind).collect();
        assert!(kinds.iter().all(|kind| *kind == kinds[0]), "a stage sends one kind of request: {kinds:?}");
        seen.push((kinds[0], kinds.len()));
        let mut next = Vec::new();
        for ask in &asks {
            let StewardAsk::Node { question, address, body, .. } = ask else { panic!("{ask:?}") };
            let answer = Ok(match body {
                RequestBody::Prepare(_) => {
                    next.extend(steward.hear(Duration::from_secs(14), *question, Reply::Node(prepared(address))));
                    continue;
                }
                RequestBody::Recovery(ask) => ResponseBody::Recovery(match &**ask {
                    RecoveryAsk::Vote(vote) if vote.next.is_none() => {
                        let (accepted, epoch) = promise.clone();
                        RecoveryAnswer::Vote(VoteReply::Promised { accepted, epoch })
                    }
                    RecoveryAsk::Vote(_) => RecoveryAnswer::Vote(VoteReply::Accepted),
                    _ => RecoveryAnswer::Learned,
                }),
                RequestBody::Exclude(_) => ResponseBody::Excluded,
                RequestBody::Abort { .. } => ResponseBody::Aborted,
                _ => ResponseBody::Committed,
            });
            next.extend(steward.hear(Duration::from_secs(14), *question, Reply::Node(answer)));
        }
        asks = next;
    }
    seen
}

pub(super) fn kind(body: &RequestBody) -> &'static str {
    match body {
        RequestBody::Recovery(ask) => match &**ask {
            RecoveryAsk::Vote(_) => "vote",
            RecoveryAsk::Learn(_) => "learn",
            _ => "?",
        },
        RequestBody::Exclude(_) => "exclude",
        RequestBody::Prepare(_) => "prepare",
        RequestBody::Commit { .. } => "commit",
        RequestBody::Abort { .. } => "abort",
        _ => "?",
    }
}

/// Looks once a second for `seconds`; returns the first questions that follow the members' standings.
fn watched(steward: &mut Steward, seconds: u64, all: &[View]) -> Vec<StewardAsk> {
    let own = all[0].standing.clone().expect("it answers");
    for second in 1..=seconds {
        let now = Duration::from_secs(second);
        let asks = steward.look(now, own.clone());
        let next = tell(steward, now, &asks, all);
        if !next.is_empty() {
            return next;
        }
    }
    Vec::new()
}

fn say_to_all(all: &mut [View], list: &Exclusions) {
    for view in all {
        view.standing.as_mut().expect("it answers").exclusions = list.clone();
    }
}

#[test]
fn member_that_saw_a_failed_assignment_returns_above_its_epoch() {
    let (mut first, held, mut all) = degraded();
    all[3].standing.as_mut().expect("it answers").epoch = Epoch(9);
    let plan = planned(&mut first, &all);
    let mut asks = voting(&mut first, plan, held.desired());
    let promise = ResponseBody::Recovery(RecoveryAnswer::Vote(VoteReply::Promised { accepted: None, epoch: Epoch(5) }));
    let now = Duration::from_secs(14);
    let mut accepts = Vec::new();
    for ask in asks.drain(..) {
        let StewardAsk::Node { question, .. } = ask else { panic!("{ask:?}") };
        accepts.extend(first.hear(now, question, Reply::Node(Ok(promise.clone()))));
    }
    let next = bodies(&accepts).into_iter().find_map(|body| match body {
        RequestBody::Recovery(ask) => match &**ask {
            RecoveryAsk::Vote(vote) => vote.next.as_ref().map(|next| next.epoch),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(next, Some(Epoch(10)), "{accepts:?}");
}

#[test]
fn desired_topology_is_planned_when_a_member_is_back() {
    let (mut first, held, mut all) = degraded();
    let asks = watched(&mut first, 12, &all);
    let [StewardAsk::Plan { question, desired, stay }] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!((desired, stay.len()), (held.desired(), 4));
    // The members of the running topology vote, the returned member does not.
    let votes = voting(&mut first, *question, held.desired());
    assert_eq!(bodies(&votes).len(), 3, "{votes:?}");
    let (mut first, _, _) = degraded();
    assert!(watched(&mut first, 3, &all).is_empty(), "it may leave again");
    let (mut first, _, _) = degraded();
    let mut list = Exclusions::default();
    let (name, address) = (held.desired().members[3].name.clone(), all[3].address.clone());
    list.say(&name, &address, Some("fan stuck"), "me@desk");
    say_to_all(&mut all, &list);
    assert!(watched(&mut first, 12, &all).is_empty(), "an operator excluded it");
    let (mut first, _, _) = degraded();
    list.say(&name, &address, Some("did not answer for 60 s"), "pi1 (by itself)");
    say_to_all(&mut all, &list);
    assert!(matches!(watched(&mut first, 12, &all)[..], [StewardAsk::Plan { .. }]), "it was away and is back");
    let (mut first, _, _) = degraded();
    all[1].standing.as_mut().expect("it answers").state = NodeState::Faulted;
    assert!(watched(&mut first, 12, &all).is_empty(), "recovery has precedence");
}

#[test]
fn only_changed_replica_loads_next_topology_while_serving() {
    let (mut first, held, all) = degraded();
    let plan = planned(&mut first, &all);
    let votes = voting(&mut first, plan, held.desired());
    let seen = followed(&mut first, votes, (None, held.epoch), |_| Ok(ResponseBody::Prepared));
    // Voters, excluded nodes, then the changed replica alone loads, and all members learn.
    let expected = [("vote", 3), ("vote", 3), ("exclude", 4), ("prepare", 2), ("commit", 2), ("learn", 4)];
    assert_eq!(seen, expected);
}

/// The plan that follows when the last member of a degraded topology is back.
pub(super) fn planned(steward: &mut Steward, all: &[View]) -> Question {
    let asks = watched(steward, 12, all);
    let [StewardAsk::Plan { question, .. }] = &asks[..] else { panic!("{asks:?}") };
    *question
}

#[test]
fn member_that_got_another_topology_while_it_compared_its_file_keeps_it() {
    let lost = Fault::new("pi4", FaultKind::SessionLost { reason: "closed".into() });
    for answer in [Ok(holds(Some(base(1)))), Err(lost)] {
        let (mut first, held, all) = degraded();
        let plan = planned(&mut first, &all);
        let question = compared(&mut first, plan, held.desired());
        assert_eq!(first.hear(Duration::from_secs(13), question, Reply::Node(answer)), [], "no vote");
        assert!(!first.is_busy());
    }
}

#[test]
fn plan_that_leaves_out_the_returned_member_changes_nothing() {
    let (mut first, held, all) = degraded();
    let plan = planned(&mut first, &all);
    assert_eq!(first.hear(Duration::from_secs(13), plan, Reply::Plan(Ok(held.topology))), []);
    assert!(!first.is_busy());
}

#[test]
fn vote_without_a_majority_does_not_keep_members_out() {
    let (mut first, held, mut all) = degraded();
    all[1].standing.as_mut().expect("it answers").accepted = true;
    let plan = planned(&mut first, &all);
    let votes = voting(&mut first, plan, held.desired());
    // The earlier proposal has the same members in other shares, so the returned member is not part of the decision.
    let mut earlier = Committed { epoch: Epoch(7), ..held.clone() };
    earlier.topology.members[0].weight = 3;
    let promise = (Some((Ballot { round: 1, member: 1 }, earlier)), Epoch(7));
    let seen = followed(&mut first, votes, promise, |_| Ok(ResponseBody::Prepared));
    let expected = [("vote", 3), ("vote", 3), ("exclude", 3), ("prepare", 2), ("commit", 2), ("learn", 3)];
    assert_eq!(seen, expected, "only the members of the decision learn it");
}

/// The next plan after the pause that follows a failed attempt.
fn planned_again(steward: &mut Steward, all: &[View]) -> Question {
    let own = all[0].standing.clone().expect("it answers");
    let plan = (15..90).map(Duration::from_secs).find_map(|now| {
        let asks = steward.look(now, own.clone());
        match tell(steward, now, &asks, all)[..] {
            [StewardAsk::Plan { question, .. }] => Some(question),
            _ => None,
        }
    });
    plan.expect("it tries again")
}

#[test]
fn decision_whose_prepare_fails_is_learned_unless_an_operator_assigns() {
    let operator = FaultKind::Superseded { epoch: Epoch(7), by: "a console".into() };
    for (answer, last) in [(Ok(ResponseBody::Excluded), "learn"), (Err(Fault::new("pi4", operator)), "abort")] {
        let (mut first, held, all) = degraded();
        let plan = planned(&mut first, &all);
        let votes = voting(&mut first, plan, held.desired());
        let seen = followed(&mut first, votes, (None, held.epoch), |_| answer.clone());
        let kinds: Vec<&str> = seen.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds[..5], ["vote", "vote", "exclude", "prepare", "abort"]);
        assert_eq!((kinds.last(), first.is_busy()), (Some(&last), false));
        // Superseded again, the decision meets an epoch that an assignment has left behind.
        if last == "abort" {
            let plan = planned_again(&mut first, &all);
            let votes = voting(&mut first, plan, held.desired());
            let seen = followed(&mut first, votes, (None, held.epoch), |_| answer.clone());
            assert_eq!(seen.last().map(|(kind, _)| *kind), Some("learn"));
        }
    }
}

/// The sizes of the topologies that are planned when the members stay in these states from one second to another. No
/// plan succeeds.
fn plans(steward: &mut Steward, seconds: RangeInclusive<u64>, all: &[View]) -> Vec<usize> {
    let own = all[0].standing.clone().expect("it answers");
    let mut sizes = Vec::new();
    for now in seconds.map(Duration::from_secs) {
        let asks = steward.look(now, own.clone());
        for ask in tell(steward, now, &asks, all) {
            if let StewardAsk::Plan { question, stay, .. } = ask {
                sizes.push(stay.len());
                let reason = "it does not fit".into();
                steward.hear(now, question, Reply::Plan(Err(FaultKind::TopologyInvalid { reason })));
            }
        }
    }
    sizes
}

fn blame(view: &mut View, rank: u16) {
    let slow = Slow { rank: Rank(rank), percent: 60, seconds: 60 };
    view.standing.as_mut().expect("it answers").slow = Some(slow);
}

#[test]
fn members_return_while_a_straggler_stays() {
    // The model does not fit without the straggler.
    let (mut first, _, mut all) = degraded();
    blame(&mut all[0], 1);
    let sizes = plans(&mut first, 1..=12, &all);
    assert!(sizes.contains(&2) && sizes.contains(&4), "{sizes:?}");
    // Two ranks blame each other.
    let (mut first, _, mut all) = degraded();
    blame(&mut all[0], 1);
    blame(&mut all[1], 0);
    assert!(plans(&mut first, 1..=12, &all).contains(&4));
}

#[test]
fn members_return_while_an_excluded_straggler_cannot_be_tried_again() {
    let asked = base(4);
    let reduced = |epoch: u64, members: &[usize]| {
        let mut held = Committed { epoch: Epoch(epoch), ..asked.clone() };
        held.topology.layout = Layout::tensor_parallel(members.len() as u16);
        held.topology.members = members.iter().map(|index| asked.topology.members[*index].clone()).collect();
        held.desired = Some(Box::new(asked.topology.clone()));
        held
    };
    // pi3 is away, then pi4 is excluded as a straggler.
    let held = reduced(5, &[0, 1, 3]);
    let (name, own) = (held.topology.members[0].name.clone(), held.topology.members[0].address.clone());
    let recovery = Recovery { enabled: true, retry_slow: Some(Duration::from_secs(600)), ..Recovery::default() };
    let mut first = Steward::new(StewardSettings { name, listen: Some(own.clone()), own, recovery, known: Vec::new() });
    let mut all: Vec<View> = (0..3).map(|index| view(&held, index, NodeState::Serving)).collect();
    all.insert(2, View { standing: None, ..view(&asked, 2, NodeState::Idle) });
    [0, 1].into_iter().for_each(|index| blame(&mut all[index], 2));
    assert_eq!(plans(&mut first, 1..=4, &all), [2]);
    let rest = reduced(7, &[0, 1]);
    let idle = [2, 3].map(|index| {
        let mut idle = view(&asked, index, NodeState::Idle);
        idle.standing.as_mut().expect("it answers").committed = None;
        idle
    });
    let mut all: Vec<View> = (0..2).map(|index| view(&rest, index, NodeState::Serving)).chain(idle).collect();
    let mut list = Exclusions::default();
    list.say(&asked.topology.members[3].name, &all[3].address, Some("delayed its peers"), "pi1 (by itself)");
    say_to_all(&mut all, &list);
    all[3].standing.as_mut().expect("it answers").trouble = Some("it is hot".into());
    // It stays hot, or is switched off.
    for seconds in [700..=712, 800..=812] {
        assert!(plans(&mut first, seconds, &all).contains(&3));
        all[3].standing = None;
    }
}

fn restarting(target: &View, before: Option<u64>) -> Rolling {
    let name = target.standing.as_ref().map_or_else(String::new, |one| one.name.clone());
    let targets = vec![(name, target.address.clone())];
    Rolling { targets, done: 0, before, phase: Phase::Runs, drain_ms: 5, by: "me".into(), revision: 1 }
}

#[test]
fn member_that_left_for_its_restart_returns_after_it() {
    for (before, returns) in [(Some(1), false), (Some(9), true), (None, true)] {
        let (mut first, _, mut all) = degraded();
        let rolling = restarting(&all[3], before);
        all[0].standing.as_mut().expect("it answers").rolling = Some(rolling);
        assert_eq!(!watched(&mut first, 12, &all).is_empty(), returns, "run 1 answers, {before:?} is to end");
    }
}

#[test]
fn member_leaves_without_the_memory_of_serving_shards() {
    let base = base(3);
    let mut all: Vec<View> = (0..3).map(|index| view(&base, index, NodeState::Serving)).collect();
    for (view, free) in all.iter_mut().zip([700, 0, 200]) {
        let standing = view.standing.as_mut().expect("it answers");
        (standing.free, standing.shard) = (Bytes(free), Bytes(300));
    }
    let now = Duration::from_secs(5);
    let mut own = steward(&base, 0);
    let asks = own.leave(now, all[0].standing.clone().expect("it answers"), "pi9");
    assert!(asks.is_empty(), "no member");
    let asks = own.leave(now, all[0].standing.clone().expect("it answers"), "pi2");
    let asks = tell(&mut own, now, &asks, &all);
    let [StewardAsk::Plan { question, stay, .. }] = &asks[..] else { panic!("{asks:?}") };
    let free: Vec<(usize, u64)> = stay.iter().map(|one| (one.member.index(), one.free.0)).collect();
    assert_eq!(free, [(0, 400), (2, 1)], "0 would mean unknown");
    assert_eq!(own.hear(now, *question, Reply::Plan(Err(FaultKind::Draining))), []);
    assert!(!own.is_busy());
}

/// Two members, of which the first computes for a shorter time.
fn unbalanced() -> (Committed, Vec<View>) {
    let base = base(2);
    let mut all: Vec<View> = (0..2).map(|index| view(&base, index, NodeState::Serving)).collect();
    for (view, busy) in all.iter_mut().zip([600, 1000]) {
        view.standing.as_mut().expect("it answers").busy = Some(busy);
    }
    (base, all)
}

#[test]
fn shares_are_proposed_for_unequal_compute_times() {
    let (base, mut all) = unbalanced();
    let mut off = steward(&base, 0);
    assert!(watched(&mut off, 12, &all).is_empty(), "rebalancing is off");
    let mut first = balancing(&base);
    let asks = watched(&mut first, 12, &all);
    let [StewardAsk::Plan { question, desired, stay }] = &asks[..] else { panic!("{asks:?}") };
    let weights: Vec<u32> = desired.members.iter().map(|member| member.weight).collect();
    assert_eq!((weights, stay.len()), (vec![625, 375], 2));
    let votes = first.hear(Duration::from_secs(13), *question, Reply::Plan(Ok(desired.clone())));
    assert_eq!(bodies(&votes).into_iter().map(kind).collect::<Vec<_>>(), ["vote", "vote"]);
    let rolling = restarting(&all[1], None);
    all[0].standing.as_mut().expect("it answers").rolling = Some(rolling);
    assert!(watched(&mut balancing(&base), 12, &all).is_empty(), "a rolling restart has precedence");
}

#[test]
fn shares_that_do_not_fit_are_not_voted_on() {
    for (mib, voters) in [(0, 2), (2000, 2), (200, 0)] {
        let (base, mut all) = unbalanced();
        all[0].standing.as_mut().expect("it answers").free = Bytes(mib << 20);
        let mut first = balancing(&base);
        let asks = watched(&mut first, 12, &all);
        let [StewardAsk::Plan { question, desired, stay }] = &asks[..] else { panic!("{asks:?}") };
        let planned = replan(desired, stay, &fixtures::sizes());
        let planned = planned.map_err(|reason| FaultKind::TopologyInvalid { reason });
        let votes = first.hear(Duration::from_secs(13), *question, Reply::Plan(planned));
        assert_eq!((votes.len(), first.is_busy()), (voters, voters > 0), "{mib} MiB are free: {votes:?}");
    }
}

fn balancing(base: &Committed) -> Steward {
    let member = &base.topology.members[0];
    let recovery = Recovery { enabled: true, rebalance_after: Some(Duration::from_secs(60)), ..Recovery::default() };
    let (name, own) = (member.name.clone(), member.address.clone());
    Steward::new(StewardSettings { name, listen: Some(own.clone()), own, recovery, known: Vec::new() })
}

#[test]
fn absent_members_are_scaled_like_those_of_their_stage() {
    let weights = |desired: &[u32], now: &[(usize, u32)], layout: Layout| -> Vec<u32> {
        let mut wanted = base(desired.len() as u16).topology;
        wanted.layout = layout;
        wanted.members.iter_mut().zip(desired).for_each(|(member, weight)| member.weight = *weight);
        let members = now.iter().map(|(index, weight)| Member { weight: *weight, ..wanted.members[*index].clone() });
        let now = Topology { members: members.collect(), ..wanted.clone() };
        with_shares(&wanted, &now).members.iter().map(|member| member.weight).collect()
    };
    let tp4 = Layout::tensor_parallel(4);
    assert_eq!(weights(&[1; 4], &[(0, 300), (1, 300), (3, 400)], tp4), [300, 300, 333, 400]);
    assert_eq!(weights(&[2, 2, 4, 4], &[(0, 300), (1, 300), (2, 600)], tp4), [300, 300, 600, 600]);
    let dp2 = Layout::alike(2, 1, 2);
    assert_eq!(weights(&[1; 4], &[(0, 600), (1, 400), (2, 1)], dp2), [600, 400, 1, 1], "each stage has its own scale");
    assert_eq!(weights(&[1; 4], &[(0, 600), (1, 400)], dp2), [600, 400, 1, 1], "no member of the stage is present");
    assert_eq!(weights(&[1000, 1000, 1, 1], &[(0, 1), (1, 1), (2, 1)], tp4), [1; 4], "a weight is at least 1");
}

#[test]
fn missed_desired_topology_is_learned_despite_slow_ranks() {
    let (_, held, mut all) = degraded();
    all.pop();
    let forgot = Committed { desired: None, ..held.clone() };
    let own = all[0].standing.as_mut().expect("it answers");
    own.committed = Some(forgot);
    own.slow = Some(Slow { rank: Rank(1), percent: 50, seconds: 60 });
    let asks = watched(&mut steward(&held, 0), 12, &all);
    let [RequestBody::Recovery(ask)] = bodies(&asks)[..] else { panic!("{asks:?}") };
    assert!(matches!(&**ask, RecoveryAsk::Learn(next) if next.desired == held.desired), "{ask:?}");
}
