//! Recursive doubling: log2(N) rounds of one whole vector each (Thakur, Rabenseifner, Gropp 2005, section 4.1).
use super::{Combine, RankSet, Sent, Step, receive, send};

/// For N = 2^k + r the first 2r ranks form r pairs: the upper rank of a pair sends its part to the lower one before the
/// rounds and receives the result after them. So every sum is over neighbouring ranks, in rank order.
pub(super) fn doubling(own: usize, world: usize, columns: usize) -> Vec<Step> {
    let Shape { rounds, pairs } = Shape::of(world);
    let all = || 0..columns;
    if own < 2 * pairs && !own.is_multiple_of(2) {
        return vec![send(own - 1, Sent::Sum, all()), receive(RankSet(1 << (own - 1)), Combine::Store, all())];
    }
    let is_lower = own < 2 * pairs;
    let mut steps = Vec::new();
    if is_lower {
        steps.push(receive(RankSet(1 << (own + 1)), Combine::Sum, all()));
    }
    // Positions among the ranks that take part in the rounds.
    let place = if is_lower { own / 2 } else { own - pairs };
    for round in 0..rounds {
        let other = place ^ (1 << round);
        let rank = if other < pairs { 2 * other } else { other + pairs };
        steps.push(send(rank, Sent::Sum, all()));
        steps.push(receive(RankSet(1 << rank), Combine::Sum, all()));
    }
    steps.push(Step::Finish { columns: all() });
    if is_lower {
        steps.push(send(own + 1, Sent::Result, all()));
    }
    steps
}

/// The shape of a world in recursive doubling.
pub(super) struct Shape {
    /// Rounds: the logarithm of the number of ranks that take part.
    pub(super) rounds: usize,
    /// Pairs that are folded into one rank before the rounds.
    pub(super) pairs: usize,
}

impl Shape {
    pub(super) fn of(world: usize) -> Self {
        let rounds = world.ilog2() as usize;
        Self { rounds, pairs: world - (1 << rounds) }
    }
}
