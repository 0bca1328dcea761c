//! When a straggler is excluded, and when it is tried again.
use std::time::Duration;

use common::ids::{Epoch, MemberIndex, Rank};
use protocol::recovery::{Committed, Slow, Standing};
use telemetry::NodeState;
use topology::Exclusions;

use crate::node::{
    steward::{
        BY_ITSELF, View,
        breaker::{Breaker, Turn},
    },
    tests::steward::{base, view},
};

const RETRY: Duration = Duration::from_secs(600);
const SLOW: Slow = Slow { rank: Rank(2), percent: 61, seconds: 60 };

/// All members serve, and all but the slow rank report it.
fn slowed(base: &Committed, slow: Slow) -> Vec<View> {
    let views = (0..base.topology.members.len()).map(|index| {
        let mut view = view(base, index, NodeState::Serving);
        let standing = view.standing.as_mut().expect("it answers");
        standing.slow = (index != slow.rank.index()).then_some(slow);
        standing.trouble = (index == slow.rank.index()).then(|| "it is throttled".into());
        view
    });
    views.collect()
}

fn serving(base: &Committed) -> Vec<View> {
    (0..base.topology.members.len()).map(|index| view(base, index, NodeState::Ready)).collect()
}

/// The topology without the member, two epochs later.
fn after(base: &Committed, without: usize) -> Committed {
    let mut next = Committed { epoch: Epoch(base.epoch.0 + 2), ..base.clone() };
    next.topology.members.remove(without);
    next.topology.layout = next.topology.layout.on(next.topology.members.len());
    next
}

/// The report of the excluded node.
fn out(base: &Committed, by: &str) -> Standing {
    let member = &base.topology.members[2];
    let mut exclusions = Exclusions::default();
    exclusions.say(&member.name, &member.address, Some("delayed its peers"), by);
    let standing = view(base, 2, NodeState::Idle).standing.expect("it answers");
    Standing { committed: None, exclusions, ..standing }
}

fn taken_out(breaker: &mut Breaker, base: &Committed, now: Duration) {
    let turn = breaker.look(MemberIndex(0), base, &slowed(base, SLOW), None, now);
    assert!(matches!(turn, Turn::TakeOut { slow: MemberIndex(2), .. }), "{turn:?}");
}

#[test]
fn lowest_peer_excludes_straggler_with_its_cause() {
    let base = base(4);
    let views = slowed(&base, SLOW);
    let acts = |own: u16, slow: Slow| {
        Breaker::new(Some(RETRY)).look(MemberIndex(own), &base, &slowed(&base, slow), None, Duration::ZERO)
    };
    let reason = "delayed its peers 61 % of their time for 60 s: it is throttled".to_owned();
    assert_eq!(acts(0, SLOW), Turn::TakeOut { slow: MemberIndex(2), reason });
    for own in [1, 2, 3] {
        assert_eq!(acts(own, SLOW), Turn::Rest, "another one acts");
    }
    let head = Slow { rank: Rank(0), ..SLOW };
    assert!(matches!(acts(1, head), Turn::TakeOut { slow: MemberIndex(0), .. }), "the head is no exception");
    assert_eq!(acts(0, Slow { rank: Rank(9), ..SLOW }), Turn::Rest, "no such rank");
    let mut breaker = Breaker::new(Some(RETRY));
    let standing = views[0].standing.as_ref().expect("it answers");
    assert!(breaker.is_due(standing, Duration::ZERO));
    let mut one_loads = views.clone();
    one_loads[3].standing.as_mut().expect("it answers").state = NodeState::Loading;
    assert_eq!(breaker.look(MemberIndex(0), &base, &one_loads, None, Duration::ZERO), Turn::Rest);
}

#[test]
fn straggler_in_one_of_two_replicas_is_excluded() {
    let mut base = base(4);
    base.topology.layout = topology::Layout::alike(2, 1, 2);
    let mut views = serving(&base);
    views[2].standing.as_mut().expect("it answers").slow = Some(Slow { rank: Rank(1), ..SLOW });
    let look = |own: u16| Breaker::new(Some(RETRY)).look(MemberIndex(own), &base, &views, None, Duration::ZERO);
    assert!(matches!(look(2), Turn::TakeOut { slow: MemberIndex(3), .. }), "its stage peer acts");
    assert_eq!((look(0), look(1)), (Turn::Rest, Turn::Rest), "the other replica does not act");
}

#[test]
fn blame_follows_wait_chain_and_a_circle_blames_no_rank() {
    let base = base(4);
    let names = |list: [Option<u16>; 4]| {
        let mut views = serving(&base);
        for (view, named) in views.iter_mut().zip(list) {
            let standing = view.standing.as_mut().expect("it answers");
            standing.slow = named.map(|rank| Slow { rank: Rank(rank), ..SLOW });
        }
        Breaker::new(Some(RETRY)).look(MemberIndex(0), &base, &views, None, Duration::ZERO)
    };
    for list in [[Some(1), Some(3), Some(3), None], [Some(2), Some(2), Some(3), None], [Some(3), None, None, None]] {
        assert!(matches!(names(list), Turn::TakeOut { slow: MemberIndex(3), .. }), "{list:?}");
    }
    assert_eq!(names([Some(1), Some(0), Some(0), Some(0)]), Turn::Rest);
    assert_eq!(names([Some(1), Some(2), Some(1), None]), Turn::Rest);
    assert_eq!(names([None, Some(3), Some(3), None]), Turn::Rest, "it is not sure");
}

#[test]
fn straggler_is_retried_after_its_time_when_healthy() {
    let base = base(4);
    let (rest, mut breaker) = (after(&base, 2), Breaker::new(Some(RETRY)));
    taken_out(&mut breaker, &base, Duration::ZERO);
    assert_eq!(
        breaker.out(),
        Some((base.topology.members[2].name.as_str(), base.topology.members[2].address.as_str()))
    );
    let by = format!("pi1 {BY_ITSELF}");
    let mut look = |out: Option<&Standing>, seconds| {
        breaker.look(MemberIndex(0), &rest, &serving(&rest), out, Duration::from_secs(seconds))
    };
    assert_eq!(look(Some(&out(&base, &by)), 599), Turn::Rest, "too early");
    assert_eq!(look(None, 601), Turn::Rest, "it does not answer");
    let hot = Standing { trouble: Some("it is hot".into()), ..out(&base, &by) };
    assert_eq!(look(Some(&hot), 602), Turn::Rest);
    let again = Turn::TryAgain { before: base.topology.clone(), joins: MemberIndex(2) };
    assert_eq!(look(Some(&out(&base, &by)), 603), again);
    assert_eq!(look(Some(&out(&base, &by)), 604), Turn::Rest, "once");
    assert_eq!(look(Some(&out(&base, &by)), 1203), again, "the vote failed: it is still out");
}

#[test]
fn retry_time_doubles_and_operator_exclusions_stay() {
    let base = base(4);
    let (rest, by) = (after(&base, 2), format!("pi1 {BY_ITSELF}"));
    let mut breaker = Breaker::new(Some(RETRY));
    let second = Duration::from_secs;
    let again = |breaker: &mut Breaker, by: &str, at| {
        breaker.look(MemberIndex(0), &rest, &serving(&rest), Some(&out(&base, by)), second(at)) != Turn::Rest
    };
    taken_out(&mut breaker, &base, second(0));
    assert!(again(&mut breaker, &by, 600));
    taken_out(&mut breaker, &base, second(700));
    assert!(!again(&mut breaker, &by, 700 + 1199) && again(&mut breaker, &by, 700 + 1200));
    // It served long enough: the next exclusion starts with the initial time.
    taken_out(&mut breaker, &base, second(700 + 1200 + 2400));
    assert!(again(&mut breaker, &by, 700 + 1200 + 2400 + 600));
    taken_out(&mut breaker, &base, second(10_000));
    assert!(
        !again(&mut breaker, "me@desk", 20_000) && !again(&mut breaker, &by, 30_000),
        "an operator's exclusion \
     stays"
    );
    taken_out(&mut breaker, &base, second(30_000));
    let other = after(&base, 1);
    let turn = breaker.look(MemberIndex(0), &other, &serving(&other), Some(&out(&base, &by)), second(60_000));
    assert_eq!(turn, Turn::Rest, "something else was assigned");
    assert!(!again(&mut breaker, &by, 60_001), "and the breaker forgets the exclusion");
    let mut never = Breaker::new(None);
    taken_out(&mut never, &base, second(0));
    assert!(!again(&mut never, &by, 1_000_000));
}
