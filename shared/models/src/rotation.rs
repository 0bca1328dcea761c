//! Rotary position embedding, as data.
use serde::{Deserialize, Serialize};

use crate::limits::{HEAD_LENGTH_MAX, within};

/// A table of rotation angles (Su et al. 2021).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Which elements are rotated together.
    pub rotation: Rotation,
    /// Elements of a head that are rotated, even, at most the head's length; the rest passes unchanged.
    pub dimension_count: usize,
    /// Base of the rotation angles.
    pub freq_base: f32,
    /// Change of the angles for contexts longer than those of the training.
    pub scaling: Scaling,
    /// Whether the tensor of factors divides the angles.
    pub has_factors: bool,
    /// Pairs of time, height and width in an image, which take turns; the pairs behind them are not rotated. In a text
    /// all three are the position.
    pub sections: Option<[usize; 3]>,
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rotation {
    /// Neighbours (2i, 2i + 1): files of such families are permuted for it.
    Neighbours,
    /// Halves (i, i + dimensions / 2), as in GPT-NeoX.
    Halves,
}

/// Change of rotation angles for contexts longer than those of the training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scaling {
    /// None.
    None,
    /// All angles are divided by this.
    Linear(f32),
    /// YaRN (Peng et al. 2023).
    Yarn(YarnSpec),
    /// The file has two tensors of divisors: one for contexts up to a length, one for longer ones.
    Long(LongSpec),
}

/// LongRoPE (Ding et al. 2024): the divisors depend on the context for which a model is loaded, not on the position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongSpec {
    /// Longest context of the short divisors.
    pub original_context: usize,
    /// Factor of sines and cosines.
    pub magnitude: f32,
}

/// Angles of fast pairs stay, those of slow pairs are divided by the factor, those in between are mixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct YarnSpec {
    /// Divisor of slow angles.
    pub factor: f32,
    /// Context of the training.
    pub original_context: f32,
    /// Rotations within that context above which a pair is fast.
    pub beta_fast: f32,
    /// Rotations within that context below which a pair is slow.
    pub beta_slow: f32,
    /// Factor of sines and cosines.
    pub magnitude: f32,
}

impl RopeSpec {
    /// Whether a model that is loaded for sequences of this length divides the angles by the long divisors; `None`: its
    /// file has no second set of them.
    pub fn takes_long_divisors(&self, context_length: usize) -> Option<bool> {
        match &self.scaling {
            Scaling::Long(long) => Some(context_length > long.original_context),
            Scaling::None | Scaling::Linear(_) | Scaling::Yarn(_) => None,
        }
    }

    /// Whether a pair is rotated (llama.cpp, interleaved multi-section rotation).
    pub fn rotates(&self, pair: usize) -> bool {
        let Some(sections) = self.sections else { return true };
        let place = pair % sections.iter().sum::<usize>().max(1);
        place < 3 * sections[place % 3]
    }

    pub(crate) fn is_sound(&self) -> bool {
        within(self.dimension_count, HEAD_LENGTH_MAX) && self.dimension_count.is_multiple_of(2)
    }
}
