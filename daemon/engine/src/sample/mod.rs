//! Exact sampling over a vocabulary that is split across ranks: each rank summarises its slice, rank 0 of the last
//! stage samples. Full logits are never transferred; what the summaries leave open is queried in counted rounds. Pure.
mod choose;
mod message;
mod random;
mod slice;
#[cfg(test)]
mod tests;

pub use choose::{Chooser, Step};
pub use message::Chosen;
pub use message::{Answer, Query, Summary};
pub use slice::Slice;

use message::Candidate;
use smallvec::SmallVec;

/// Candidates in a first message if the sample may be any token.
const CANDIDATES_FIRST: usize = 16;
/// Candidates in a further message, and the largest top-k that the first message covers.
const CANDIDATES_MORE: usize = 64;
/// Candidates whose rank in the order is queried at once.
const AHEAD_MAX: usize = 32;

/// A list that needs no heap up to the usual message length; only a top-k above [`CANDIDATES_MORE`] exceeds it.
type List<T, const N: usize> = SmallVec<[T; N]>;

/// A scaled logit that all tokens reach whose probability is at least `min_p` of the largest one's.
fn floor(min_p: f32, largest: f32) -> f32 {
    // Rounding must not exclude a token.
    let slack = 1e-6 * (1.0 + f64::from(largest).abs());
    (f64::from(largest) + f64::from(min_p).ln() - slack) as f32
}

/// Why no token can be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A logit is not a number, or infinite.
    #[error("a logit is not finite: the weights are damaged or the computation overflowed")]
    NotANumber,
    /// No token has a finite logit.
    #[error("no token has a finite logit: the weights are damaged or the computation overflowed")]
    NoToken,
    /// A rank's message is malformed.
    #[error("a sampling message is malformed: {0}")]
    Broken(&'static str),
}
