//! Decisions of a node from the standings of the others.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex},
    planted::{Planted, plant},
    units::Bytes,
};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAnswer, RecoveryAsk, Standing},
};
use telemetry::NodeState;
use topology::{Exclusions, Layout};

use crate::config::Recovery;
use crate::node::steward::{Decision, Reply, Rules, Steward, StewardAsk, StewardSettings, View, decide};

pub(super) const RULES: Rules = Rules { exclude_after: Some(Duration::from_secs(60)), witness: None, failing: None };

pub(crate) fn base(count: u16) -> Committed {
    Committed::new(Epoch(4), super::topology(count))
}

pub(crate) fn view(base: &Committed, index: usize, state: NodeState) -> View {
    let member = &base.topology.members[index];
    let standing = Standing {
        name: member.name.clone(),
        instance: 1,
        state,
        epoch: base.epoch,
        committed: Some(base.clone()),
        accepted: false,
        forgets: false,
        unloaded: None,
        idle: None,
        free: Bytes(0),
        shard: Bytes(0),
        supervised: true,
        takes_over: false,
        exclusions: Exclusions::default(),
        rolling: None,
        heard: Vec::new(),
        slow: None,
        busy: None,
        trouble: None,
    };
    View { standing: Some(standing), address: member.address.clone(), lost: Duration::ZERO, is_unstable: false }
}

fn away(base: &Committed, index: usize, seconds: u64) -> View {
    View { standing: None, lost: Duration::from_secs(seconds), ..view(base, index, NodeState::Idle) }
}

/// All members are idle, except those that have been away for the given seconds.
fn views(base: &Committed, gone: &[(usize, u64)]) -> Vec<View> {
    let views = (0..base.topology.members.len()).map(|index| match gone.iter().find(|(gone, _)| *gone == index) {
        Some((_, seconds)) => away(base, index, *seconds),
        None => view(base, index, NodeState::Idle),
    });
    views.collect()
}

fn members(list: &[u16]) -> Vec<MemberIndex> {
    list.iter().copied().map(MemberIndex).collect()
}

#[track_caller]
fn check_waits(decision: &Decision, what: &str) {
    assert!(matches!(decision, Decision::Wait(reason) if reason.contains(what)), "{decision:?}");
}

#[test]
fn first_idle_member_leads_once_all_members_are_back() {
    let base = base(4);
    let all = views(&base, &[]);
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Bring(members(&[0, 1, 2, 3])));
    check_waits(&decide(MemberIndex(2), &base, &all, &RULES), "pi1 brings");
    let mut forgot = all.clone();
    forgot[0].standing.as_mut().expect("it answers").committed = None;
    assert_eq!(decide(MemberIndex(1), &base, &forgot, &RULES), Decision::Bring(members(&[0, 1, 2, 3])));
    let mut busy = all.clone();
    busy[3].standing.as_mut().expect("it answers").state = NodeState::Draining;
    check_waits(&decide(MemberIndex(0), &base, &busy, &RULES), "pi4 is draining");
    check_waits(&decide(MemberIndex(0), &base, &views(&base, &[(2, 59)]), &RULES), "waits for pi3");
}

#[test]
fn member_voted_out_meanwhile_makes_the_others_vote() {
    let base = base(4);
    let mut all = views(&base, &[]);
    let out = all[3].standing.as_mut().expect("it answers");
    (out.committed, out.epoch) = (None, base.epoch.next());
    let again = Decision::Propose { stay: members(&[0, 1, 2, 3]), lost: Vec::new(), granted: 0 };
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), again);
    check_waits(&decide(MemberIndex(1), &base, &all, &RULES), "pi1 takes over");
    all[1] = away(&base, 1, 3);
    check_waits(&decide(MemberIndex(0), &base, &all, &RULES), "waits for pi2");
}

#[test]
fn replicas_recover_separately_and_serving_members_rest() {
    let mut base = base(4);
    base.topology.layout = Layout::alike(2, 1, 2);
    let mut all = views(&base, &[]);
    assert_eq!(decide(MemberIndex(2), &base, &all, &RULES), Decision::Bring(members(&[2, 3])));
    for serves in [0, 1] {
        all[serves] = view(&base, serves, NodeState::Serving);
    }
    assert_eq!(decide(MemberIndex(2), &base, &all, &RULES), Decision::Bring(members(&[2, 3])));
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Rest);
    all[3] = away(&base, 3, 100);
    // The survivor of the broken replica is useful in a topology of three, which the others vote for.
    let lost = vec![(MemberIndex(3), "did not answer for 100 s".to_owned())];
    let stay = members(&[0, 1, 2]);
    assert_eq!(decide(MemberIndex(2), &base, &all, &RULES), Decision::Propose { stay, lost, granted: 0 });
    let never = Rules { exclude_after: None, ..RULES };
    check_waits(&decide(MemberIndex(2), &base, &all, &never), "waits for");
    // A node that an operator excluded is left to the operator.
    let (name, address) = (&base.topology.members[3].name, &base.topology.members[3].address);
    let standing = all[2].standing.as_mut().expect("it answers");
    standing.exclusions.say(name, address, Some("fan stuck"), "me@desk");
    check_waits(&decide(MemberIndex(2), &base, &all, &RULES), "others serve");
}

#[test]
fn majority_continues_without_a_lost_member_led_by_the_lowest() {
    let base = base(4);
    let headless = views(&base, &[(0, 61)]);
    let lost = vec![(MemberIndex(0), "did not answer for 61 s".to_owned())];
    let stay = members(&[1, 2, 3]);
    assert_eq!(decide(MemberIndex(1), &base, &headless, &RULES), Decision::Propose { stay, lost, granted: 0 });
    check_waits(&decide(MemberIndex(2), &base, &headless, &RULES), "pi2 takes over");
    let never = Rules { exclude_after: None, ..RULES };
    check_waits(&decide(MemberIndex(1), &base, &headless, &never), "waits for pi1");
    check_waits(&decide(MemberIndex(2), &base, &views(&base, &[(0, 99), (1, 99)]), &RULES), "2 of 4 votes");
    check_waits(&decide(MemberIndex(2), &base, &views(&base, &[(0, 99), (1, 3)]), &RULES), "waits for pi2");
}

#[test]
fn last_of_two_nodes_needs_the_witness_or_an_operator() {
    let base = base(2);
    let alone = views(&base, &[(0, 99)]);
    check_waits(&decide(MemberIndex(1), &base, &alone, &RULES), "1 of 2 votes");
    let with = |answers| Rules { witness: Some(answers), ..RULES };
    check_waits(&decide(MemberIndex(1), &base, &alone, &with(false)), "1 of 3 votes");
    assert!(matches!(decide(MemberIndex(1), &base, &alone, &with(true)), Decision::Propose { granted: 0, .. }));
    let mut told = views(&base, &[(0, 1)]);
    told[1].standing.as_mut().expect("it answers").takes_over = true;
    assert!(matches!(decide(MemberIndex(1), &base, &told, &RULES), Decision::Propose { granted: 1, .. }));
}

#[test]
fn members_that_moved_are_voted_in_at_their_new_addresses() {
    let base = base(3);
    let mut swapped = views(&base, &[]);
    let (one, two) = (swapped[1].address.clone(), swapped[2].address.clone());
    (swapped[1].address, swapped[2].address) = (two, one);
    let all = Decision::Propose { stay: members(&[0, 1, 2]), lost: Vec::new(), granted: 0 };
    assert_eq!(decide(MemberIndex(0), &base, &swapped, &RULES), all);
}

#[test]
fn members_that_moved_are_voted_in_without_a_lost_one_of_another_replica() {
    let mut base = base(4);
    base.topology.layout = Layout::alike(2, 1, 2);
    let mut all = views(&base, &[(3, 59)]);
    all[1].address = "127.0.0.99:9999".into();
    check_waits(&decide(MemberIndex(0), &base, &all, &RULES), "waits for pi4");
    all[3].lost = Duration::from_secs(61);
    let lost = vec![(MemberIndex(3), "did not answer for 61 s".to_owned())];
    let stay = members(&[0, 1, 2]);
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Propose { stay, lost, granted: 0 });
    check_waits(&decide(MemberIndex(2), &base, &all, &RULES), "pi1 takes over");
}

#[test]
fn later_topology_and_a_started_vote_have_precedence() {
    let base = base(3);
    let mut all = views(&base, &[]);
    all[2].standing.as_mut().expect("it answers").accepted = true;
    assert!(matches!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Propose { .. }));
    let later = Committed { epoch: Epoch(9), ..base.clone() };
    all[1].standing.as_mut().expect("it answers").committed = Some(later.clone());
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Learn(later));
}

#[test]
fn excluded_member_is_gone_at_once_and_decides_nothing() {
    let base = base(4);
    let mut all = views(&base, &[]);
    let list = &mut all[0].standing.as_mut().expect("it answers").exclusions;
    list.say("pi4", "x:1", Some("hot"), "me@here");
    let lost = vec![(MemberIndex(3), "hot".to_owned())];
    let stay = members(&[0, 1, 2]);
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Propose { stay, lost, granted: 0 });
    assert_eq!(decide(MemberIndex(3), &base, &all, &RULES), Decision::Rest);
}

#[test]
fn member_that_noticed_nothing_restarts_with_its_replica() {
    let base = base(3);
    let mut all = views(&base, &[]);
    for broken in [0, 1] {
        all[broken] = view(&base, broken, NodeState::Faulted);
    }
    // A link between pi1 and pi2 was reset; those of pi3 are intact.
    all[2] = view(&base, 2, NodeState::Ready);
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Bring(members(&[0, 1, 2])));
    check_waits(&decide(MemberIndex(1), &base, &all, &RULES), "pi1 brings");
    plant(Some(Planted::UntoldFault));
    check_waits(&decide(MemberIndex(0), &base, &all, &RULES), "pi3 is ready");
    plant(None);
}

#[test]
fn group_with_a_role_is_led_by_a_member_that_does_not_serve() {
    let mut base = base(3);
    base.topology.layout = "prefill:tp1+decode:tp2".parse().expect("it is a layout");
    let mut all = views(&base, &[]);
    all[0] = view(&base, 0, NodeState::Ready);
    all[1] = view(&base, 1, NodeState::Faulted);
    assert_eq!(decide(MemberIndex(1), &base, &all, &RULES), Decision::Bring(members(&[0, 1, 2])));
    check_waits(&decide(MemberIndex(2), &base, &all, &RULES), "pi2 brings");
    plant(Some(Planted::ServingLeader));
    check_waits(&decide(MemberIndex(1), &base, &all, &RULES), "pi1 brings");
    plant(None);
}

pub(in crate::node) fn steward(base: &Committed, own: usize) -> Steward {
    let member = &base.topology.members[own];
    let recovery = Recovery { enabled: true, exclude_after: RULES.exclude_after, ..Recovery::default() };
    let (name, own) = (member.name.clone(), member.address.clone());
    Steward::new(StewardSettings { name, listen: Some(own.clone()), own, recovery, known: Vec::new() })
}

/// Answers all questions about members' standings; returns the next questions.
pub(in crate::node) fn tell(
    steward: &mut Steward,
    now: Duration,
    asks: &[StewardAsk],
    views: &[View],
) -> Vec<StewardAsk> {
    let mut next = Vec::new();
    for ask in asks {
        let StewardAsk::Node { question, address, .. } = ask else { panic!("{ask:?}") };
        let view = views.iter().find(|view| view.address == *address).expect("it is a member's");
        let standing =
            view.standing.clone().map(|standing| ResponseBody::Recovery(RecoveryAnswer::Standing(Box::new(standing))));
        let answer = standing.ok_or_else(lost);
        next.extend(steward.hear(now, *question, Reply::Node(answer)));
    }
    next
}

fn lost() -> Fault {
    Fault::new("pi2", FaultKind::SessionLost { reason: "closed by the node".into() })
}

pub(in crate::node) fn bodies(asks: &[StewardAsk]) -> Vec<&RequestBody> {
    fn body(ask: &StewardAsk) -> &RequestBody {
        match ask {
            StewardAsk::Node { body, .. } => body,
            other => panic!("{other:?} is not a question to a node"),
        }
    }
    asks.iter().map(body).collect()
}

#[test]
fn recovery_is_aborted_on_all_members_at_the_first_failure() {
    for fault in [None, Some(Planted::PatientAbort)] {
        plant(fault);
        let (base, now) = (base(3), Duration::from_secs(1));
        let all = views(&base, &[]);
        let mut steward = steward(&base, 0);
        let asks = steward.look(now, all[0].standing.clone().expect("it answers"));
        let prepares = tell(&mut steward, now, &asks, &all);
        assert!(bodies(&prepares).iter().all(|body| matches!(body, RequestBody::Prepare(_))), "{prepares:?}");
        let mut commits = Vec::new();
        for ask in &prepares {
            let StewardAsk::Node { question, .. } = ask else { panic!("{ask:?}") };
            commits.extend(steward.hear(now, *question, Reply::Node(Ok(ResponseBody::Prepared))));
        }
        assert!(bodies(&commits).iter().all(|body| matches!(body, RequestBody::Commit { .. })), "{commits:?}");
        let StewardAsk::Node { question, .. } = &commits[1] else { panic!("{commits:?}") };
        let aborts = steward.hear(now, *question, Reply::Node(Err(lost())));
        assert_eq!(aborts.len(), if fault.is_none() { 3 } else { 0 }, "the others would wait for links for 15 s");
        assert!(bodies(&aborts).iter().all(|body| matches!(body, RequestBody::Abort { .. })), "{aborts:?}");
        plant(None);
    }
}

#[test]
fn wiped_node_recalls_the_topology_of_a_majority() {
    let (base, now) = (base(4), Duration::from_secs(5));
    let mut all = views(&base, &[(1, 1), (3, 1)]);
    for index in [0, 2] {
        all[index].standing.as_mut().expect("it answers").state = NodeState::Ready;
    }
    all[0].standing.as_mut().expect("it answers").forgets = true;
    let mut wiped = steward(&base, 0);
    let own = all[0].standing.clone().expect("it answers");
    let asks = wiped.look(now, own.clone());
    assert!(tell(&mut wiped, now, &asks, &all).is_empty(), "three of four may have voted without the one that answers");
    all[3] = view(&base, 3, NodeState::Ready);
    let later = now + Duration::from_secs(2);
    let asks = wiped.look(later, own.clone());
    let asks = tell(&mut wiped, later, &asks, &all);
    let recall = RequestBody::Recovery(Box::new(RecoveryAsk::Recall(Box::new(base.clone()))));
    assert_eq!(bodies(&asks), [&recall]);
    // A started vote may have counted this node's answer.
    all[2].standing.as_mut().expect("it answers").accepted = true;
    let last = later + Duration::from_secs(2);
    let asks = wiped.look(last, own);
    assert!(tell(&mut wiped, last, &asks, &all).is_empty());
}

#[test]
fn lone_member_of_a_replica_gets_back_its_lost_topology() {
    let layouts = [Layout::alike(2, 1, 1), "prefill:tp1+decode:tp1".parse().expect("it is a layout")];
    layouts.into_iter().for_each(check_that_a_lone_member_gets_its_topology_back);
}

fn check_that_a_lone_member_gets_its_topology_back(layout: Layout) {
    let mut base = base(2);
    base.topology.layout = layout;
    let now = Duration::from_secs(5);
    let mut all = [view(&base, 0, NodeState::Ready), view(&base, 1, NodeState::Idle)];
    let wiped = all[1].standing.as_mut().expect("it answers");
    (wiped.committed, wiped.epoch) = (None, Epoch(0));
    let own = all[0].standing.clone().expect("it answers");
    let mut serving = steward(&base, 0);
    let asks = serving.look(now, own.clone());
    let asks = tell(&mut serving, now, &asks, &all);
    let learn = RequestBody::Recovery(Box::new(RecoveryAsk::Learn(Box::new(base.clone()))));
    assert_eq!(bodies(&asks), [&learn]);
    assert!(matches!(&asks[0], StewardAsk::Node { address, .. } if *address == all[1].address), "{asks:?}");
    // A later assignment took it away.
    all[1].standing.as_mut().expect("it answers").epoch = base.epoch.next();
    let later = now + Duration::from_secs(9);
    let asks = serving.look(later, own);
    assert_eq!(asks.len(), 2, "both members are asked for their standings");
    assert!(tell(&mut serving, later, &asks, &all).is_empty());
}

/// All members are in a state; the last one is included again, which `behind` has missed.
pub(super) fn views_with_inclusion(base: &Committed, state: NodeState, behind: usize) -> (Vec<View>, Exclusions) {
    let last = base.topology.members.last().expect("there are members");
    let mut early = Exclusions::default();
    early.say(&last.name, &last.address, Some("hot"), "me@desk");
    let mut late = early.clone();
    late.say(&last.name, &last.address, None, "me@desk");
    let mut all = views(base, &[]);
    for (index, view) in all.iter_mut().enumerate() {
        let standing = view.standing.as_mut().expect("it answers");
        standing.state = state;
        standing.exclusions = if index == behind { early.clone() } else { late.clone() };
    }
    (all, late)
}

#[test]
fn member_that_missed_an_inclusion_gets_the_list() {
    let (base, now) = (base(3), Duration::from_secs(5));
    for state in [NodeState::Ready, NodeState::Idle] {
        let (all, list) = views_with_inclusion(&base, state, 1);
        let mut first = steward(&base, 0);
        let asks = first.look(now, all[0].standing.clone().expect("it answers"));
        let asks = tell(&mut first, now, &asks, &all);
        assert_eq!(bodies(&asks), [&RequestBody::Exclude(list)], "all are {state:?}");
        assert!(matches!(&asks[0], StewardAsk::Node { address, .. } if *address == all[1].address), "{asks:?}");
    }
}

#[test]
fn missed_inclusion_in_one_replica_does_not_stop_another() {
    let mut base = base(4);
    base.topology.layout = Layout::alike(2, 1, 2);
    let now = Duration::from_secs(5);
    let (all, list) = views_with_inclusion(&base, NodeState::Idle, 2);
    for (own, is_behind) in [(0, false), (2, true)] {
        let mut leader = steward(&base, own);
        let asks = leader.look(now, all[own].standing.clone().expect("it answers"));
        let asks = tell(&mut leader, now, &asks, &all);
        if is_behind {
            assert_eq!(bodies(&asks), [&RequestBody::Exclude(list.clone())]);
        } else {
            assert_eq!(asks.len(), 2, "both members of its replica prepare");
            assert!(bodies(&asks).iter().all(|body| matches!(body, RequestBody::Prepare(_))), "{asks:?}");
        }
    }
}

#[test]
fn wiped_member_of_two_recalls_from_the_other_and_a_single_one_from_the_absent() {
    let mut held = base(2);
    let recall = |held: &Committed| RequestBody::Recovery(Box::new(RecoveryAsk::Recall(Box::new(held.clone()))));
    let now = Duration::from_secs(5);
    let forgetful = |held: &Committed| {
        let mut own = view(held, 0, NodeState::Ready);
        own.standing.as_mut().expect("it answers").forgets = true;
        own
    };
    let all = [forgetful(&held), view(&held, 1, NodeState::Ready)];
    let mut wiped = steward(&held, 0);
    let asks = wiped.look(now, all[0].standing.clone().expect("it answers"));
    assert_eq!(bodies(&tell(&mut wiped, now, &asks, &all)), [&recall(&held)]);
    // The topology of one member, whose desired topology has two.
    let mut absent = view(&held, 1, NodeState::Idle);
    held.desired = Some(Box::new(held.topology.clone()));
    held.topology.members.pop();
    held.topology.layout = Layout::tensor_parallel(1);
    let own = forgetful(&held);
    let standing = absent.standing.as_mut().expect("it answers");
    standing.committed = None;
    for (epoch, answers, recalls) in [(4, true, true), (5, true, false), (4, false, false)] {
        absent.standing.as_mut().expect("it answers").epoch = Epoch(epoch);
        let gone = View { standing: None, ..absent.clone() };
        let all = [own.clone(), if answers { absent.clone() } else { gone }];
        let mut wiped = steward(&held, 0);
        let asks = wiped.look(now, own.standing.clone().expect("it answers"));
        let next = tell(&mut wiped, now, &asks, &all);
        let expected = recall(&held);
        assert_eq!(bodies(&next), if recalls { vec![&expected] } else { vec![] }, "epoch {epoch}, answers: {answers}");
    }
}

#[test]
fn absent_member_gets_the_list_that_excludes_it_and_a_full_disk_does_not_stop_other_repairs() {
    let mut held = base(2);
    let absent = view(&held, 1, NodeState::Idle);
    held.desired = Some(Box::new(held.topology.clone()));
    held.topology.members.pop();
    held.topology.layout = Layout::tensor_parallel(1);
    let mut list = Exclusions::default();
    let member = &held.desired().members[1];
    list.say(&member.name, &member.address, Some("hot"), "me@desk");
    let mut all = [view(&held, 0, NodeState::Ready), absent];
    all[1].standing.as_mut().expect("it answers").committed = None;
    all[0].standing.as_mut().expect("it answers").exclusions = list.clone();
    let own = all[0].standing.clone().expect("it answers");
    let mut serving = steward(&held, 0);
    // Looks for members to include and for other repairs come between.
    for (second, is_told) in [(5, true), (10, false), (15, false), (20, false), (25, true)] {
        let now = Duration::from_secs(second);
        let asks = serving.look(now, own.clone());
        let next = tell(&mut serving, now, &asks, &all);
        let told = RequestBody::Exclude(list.clone());
        assert_eq!(bodies(&next).contains(&&told), is_told, "after {second} s: {next:?}");
    }
}

#[test]
fn vote_that_has_begun_is_finished_although_another_replica_serves() {
    let mut base = base(4);
    base.topology.layout = Layout::alike(2, 1, 2);
    let mut all = views(&base, &[]);
    all[0] = view(&base, 0, NodeState::Faulted);
    for index in [2, 3] {
        all[index] = view(&base, index, NodeState::Serving);
    }
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Bring(members(&[0, 1])));
    all[3].standing.as_mut().expect("it answers").accepted = true;
    let finished = Decision::Propose { stay: members(&[0, 1, 2, 3]), lost: Vec::new(), granted: 0 };
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), finished);
}

#[test]
fn later_topology_of_an_absent_member_is_learned() {
    let mut held = base(2);
    let mut later = held.clone();
    later.epoch = held.epoch.next();
    held.desired = Some(Box::new(held.topology.clone()));
    held.topology.members.pop();
    held.topology.layout = Layout::tensor_parallel(1);
    // The other one serves alone: this node could not store the vote that excluded it.
    let mut alone = later.clone();
    alone.desired = Some(Box::new(later.topology.clone()));
    alone.topology.members.remove(0);
    alone.topology.layout = Layout::tensor_parallel(1);
    for (later, at) in [(later.clone(), 1), (alone, 0)] {
        let all = [view(&held, 0, NodeState::Ready), view(&later, at, NodeState::Idle)];
        let mut serving = steward(&held, 0);
        let now = Duration::from_secs(5);
        let asks = serving.look(now, all[0].standing.clone().expect("it answers"));
        let learn = RequestBody::Recovery(Box::new(RecoveryAsk::Learn(Box::new(later))));
        assert_eq!(bodies(&tell(&mut serving, now, &asks, &all)), [&learn]);
    }
}
