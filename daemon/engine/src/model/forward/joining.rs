//! The steps of a predictor: its tokens are joined with hidden states of its model.
use kernels::matmul;
use models::Mixer;

use super::{ForwardError, Model};
use crate::model::{
    Batch,
    batch::Scratch,
    mixer::{MixerWeights, attention::OwnHeads},
    norm::norm,
};

impl Model {
    /// Before a step of `tokens` tokens of a predictor: the hidden states of its model, behind the output norm, at the
    /// positions before theirs, `[token, embedding_length]`.
    pub fn joined(&mut self, tokens: usize) -> &mut [f32] {
        self.joined.resize(tokens * self.shard.spec.embedding_length, 0.0);
        &mut self.joined
    }

    /// `hidden, joined -> hidden`: joins the embeddings of a step with the hidden states before them.
    pub(super) fn join(&mut self) {
        let Some(join) = &self.shard.join else { return };
        let (spec, length) = (&self.shard.spec, self.shard.spec.embedding_length);
        let Scratch { partial, summed, normed, activations, .. } = &mut self.scratch;
        let [of_token, of_state] = &join.norms;
        norm(&self.compute, spec, &self.hidden, of_token, partial);
        norm(&self.compute, spec, &self.joined, of_state, summed);
        normed.clear();
        for (token, state) in partial.chunks_exact(length).zip(summed.chunks_exact(length)) {
            normed.extend_from_slice(token);
            normed.extend_from_slice(state);
        }
        activations.load(&self.compute, normed, 2 * length, join.matrix.wanted());
        matmul(&self.compute, join.matrix.view(), activations, &mut self.hidden);
        join.matrix.scale(&mut self.hidden);
    }

    /// Stores the keys and values of a step's tokens, and computes nothing else: steps of its model prepare a predictor
    /// for later proposals. [`Self::joined`] must hold the states before them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn remember(&mut self, batch: Batch<'_>) -> Result<(), ForwardError> {
        if self.pace.is_some() {
            return Ok(());
        }
        self.embed(batch)?;
        self.join();
        for rope in &mut self.ropes {
            rope.load(batch.tokens.iter().map(|token| token.position));
        }
        let layer = &self.shard.layers[0];
        norm(&self.compute, &self.shard.spec, &self.hidden, &layer.mixer_norm, &mut self.scratch.normed);
        let (cut, epsilon) = (self.shard.plan.cut_of(&self.shard.spec, 0), self.shard.spec.norm_epsilon);
        if let (Mixer::Attention(spec), MixerWeights::Attention(weights)) = (&layer.spec.mixer, &layer.mixer) {
            let (compute, ropes, heads) = (&self.compute, &self.ropes[..], &self.heads[0]);
            let own = OwnHeads { compute, spec, weights, epsilon, cut, heads, ropes, layer: 0 };
            own.keep(batch, &mut self.cache, &mut self.scratch);
        }
        Ok(())
    }
}
