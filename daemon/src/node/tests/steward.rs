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

pub(super) const RULES: Rules = Rules { exclude_after: Some(Duration::from_secs(60)), witness: None };

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
    View { standing: Some(standing), address: member.address.clone(), lost: Duration::ZERO }
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
    let recovery = Recovery { enabled: true, ..Recovery::default() };
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
    let mut all = views(&base, &[(3, 1)]);
    for view in all.iter_mut().take(3) {
        view.standing.as_mut().expect("it answers").state = NodeState::Ready;
    }
    all[0].standing.as_mut().expect("it answers").forgets = true;
    let mut wiped = steward(&base, 0);
    let own = all[0].standing.clone().expect("it answers");
    let asks = wiped.look(now, own.clone());
    assert!(tell(&mut wiped, now, &asks, &all).is_empty(), "two others are no majority of four");
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
