//! Exact sampling over a vocabulary that is split across ranks: each summarises its slice, rank 0 of the last stage
//! chooses. Full logits never move; what the summaries do not decide is asked for in counted rounds. Pure.
mod choose;
mod message;
mod random;
mod slice;
#[cfg(test)]
mod tests;

pub use choose::{Chooser, Chosen, Step};
pub use message::{Answer, Query, Summary};
pub use slice::Slice;

use message::Candidate;
use smallvec::SmallVec;

/// Candidates of a first message where a draw may need any token.
const CANDIDATES_FIRST: usize = 16;
/// Candidates of a further message, and the largest top-k that the first message serves.
const CANDIDATES_MORE: usize = 64;
/// Candidates whose place in the order is asked for at once.
const AHEAD_MAX: usize = 32;

/// A list that needs no heap up to the length that every token's messages have; only a top-k above
/// [`CANDIDATES_MORE`] goes beyond.
type List<T, const N: usize> = SmallVec<[T; N]>;

/// Why no token can be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A logit is not a number, or infinite.
    #[error("a logit is not a number: weights or computation are broken")]
    NotANumber,
    /// No token has a finite logit.
    #[error("no token has a finite logit: weights or computation are broken")]
    NoToken,
    /// A rank's message is broken.
    #[error("a sampling message is broken: {0}")]
    Broken(&'static str),
}
