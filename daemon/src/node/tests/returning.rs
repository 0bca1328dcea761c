//! Members that return: one that cannot be included must neither end what serves nor keep others from returning.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    ids::Epoch,
};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAnswer, RecoveryAsk, VoteReply},
};
use telemetry::NodeState;
use topology::{Exclusions, Layout};

use crate::node::{
    machine::{Node, NodeInit, Patience},
    steward::{Reply, Steward, StewardAsk, View},
    tests::{
        shape::{degraded, holds, kind, planned},
        steward::{base, bodies, steward, tell, view, views_with_inclusion},
    },
};

/// The first member's steward of three members that serve without the fourth one, their topology, and the views of all
/// four; the last one is back.
fn reduced() -> (Steward, Committed, Vec<View>) {
    let asked = base(4);
    let mut held = Committed { epoch: Epoch(5), ..asked.clone() };
    held.topology.members.pop();
    held.topology.layout = Layout::tensor_parallel(3);
    held.desired = Some(Box::new(asked.topology.clone()));
    let mut all: Vec<View> = (0..3).map(|index| view(&held, index, NodeState::Serving)).collect();
    let mut back = view(&asked, 3, NodeState::Idle);
    back.standing.as_mut().expect("it answers").committed = None;
    all.push(back);
    (steward(&held, 0), held, all)
}

/// Answers all questions of an attempt to include the last member, with `fault` to some of them; returns the kinds of
/// the requests.
fn attempt(
    steward: &mut Steward,
    now: Duration,
    asks: Vec<StewardAsk>,
    held: &Committed,
    fault: &dyn Fn(&str, &RequestBody) -> Option<FaultKind>,
) -> Vec<&'static str> {
    attempt_with(steward, now, asks, held, fault, &holds(None))
}

/// As [`attempt`], with what the last member answers about itself.
fn attempt_with(
    steward: &mut Steward,
    now: Duration,
    mut asks: Vec<StewardAsk>,
    held: &Committed,
    fault: &dyn Fn(&str, &RequestBody) -> Option<FaultKind>,
    joins: &ResponseBody,
) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    while !asks.is_empty() && kinds.len() < 60 {
        let mut next = Vec::new();
        for ask in asks {
            let (question, reply) = match ask {
                StewardAsk::Plan { question, .. } => (question, Reply::Plan(Ok(held.desired().clone()))),
                StewardAsk::Content { question, .. } => (question, Reply::Content(Ok(()))),
                StewardAsk::Node { question, address, body, .. } => {
                    kinds.push(kind(&body));
                    let fault = fault(&address, &body).map(|kind| Fault::new(&address, kind));
                    (question, Reply::Node(fault.map_or_else(|| Ok(answer(&body, held.epoch, joins)), Err)))
                }
            };
            next.extend(steward.hear(now, question, reply));
        }
        asks = next;
    }
    kinds
}

/// What a node answers that has seen this epoch; `joins` about itself.
fn answer(body: &RequestBody, epoch: Epoch, joins: &ResponseBody) -> ResponseBody {
    match body {
        RequestBody::Recovery(ask) => match &**ask {
            RecoveryAsk::Vote(vote) if vote.next.is_none() => {
                ResponseBody::Recovery(RecoveryAnswer::Vote(VoteReply::Promised { accepted: None, epoch }))
            }
            RecoveryAsk::Vote(_) => ResponseBody::Recovery(RecoveryAnswer::Vote(VoteReply::Accepted)),
            RecoveryAsk::Standing(_) => joins.clone(),
            _ => ResponseBody::Recovery(RecoveryAnswer::Learned),
        },
        RequestBody::Exclude(_) => ResponseBody::Excluded,
        RequestBody::Prepare(_) => ResponseBody::Prepared,
        RequestBody::Abort { .. } => ResponseBody::Aborted,
        _ => ResponseBody::Committed,
    }
}

fn lost() -> FaultKind {
    FaultKind::SessionLost { reason: "closed by the node".into() }
}

/// Looks once a second; returns the seconds in which a vote on the return of the last member began, and the kinds of
/// the requests that followed.
fn attempts(seconds: std::ops::Range<u64>, fault: &dyn Fn(&str, &RequestBody) -> Option<FaultKind>) -> Attempts {
    let (mut first, held, all) = reduced();
    let own = all[0].standing.clone().expect("it answers");
    let mut found = Attempts { at: Vec::new(), kinds: Vec::new() };
    for second in seconds {
        let now = Duration::from_secs(second);
        let asks = first.look(now, own.clone());
        let asks = tell(&mut first, now, &asks, &all);
        if matches!(&asks[..], [StewardAsk::Plan { .. }]) {
            found.at.push(second);
            found.kinds.extend(attempt(&mut first, now, asks, &held, fault));
        }
    }
    found
}

struct Attempts {
    at: Vec<u64>,
    kinds: Vec<&'static str>,
}

#[test]
fn member_lost_while_it_joins_ends_nothing_and_is_tried_after_growing_pauses() {
    let weak = base(4).topology.members[3].address.clone();
    let found =
        attempts(1..100, &|address, body| (address == weak && matches!(body, RequestBody::Prepare(_))).then(lost));
    assert!(!found.kinds.contains(&"learn") && !found.kinds.contains(&"commit"), "{:?}", found.kinds);
    let pauses: Vec<u64> = found.at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let [first, second, third, ..] = pauses[..] else { panic!("{:?}", found.at) };
    assert!((8..16).contains(&first) && (16..24).contains(&second) && (32..40).contains(&third), "{:?}", found.at);
}

#[test]
fn member_lost_again_after_the_decision_is_left_out_at_once() {
    let (mut first, held, mut all) = reduced();
    let weak = all[3].address.clone();
    let own = all[0].standing.clone().expect("it answers");
    let begun = (1..12).find(|second| {
        let now = Duration::from_secs(*second);
        let asks = first.look(now, own.clone());
        let asks = tell(&mut first, now, &asks, &all);
        let kinds = attempt(&mut first, now, asks, &held, &|address, body| {
            (address == weak && matches!(body, RequestBody::Commit { .. })).then(lost)
        });
        kinds.contains(&"commit") && kinds.last() == Some(&"learn")
    });
    let begun = begun.expect("others have switched, so all learn the decision");
    // The members hold the decision, which does not run, and the weak one is away for a short time.
    let chosen = Committed::new(Epoch(6), held.desired().clone());
    for (index, one) in all.iter_mut().enumerate() {
        *one = view(&chosen, index, NodeState::Idle);
    }
    all[3].standing = None;
    let own = all[0].standing.clone().expect("it answers");
    let planned = (begun + 1..begun + 8).find_map(|second| {
        let now = Duration::from_secs(second);
        let asks = first.look(now, own.clone());
        match &tell(&mut first, now, &asks, &all)[..] {
            [StewardAsk::Plan { stay, .. }] => Some(stay.len()),
            _ => None,
        }
    });
    assert_eq!(planned, Some(3));
}

#[test]
fn member_with_an_older_list_returns() {
    let (mut first, held, mut all) = reduced();
    let member = &held.desired().members[3];
    let mut list = Exclusions::default();
    list.say(
        &member.name,
        &member.address,
        Some("cannot load its shard (repair, then include it): EIO"),
        "pi1 (by itself)",
    );
    let older = list.clone();
    list.say(&member.name, &member.address, None, "op@console");
    list.say(&member.name, &member.address, Some("did not answer for 6 s"), "pi1 (by itself)");
    for (index, view) in all.iter_mut().enumerate() {
        let standing = view.standing.as_mut().expect("it answers");
        standing.exclusions = if index == 3 { older.clone() } else { list.clone() };
    }
    let own = all[0].standing.clone().expect("it answers");
    let back = all[3].standing.clone().expect("it answers");
    let joins = ResponseBody::Recovery(RecoveryAnswer::Standing(Box::new(back)));
    let kinds = (1..12).find_map(|second| {
        let now = Duration::from_secs(second);
        let asks = first.look(now, own.clone());
        let asks = tell(&mut first, now, &asks, &all);
        let is_plan = matches!(&asks[..], [StewardAsk::Plan { .. }]);
        is_plan.then(|| attempt_with(&mut first, now, asks, &held, &|_, _| None, &joins))
    });
    assert!(kinds.as_ref().is_some_and(|kinds| kinds.contains(&"commit")), "{kinds:?}");
}

#[test]
fn member_that_cannot_store_an_inclusion_does_not_end_a_return() {
    let (_, held, all) = reduced();
    let mut out = Exclusions::default();
    let member = &held.desired().members[3];
    out.say(&member.name, &member.address, Some("did not answer for 60 s"), "pi1 (by itself)");
    let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
    let committed = Some(held.clone());
    let init = NodeInit { name: "pi2".into(), epoch: held.epoch, exclusions: out, committed, ..NodeInit::default() };
    let node = Node::new(init, patience);
    let full = all[1].address.clone();
    let found = attempts(1..12, &|address, body| match body {
        RequestBody::Exclude(_) if address == full => Some(FaultKind::StateUnwritable { reason: "full".into() }),
        RequestBody::Prepare(prepare) if address == full => node.check_prepare(prepare).err(),
        _ => None,
    });
    assert!(found.kinds.contains(&"commit") && !found.kinds.contains(&"abort"), "{:?}", found.kinds);
}

#[test]
fn member_that_cannot_store_an_inclusion_does_not_end_all_recovery() {
    let (base, now) = (base(3), Duration::from_secs(5));
    let (all, _) = views_with_inclusion(&base, NodeState::Idle, 1);
    let mut first = steward(&base, 0);
    let own = all[0].standing.clone().expect("it answers");
    let asks = first.look(now, own.clone());
    let told = tell(&mut first, now, &asks, &all);
    let [StewardAsk::Node { question, body: RequestBody::Exclude(_), .. }] = &told[..] else { panic!("{told:?}") };
    let full = Fault::new("pi2", FaultKind::StateUnwritable { reason: "full".into() });
    assert_eq!(first.hear(now, *question, Reply::Node(Err(full))), []);
    let later = now + Duration::from_secs(1);
    let asks = first.look(later, own);
    let asks = tell(&mut first, later, &asks, &all);
    assert!(bodies(&asks).iter().all(|body| matches!(body, RequestBody::Prepare(_))) && asks.len() == 3, "{asks:?}");
}

#[test]
fn member_without_the_model_ends_its_return_before_a_vote() {
    let (mut first, held, all) = degraded();
    let plan = planned(&mut first, &all);
    let now = Duration::from_secs(13);
    let asks = first.hear(now, plan, Reply::Plan(Ok(held.desired().clone())));
    let [StewardAsk::Content { question, .. }] = &asks[..] else { panic!("{asks:?}") };
    let missing = Fault::new("pi4", FaultKind::ModelMissing { model: "m.gguf".into(), folders: "/models".into() });
    assert_eq!(first.hear(now, *question, Reply::Content(Err(missing))), []);
    assert!(!first.is_busy());
    let own = all[0].standing.clone().expect("it answers");
    let planned: Vec<u64> = (14..=25)
        .filter(|second| {
            let asks = first.look(Duration::from_secs(*second), own.clone());
            !tell(&mut first, Duration::from_secs(*second), &asks, &all).is_empty()
        })
        .collect();
    assert!(planned.first().is_some_and(|second| (21..=23).contains(second)), "after a pause: {planned:?}");
}

#[test]
fn member_without_the_model_does_not_keep_another_from_returning() {
    let (mut first, mut held, mut all) = degraded();
    held.topology.members.pop();
    held.topology.layout = "tp2".parse().expect("a layout");
    for view in &mut all {
        let standing = view.standing.as_mut().expect("it answers");
        standing.committed = standing.committed.is_some().then(|| held.clone());
    }
    let idle = all[2].standing.as_mut().expect("it answers");
    (idle.state, idle.committed) = (NodeState::Idle, None);
    let plan = planned(&mut first, &all);
    let now = Duration::from_secs(13);
    let asks = first.hear(now, plan, Reply::Plan(Ok(held.desired().clone())));
    let addresses: Vec<&str> = asks
        .iter()
        .map(|ask| match ask {
            StewardAsk::Content { address, .. } => address.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(addresses, [&held.desired().members[2].address, &held.desired().members[3].address]);
    let StewardAsk::Content { question, .. } = &asks[1] else { panic!("{asks:?}") };
    let missing = Fault::new("pi4", FaultKind::ModelMissing { model: "m.gguf".into(), folders: "/models".into() });
    assert_eq!(first.hear(now, *question, Reply::Content(Err(missing))), []);
    let own = all[0].standing.clone().expect("it answers");
    let stays = (14..=18).find_map(|second| {
        let asks = first.look(Duration::from_secs(second), own.clone());
        match tell(&mut first, Duration::from_secs(second), &asks, &all).as_slice() {
            [StewardAsk::Plan { stay, .. }] => Some(stay.iter().map(|one| one.member.0).collect::<Vec<_>>()),
            _ => None,
        }
    });
    assert_eq!(stays, Some(vec![0, 1, 2]), "pi3 returns without pi4");
}
