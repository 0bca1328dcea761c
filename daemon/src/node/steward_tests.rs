//! What a node decides from what it hears of the others.
use std::time::Duration;

use shared::{
    ids::{Epoch, MemberIndex},
    protocol::recovery::{Committed, Standing},
    telemetry::NodeState,
    topology::{Exclusions, Layout},
    units::Bytes,
};

use super::steward::{Decision, Rules, View, decide};

const RULES: Rules = Rules { exclude_after: Some(Duration::from_secs(60)), witness: None };

pub(super) fn base(count: u16) -> Committed {
    Committed { epoch: Epoch(4), topology: super::tests::topology(count) }
}

pub(super) fn view(base: &Committed, index: usize, state: NodeState) -> View {
    let member = &base.topology.members[index];
    let standing = Standing {
        name: member.name.clone(),
        instance: 1,
        state,
        epoch: base.epoch,
        committed: Some(base.clone()),
        accepted: false,
        free: Bytes(0),
        shard: Bytes(0),
        supervised: true,
        takes_over: false,
        exclusions: Exclusions::default(),
        rolling: None,
        heard: Vec::new(),
        slow: None,
        trouble: None,
    };
    View { standing: Some(standing), address: member.address.clone(), lost: Duration::ZERO }
}

fn away(base: &Committed, index: usize, seconds: u64) -> View {
    View { standing: None, lost: Duration::from_secs(seconds), ..view(base, index, NodeState::Idle) }
}

/// All idle, but for those that are away for so many seconds.
fn views(base: &Committed, gone: &[(usize, u64)]) -> Vec<View> {
    let one = |index: usize| match gone.iter().find(|(gone, _)| *gone == index) {
        Some((_, seconds)) => away(base, index, *seconds),
        None => view(base, index, NodeState::Idle),
    };
    (0..base.topology.members.len()).map(one).collect()
}

fn members(list: &[u16]) -> Vec<MemberIndex> {
    list.iter().copied().map(MemberIndex).collect()
}

#[track_caller]
fn check_waits(decision: &Decision, what: &str) {
    assert!(matches!(decision, Decision::Wait(reason) if reason.contains(what)), "{decision:?}");
}

#[test]
fn the_first_that_knows_the_topology_brings_it_up_once_all_are_there() {
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
fn replicas_come_up_each_for_itself_and_whoever_serves_does_nothing() {
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
    // The broken replica's survivor is of use again on a topology of three, which the others vote for.
    let lost = vec![(MemberIndex(3), "did not answer for 100 s".to_owned())];
    let stay = members(&[0, 1, 2]);
    assert_eq!(decide(MemberIndex(2), &base, &all, &RULES), Decision::Propose { stay, lost, granted: 0 });
    let never = Rules { exclude_after: None, ..RULES };
    check_waits(&decide(MemberIndex(2), &base, &all, &never), "waits for");
    // A node that an operator took out is the operator's.
    let (name, address) = (&base.topology.members[3].name, &base.topology.members[3].address);
    let standing = all[2].standing.as_mut().expect("it answers");
    standing.exclusions.say(name, address, Some("fan stuck"), "me@desk");
    check_waits(&decide(MemberIndex(2), &base, &all, &RULES), "others serve");
}

#[test]
fn a_majority_goes_on_without_a_lost_member_and_the_lowest_that_is_left_leads() {
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
fn of_two_the_one_that_is_left_needs_the_witness_or_an_operator() {
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
fn a_later_topology_and_a_vote_that_has_begun_come_first() {
    let base = base(3);
    let mut all = views(&base, &[]);
    all[2].standing.as_mut().expect("it answers").accepted = true;
    assert!(matches!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Propose { .. }));
    let later = Committed { epoch: Epoch(9), ..base.clone() };
    all[1].standing.as_mut().expect("it answers").committed = Some(later.clone());
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Learn(later));
}

#[test]
fn a_member_that_is_out_is_gone_without_a_wait_and_decides_nothing_itself() {
    let base = base(4);
    let mut all = views(&base, &[]);
    let list = &mut all[0].standing.as_mut().expect("it answers").exclusions;
    list.say("pi4", "x:1", Some("hot"), "me@here");
    let lost = vec![(MemberIndex(3), "hot".to_owned())];
    let stay = members(&[0, 1, 2]);
    assert_eq!(decide(MemberIndex(0), &base, &all, &RULES), Decision::Propose { stay, lost, granted: 0 });
    assert_eq!(decide(MemberIndex(3), &base, &all, &RULES), Decision::Rest);
}
