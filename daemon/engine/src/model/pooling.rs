//! The embedding of a text: its hidden states behind the last layer, normed, pooled and of length 1.
use std::ops::Range;

use kernels::matmul;
use models::Pooling;

use super::{batch::Scratch, forward::Model, norm::norm};

/// The hidden states of a sequence so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pooling: Pooling,
    /// `[embedding_length]`: their sum, or the chosen one.
    values: Vec<f32>,
    /// Number of tokens.
    count: usize,
}

impl Pooled {
    /// Begins a sequence.
    pub const fn new(pooling: Pooling) -> Self {
        Self { pooling, values: Vec::new(), count: 0 }
    }

    /// Adds the normed hidden state of the next token.
    fn add(&mut self, state: &[f32]) {
        match self.pooling {
            Pooling::Mean => {
                self.values.resize(state.len(), 0.0);
                self.values.iter_mut().zip(state).for_each(|(sum, value)| *sum += value);
            }
            Pooling::First if self.count > 0 => {}
            Pooling::First | Pooling::Last => {
                self.values.clear();
                self.values.extend_from_slice(state);
            }
        }
        self.count += 1;
    }
}

/// Gives a vector the Euclidean length 1, or 0 if it has no direction.
fn unit(mut values: Vec<f32>) -> Vec<f32> {
    let squares: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let scale = if squares == 0.0 { 0.0 } else { (1.0 / squares.sqrt()) as f32 };
    values.iter_mut().for_each(|value| *value *= scale);
    values
}

impl Model {
    /// Adds these tokens of the latest step, all of one sequence and in order, to its embedding. On the last stage after
    /// [`Model::forward`]: each rank has the whole states.
    pub fn pool(&mut self, tokens: Range<usize>, pooled: &mut Pooled) {
        let (shard, compute, hidden, scratch) = self.pooling_parts();
        let length = shard.spec.embedding_length;
        let hidden = &hidden[tokens.start * length..tokens.end * length];
        norm(compute, &shard.spec, hidden, &shard.output_norm, &mut scratch.normed);
        scratch.normed.chunks_exact(length).for_each(|state| pooled.add(state));
    }

    /// The embedding `[embedding_length]` of Euclidean length 1, or zeros if it has no direction; empty without tokens.
    pub fn embedding(&mut self, pooled: Pooled) -> Vec<f32> {
        let (shard, compute, _, Scratch { activations, .. }) = self.pooling_parts();
        // Only its direction counts: the mean has that of the sum.
        let mut state = pooled.values;
        let matrices = shard.pooled.as_ref().filter(|_| !state.is_empty());
        for matrix in matrices.into_iter().flat_map(|(inner, output)| [inner, output]) {
            let mut product = vec![0.0; matrix.rows];
            activations.load(compute, &state, matrix.columns, matrix.wanted());
            matmul(compute, matrix.view(), activations, &mut product);
            matrix.scale(&mut product);
            state = product;
        }
        unit(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embedding(pooling: Pooling, states: &[[f32; 2]]) -> Vec<f32> {
        let mut pooled = Pooled::new(pooling);
        states.iter().for_each(|state| pooled.add(state));
        unit(pooled.values)
    }

    #[test]
    fn embedding_is_the_chosen_direction_of_length_1() {
        let states = [[3.0, 4.0], [3.0, -4.0], [0.0, 2.0]];
        assert_eq!(embedding(Pooling::First, &states), [0.6, 0.8]);
        assert_eq!(embedding(Pooling::Last, &states), [0.0, 1.0]);
        let mean = embedding(Pooling::Mean, &states);
        assert!((mean[0] - 0.948_683_3).abs() < 1e-6 && (mean[1] - 0.316_227_8).abs() < 1e-6, "{mean:?}");
    }

    #[test]
    fn states_without_direction_give_zeros_and_nan_stays() {
        assert_eq!(embedding(Pooling::Mean, &[[1.0, 0.0], [-1.0, 0.0]]), [0.0, 0.0]);
        assert!(embedding(Pooling::Last, &[[f32::NAN, 0.0]]).iter().any(|value| value.is_nan()));
        assert!(embedding(Pooling::Last, &[]).is_empty());
    }
}
