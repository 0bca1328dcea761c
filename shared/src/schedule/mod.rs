//! Collectives as pure lists of steps for (algorithm, rank, world, columns): the daemon executes them on links, the
//! simulator in virtual time; nothing here sends. A tensor is `[tokens, columns]`; steps cut columns alone, at multiples
//! of 32, so that neither the summing order nor a rounding block depends on how many tokens are in a batch.
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

use crate::{ids::Rank, topology::spec::NODES_MAX};

/// Values in a block of the q80 exchange; slices are cut at its multiples.
pub const EXCHANGE_BLOCK: usize = 32;
/// Bytes of a q80 block: an f16 scale and 32 int8.
pub const Q80_BLOCK_BYTES: usize = 34;

/// A set of ranks of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankSet(pub u64);

const _: () = assert!(NODES_MAX <= 64, "a rank is a bit of a u64");

impl RankSet {
    /// One rank.
    pub fn one(rank: Rank) -> Self {
        Self(1 << rank.0)
    }

    /// All of `ranks` but `own`.
    pub fn others(ranks: Range<usize>, own: usize) -> Self {
        ranks.filter(|rank| *rank != own).fold(Self::default(), |set, rank| Self(set.0 | 1 << rank))
    }

    /// This one with `rank`.
    #[must_use]
    pub fn with(self, rank: Rank) -> Self {
        Self(self.0 | 1 << rank.0)
    }

    /// The same ranks counted from `first` on: of a stage as the replica numbers them.
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

    /// Whether nobody is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ranks, lowest first.
    pub fn iter(self) -> impl Iterator<Item = Rank> + Clone {
        (0..64).map(Rank).filter(move |rank| self.contains(*rank))
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    /// The sender's sum so far, at first its own part, rounded to the exchange format.
    Sum,
    /// The result of columns that the sender has finished or stored: those very bytes.
    Result,
}

/// What becomes of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// The sum becomes the sum of the received ones and the own one in the order of ranks, each rounded to the exchange
    /// format (the own one too, as if it had been sent).
    Sum,
    /// The bytes are the result of these columns.
    Store,
}

/// One step of an all-reduce, as one rank sees it; ranks count within the stage. Steps are taken in order. Messages from
/// one rank to another arrive in the order of their sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start to send. At most one message to a peer is unsent: a second one waits for the first.
    Send {
        /// The rank that it goes to.
        to: Rank,
        /// What of `columns` it carries.
        what: Sent,
        /// Columns of every token.
        columns: Range<usize>,
    },
    /// Wait for one message of each rank in `from`, and combine.
    Receive {
        /// The ranks that it comes from.
        from: RankSet,
        /// What becomes of it.
        how: Combine,
        /// Columns of every token.
        columns: Range<usize>,
    },
    /// The sum over `columns` has all parts: it is rounded to the exchange format, once. These bytes are the result that
    /// is sent on, and what every rank, this one too, decodes.
    Finish {
        /// Columns of every token.
        columns: Range<usize>,
    },
}

/// The steps of `rank` (within its stage of `world` ranks) in an all-reduce of tensors with `columns` columns. A lone rank
/// has none: its part is the result.
///
/// # Panics
/// `rank` is not below `world`, or `world` is above `NODES_MAX`.
pub fn schedule(algorithm: Algorithm, rank: Rank, world: usize, columns: usize) -> Vec<Step> {
    assert!(rank.index() < world && world <= NODES_MAX, "rank {rank} is none of {world}");
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

/// The columns that `rank` sums where every rank sums some: blocks of 32 spread evenly, the last one perhaps shorter.
/// Empty for some ranks when there are fewer blocks than ranks; nothing is sent of empty slices.
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

/// The other ranks from the next one on, so that not all ranks send to rank 0 first.
fn peers(own: usize, world: usize) -> impl Iterator<Item = usize> + Clone {
    (1..world).map(move |distance| (own + distance) % world)
}
