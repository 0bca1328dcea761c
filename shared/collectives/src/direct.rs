//! The three algorithms that sum in rank order: direct exchange, reduce-scatter with all-gather, and star.
use super::{Combine, RankSet, Sent, Step, peers, receive, send, slice};

/// Every rank sends its part to every other rank and sums all parts: one latency, N-1 whole vectors sent.
pub(super) fn direct(own: usize, world: usize, columns: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = peers(own, world).map(|to| send(to, Sent::Sum, 0..columns)).collect();
    steps.push(receive(RankSet::others(0..world, own), Combine::Sum, 0..columns));
    steps.push(Step::Finish { columns: 0..columns });
    steps
}

/// Every rank sums its slice of the columns and sends the result to all: two latencies, 2(N-1)/N vectors sent.
pub(super) fn reduce_scatter(own: usize, world: usize, columns: usize) -> Vec<Step> {
    let of = |rank: usize| slice(rank, world, columns);
    let others = peers(own, world).filter(|rank| !of(*rank).is_empty());
    let mut steps: Vec<Step> = others.clone().map(|to| send(to, Sent::Sum, of(to))).collect();
    if !of(own).is_empty() {
        steps.push(receive(RankSet::others(0..world, own), Combine::Sum, of(own)));
        steps.push(Step::Finish { columns: of(own) });
        steps.extend(peers(own, world).map(|to| send(to, Sent::Result, of(own))));
    }
    steps.extend(others.map(|from| receive(RankSet(1 << from), Combine::Store, of(from))));
    steps
}

/// Rank 0 sums all parts and sends the result: its link carries all the traffic.
pub(super) fn star(own: usize, world: usize, columns: usize) -> Vec<Step> {
    if own != 0 {
        return vec![send(0, Sent::Sum, 0..columns), receive(RankSet(1), Combine::Store, 0..columns)];
    }
    let mut steps =
        vec![receive(RankSet::others(0..world, own), Combine::Sum, 0..columns), Step::Finish { columns: 0..columns }];
    steps.extend(peers(own, world).map(|to| send(to, Sent::Result, 0..columns)));
    steps
}
