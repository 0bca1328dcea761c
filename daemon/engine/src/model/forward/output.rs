//! Logits of this rank's rows of the vocabulary.
use kernels::matmul;

use super::Model;
use crate::model::{
    batch::{Batch, Scratch},
    norm::norm,
};

/// Logits that a thread limits at a time: hundreds of thousands take milliseconds.
const LOGITS_AT_ONCE: usize = 4096;

impl Model {
    /// Logits for the tokens of a step that want them.
    pub(super) fn output(&mut self, batch: Batch<'_>) {
        let length = self.shard.spec.embedding_length;
        let wanted = batch.tokens.iter().filter(|entry| entry.wants_logits).count();
        self.logits.clear();
        if wanted == 0 || self.shard.output.rows == 0 {
            return;
        }
        let Scratch { partial, normed, .. } = &mut self.scratch;
        // The hidden states stay: an embedding needs them.
        partial.clear();
        let rows = batch.tokens.iter().zip(self.hidden.chunks_exact(length)).filter(|(entry, _)| entry.wants_logits);
        rows.for_each(|(_, row)| partial.extend_from_slice(row));
        norm(&self.compute, &self.shard.spec, partial, &self.shard.output_norm, normed);
        self.multiply_output();
    }

    /// Writes the hidden states of the latest step behind the output norm into `out` `[token, embedding_length]`.
    pub fn output_states(&self, out: &mut Vec<f32>) {
        norm(&self.compute, &self.shard.spec, &self.hidden, &self.shard.output_norm, out);
    }

    /// Logits `[state, vocabulary rows of this rank]` of hidden states `[state, embedding_length]` behind an output norm.
    pub fn logits_of<'a>(&mut self, states: impl Iterator<Item = &'a [f32]>) -> &[f32] {
        self.scratch.normed.clear();
        states.for_each(|state| self.scratch.normed.extend_from_slice(state));
        self.multiply_output();
        &self.logits
    }

    /// `normed -> logits`
    fn multiply_output(&mut self) {
        let (length, output) = (self.shard.spec.embedding_length, &self.shard.output);
        let Scratch { normed, activations, .. } = &mut self.scratch;
        self.logits.resize(normed.len() / length * output.rows, 0.0);
        if self.logits.is_empty() {
            return;
        }
        activations.load(&self.compute, normed, length, output.wanted());
        matmul(&self.compute, output.view(), activations, &mut self.logits);
        output.scale(&mut self.logits);
        let (scale, cap) = (self.shard.spec.logit_scale, self.shard.spec.logit_cap);
        if scale != 1.0 {
            self.logits.iter_mut().for_each(|logit| *logit *= scale);
        }
        if let Some(cap) = cap {
            self.compute.pool.chunks(&mut self.logits, LOGITS_AT_ONCE, |_, logits| {
                logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
            });
        }
    }
}
