//! The first half of a layer on this rank's units: attention, latent attention, a short convolution, a gated delta net or
//! a state space.
pub mod attention;
pub mod convolution;
pub mod delta;
pub mod latent;
pub mod squares;
pub mod state;
pub mod state_space;

use attention::AttentionWeights;
use convolution::ConvolutionWeights;
use delta::DeltaWeights;
use kernels::Pool;
use latent::LatentWeights;
use smallvec::SmallVec;
use state_space::StateSpaceWeights;

use super::{batch::BatchToken, matrix::Matrix};

/// The weights of a mixer on this rank, without its output matrix.
#[derive(Debug)]
pub enum MixerWeights {
    /// Attention.
    Attention(AttentionWeights),
    /// A short convolution.
    Convolution(ConvolutionWeights),
    /// A gated delta net.
    Delta(DeltaWeights),
    /// A state space.
    StateSpace(StateSpaceWeights),
    /// The layer has only a feed-forward network.
    None,
    /// Latent attention.
    Latent(LatentWeights),
}

/// Heads with states that are processed without an allocation.
const HEADS: usize = 256;

/// A head: its state, and the results.
struct StateHead<'a> {
    state: &'a mut [f32],
    out: &'a mut [f32],
}

impl MixerWeights {
    /// Its matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let [one, two, three, four, five] = match self {
            Self::Attention(own) => [Some(&own.query), own.key.as_ref(), own.value.as_ref(), None, None],
            Self::Convolution(own) => [Some(&own.input), None, None, None, None],
            Self::StateSpace(own) => [Some(&own.gate), Some(&own.value), Some(&own.key), Some(&own.rate), None],
            Self::None => [None; 5],
            Self::Delta(own) => [Some(&own.input), Some(&own.gate), Some(&own.rate), Some(&own.decay), None],
            Self::Latent(own) => {
                let inner = own.query_inner.as_ref().map(|(matrix, _)| matrix);
                [inner, Some(&own.query), Some(&own.latent), Some(&own.latent_query), Some(&own.latent_value)]
            }
        };
        [one, two, three, four, five].into_iter().flatten()
    }
}

/// Runs `pass` for each head with its number, its part of `states` and its part of `out`, on all cores.
fn through_states(
    pool: &Pool,
    states: &mut [f32],
    out: &mut [f32],
    heads: usize,
    pass: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let (length, width) = (states.len() / heads, out.len() / heads);
    let parts = states.chunks_exact_mut(length).zip(out.chunks_exact_mut(width));
    let mut parts: SmallVec<[StateHead<'_>; HEADS]> = parts.map(|(state, out)| StateHead { state, out }).collect();
    pool.chunks(&mut parts, 1, |head, one| one.iter_mut().for_each(|one| pass(head, one.state, one.out)));
}

/// `ln(1 + e^x)`
fn softplus(x: f32) -> f32 {
    // Beyond this, the difference is less than a unit in the last place (llama.cpp, ggml_compute_softplus_f32).
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The tokens of each sequence of a step, in order, with the place of the first one in the step.
fn runs(tokens: &[BatchToken]) -> impl Iterator<Item = (usize, &[BatchToken])> {
    let mut begin = 0;
    tokens.chunk_by(|one, next| one.slot == next.slot).map(move |run| {
        let own = begin;
        begin += run.len();
        (own, run)
    })
}
