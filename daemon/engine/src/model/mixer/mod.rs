//! The first half of a layer on this rank's units: attention, a short convolution or a gated delta net.
pub mod attention;
pub mod convolution;
pub mod delta;
pub mod state;

use attention::AttentionWeights;
use convolution::ConvolutionWeights;
use delta::DeltaWeights;

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
}

impl MixerWeights {
    /// Its matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let [one, two, three, four] = match self {
            Self::Attention(own) => [Some(&own.query), own.key.as_ref(), own.value.as_ref(), None],
            Self::Convolution(own) => [Some(&own.input), None, None, None],
            Self::Delta(own) => [Some(&own.input), Some(&own.gate), Some(&own.rate), Some(&own.decay)],
        };
        [one, two, three, four].into_iter().flatten()
    }
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
