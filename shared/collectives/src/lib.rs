//! Collectives as pure lists of steps for (algorithm, rank, world, columns): the daemon executes them on links, the
//! simulator in virtual time. A tensor is `[tokens, columns]`; steps split only columns, at multiples of 32, so that
//! neither the summation order nor a rounding block depends on the number of tokens in a batch.
pub mod algorithm;
pub mod cost;
pub mod direct;
pub mod doubling;
pub mod ring;
pub mod table;
#[cfg(test)]
mod tests;
pub mod two_level;

use std::ops::Range;

pub use algorithm::{Algorithm, Choice, Class};
pub use cost::{Cost, cost, payload_bytes};
pub use table::{Table, TableRow};

use common::{ids::Rank, limits::NODES_MAX};

/// Values in a block of the q80 exchange format; slices are cut at multiples of it.
pub const EXCHANGE_BLOCK: usize = 32;
/// Bytes of a q80 block: an f16 scale and 32 int8.
pub const Q80_BLOCK_BYTES: usize = 34;

/// A set of ranks of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankSet(pub u64);

const _: () = assert!(NODES_MAX <= 64, "a rank is a bit of a u64");

impl RankSet {
    /// The set of one rank.
    pub fn one(rank: Rank) -> Self {
        Self(1 << rank.0)
    }

    /// All ranks in `ranks` except `own`.
    pub fn others(ranks: Range<usize>, own: usize) -> Self {
        ranks.filter(|rank| *rank != own).fold(Self::default(), |set, rank| Self(set.0 | 1 << rank))
    }

    /// This set with `rank` added.
    #[must_use]
    pub fn with(self, rank: Rank) -> Self {
        Self(self.0 | 1 << rank.0)
    }

    /// The same ranks shifted by `first`: from numbers in a stage to numbers in its replica.
    #[must_use]
    pub fn counted_from(self, first: u16) -> Self {
        Self(self.0 << first)
    }

    /// Whether `rank` is in it.
    pub fn contains(self, rank: Rank) -> bool {
        rank.0 < 64 && self.0 >> rank.0 & 1 == 1
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no ranks.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ranks in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Rank> + Clone {
        (0..64).map(Rank).filter(move |rank| self.contains(*rank))
    }
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    /// The sender's sum so far, initially its own part, rounded to the exchange format.
    Sum,
    /// The result of columns that the sender has finished or stored: exactly the same bytes.
    Result,
}

/// Handling of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Sums the received parts and the own part in rank order, each rounded to the exchange format (including the own
    /// part, as if it had been sent).
    Sum,
    /// Stores the bytes as the result of these columns.
    Store,
}

/// One step of an all-reduce on one rank; ranks are counted within the stage. Steps are executed in order. Messages
/// from one rank to another arrive in the order in which they were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start to send. At most one message per peer is unsent: a second one waits for the first.
    Send {
        /// The receiving rank.
        to: Rank,
        /// The content sent for `columns`.
        what: Sent,
        /// Columns of every token.
        columns: Range<usize>,
    },
    /// Wait for one message from each rank in `from`, and combine them.
    Receive {
        /// The sending ranks.
        from: RankSet,
        /// Handling of the messages.
        how: Combine,
        /// Columns of every token.
        columns: Range<usize>,
    },
    /// The sum over `columns` is complete: it is rounded to the exchange format once. These bytes are the result that
    /// is sent and that every rank, including this one, decodes.
    Finish {
        /// Columns of every token.
        columns: Range<usize>,
    },
}

/// The steps of `rank` (within its stage of `world` ranks) in an all-reduce of tensors with `columns` columns. Empty
/// for a single rank: its part is the result.
///
/// # Panics
/// `rank` is not below `world`, or `world` is above `NODES_MAX`.
pub fn schedule(algorithm: Algorithm, rank: Rank, world: usize, columns: usize) -> Vec<Step> {
    assert!(rank.index() < world && world <= NODES_MAX, "rank {rank} is not below {world}");
    if world == 1 || columns == 0 {
        return Vec::new();
    }
    let own = rank.index();
    match algorithm {
        Algorithm::Direct => direct::direct(own, world, columns),
        Algorithm::ReduceScatter => direct::reduce_scatter(own, world, columns),
        Algorithm::Star => direct::star(own, world, columns),
        Algorithm::Doubling => doubling::doubling(own, world, columns),
        Algorithm::Ring => ring::ring(own, world, columns),
        Algorithm::TwoLevel => two_level::two_level(own, world, columns),
    }
}

/// The columns that `rank` sums if every rank sums a slice: blocks of 32 are distributed evenly, the last one may be
/// shorter. Empty for some ranks if there are fewer blocks than ranks; empty slices are not sent.
pub fn slice(rank: usize, world: usize, columns: usize) -> Range<usize> {
    let blocks = columns.div_ceil(EXCHANGE_BLOCK);
    let border = |rank: usize| (blocks * rank / world * EXCHANGE_BLOCK).min(columns);
    border(rank)..border(rank + 1)
}

fn send(to: usize, what: Sent, columns: Range<usize>) -> Step {
    Step::Send { to: Rank(to as u16), what, columns }
}

fn receive(from: RankSet, how: Combine, columns: Range<usize>) -> Step {
    Step::Receive { from, how, columns }
}

/// The other ranks, starting with the next one, so that not all ranks send to rank 0 first.
fn peers(own: usize, world: usize) -> impl Iterator<Item = usize> + Clone {
    (1..world).map(move |distance| (own + distance) % world)
}
