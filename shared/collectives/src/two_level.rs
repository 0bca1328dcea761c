//! Two levels: direct exchange within groups of neighbouring ranks, then between the groups; s+g-2 whole vectors for s
//! groups of g.
//!
//! There are floor(sqrt N) groups of sizes as equal as possible: with a prime N the groups have two sizes, and a member
//! without a counterpart in a smaller group receives that group's sum from the member at its position modulo the
//! group's size.
use std::ops::Range;

use super::{Combine, RankSet, Sent, Step, peers, receive, send};

/// Up to three ranks form one group: the direct exchange.
pub(super) fn two_level(own: usize, world: usize, columns: usize) -> Vec<Step> {
    let all = || 0..columns;
    let count = group_count(world);
    let index = (0..count).find(|index| group(*index, world).contains(&own)).expect("the groups hold all ranks");
    let mine = group(index, world);
    let place = own - mine.start;
    let mut steps: Vec<Step> = peers(place, mine.len()).map(|peer| send(mine.start + peer, Sent::Sum, all())).collect();
    if mine.len() > 1 {
        steps.push(receive(RankSet::others(mine.clone(), own), Combine::Sum, all()));
    }
    let mut from = RankSet::default();
    for other in peers(index, count).map(|other| group(other, world)) {
        let served = other.clone().filter(|rank| (rank - other.start) % mine.len() == place);
        steps.extend(served.map(|to| send(to, Sent::Sum, all())));
        from.0 |= 1 << (other.start + place % other.len());
    }
    if !from.is_empty() {
        steps.push(receive(from, Combine::Sum, all()));
    }
    steps.push(Step::Finish { columns: all() });
    steps
}

/// Number of groups of a world.
pub(super) fn group_count(world: usize) -> usize {
    world.isqrt()
}

/// The ranks of a group.
pub(super) fn group(index: usize, world: usize) -> Range<usize> {
    let count = group_count(world);
    world * index / count..world * (index + 1) / count
}
