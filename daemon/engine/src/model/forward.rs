//! The forward pass of one rank over a batch of tokens of several sequences. Follows the paper; timing is done
//! elsewhere.
use common::{
    ids::LayerIndex,
    limits::{KV_BLOCK_LENGTH, SLOTS_MAX},
};
use kernels::{Compute, matmul, matmuls};
use telemetry::SyncKind;

use super::{
    attention::{Heads, Queries, attend},
    experts::experts,
    feed_forward::feed_forward,
    kv_cache::{KvCache, Place},
    pace::Pace,
    rope::Rope,
    weights::{Layer, Matrix, Shard, wanted_by},
};
use crate::collective::{Collective, CollectiveError};
use crate::model::batch::{Batch, Scratch};

/// Receives a notification as soon as a layer has stored its keys and values.
pub trait KvSink {
    /// The layer with this index in the cache has stored the keys and values of the step.
    fn stored(&mut self, layer: usize, cache: &KvCache);
}

/// Ignores the notifications.
impl KvSink for () {
    fn stored(&mut self, _: usize, _: &KvCache) {}
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The model file cannot be read.
    #[error(
        "cannot read row {token} of token_embd.weight: {source}; check the model file and its disk, then assign again"
    )]
    Embedding {
        /// The token, which is the row.
        token: u32,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// One rank's model, ready to step.
#[derive(Debug)]
pub struct Model {
    shard: Shard,
    compute: Compute,
    cache: KvCache,
    rope: Rope,
    heads: Heads,
    scratch: Scratch,
    /// `[token, embedding_length]`, the same on every rank of the stage.
    hidden: Vec<f32>,
    /// `[token that wants logits, vocabulary rows of this rank]`
    logits: Vec<f32>,
    /// For benchmarks: waits instead of computing.
    pace: Option<Pace>,
}

impl Model {
    /// Creates a model from its weights, an empty KV cache and the means to compute.
    pub fn new(shard: Shard, cache: KvCache, compute: Compute) -> Self {
        let rope = Rope::new(&shard.shape, shard.rope_factors.as_deref());
        let (shape, plan) = (&shard.shape, &shard.plan);
        let per_kv = shape.head_count / shape.head_count_kv;
        let heads = Heads::new(&plan.heads, &plan.heads_kv, per_kv, shape.head_length);
        let scratch = Scratch::default();
        // Reserve for the largest batch; untouched pages cost nothing.
        let logits = Vec::with_capacity(usize::from(SLOTS_MAX) * shard.output.rows);
        Self { shard, compute, cache, rope, heads, scratch, hidden: Vec::new(), logits, pace: None }
    }

    /// Makes the model wait at this pace instead of computing.
    pub fn paced(self, pace: Option<Pace>) -> Self {
        Self { pace, ..self }
    }

    /// The weights.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Keys and values of past positions.
    pub fn cache(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Its kernels and threads.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Copies KV blocks, one after another, as (source, destination), both below the cache's block count.
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        copies.iter().for_each(|(from, to)| self.cache.copy(*from, *to));
    }

    /// The hidden states of a step of `tokens` tokens, `[token, embedding_length]`: input from the previous stage
    /// before the step, output for the next stage after it.
    pub fn hidden(&mut self, tokens: usize) -> &mut [f32] {
        self.hidden.resize(tokens * self.shard.shape.embedding_length, 0.0);
        &mut self.hidden
    }

    /// Logits of the latest step: `[token that wants logits, vocabulary rows of this rank]`.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Runs the layers of this stage over a batch. Returns `[token that wants logits, vocabulary rows of this rank]`.
    /// Except on the first stage, [`Self::hidden`] must hold the states from the previous stage.
    ///
    /// # Errors
    /// A collective failed or the file cannot be read; the KV cache of the step's positions is then undefined.
    pub fn forward(&mut self, batch: Batch<'_>, collective: &mut dyn Collective) -> Result<&[f32], ForwardError> {
        self.forward_beside(batch, collective, &mut ())
    }

    /// Like [`Self::forward`], but also notifies `sink` of each layer's keys and values.
    ///
    /// # Errors
    /// Like [`Self::forward`].
    pub fn forward_beside(
        &mut self,
        batch: Batch<'_>,
        collective: &mut dyn Collective,
        sink: &mut dyn KvSink,
    ) -> Result<&[f32], ForwardError> {
        if self.pace.is_some() {
            self.wait_through(batch, collective, sink)?;
            return Ok(&self.logits);
        }
        if self.shard.plan.is_first_stage() {
            self.embed(batch)?;
        }
        let length = self.shard.shape.embedding_length;
        self.scratch.partial.resize(batch.tokens.len() * length, 0.0);
        self.rope.load(batch.tokens.iter().map(|token| token.position));
        for index in 0..self.shard.layers.len() {
            let layer = LayerIndex((self.shard.plan.layers.start + index) as u32);
            self.attention(batch, index);
            sink.stored(index, &self.cache);
            collective.all_reduce(layer, SyncKind::Attention, &self.scratch.partial, &mut self.hidden)?;
            self.feed_forward(batch, index);
            collective.all_reduce(layer, SyncKind::FeedForward, &self.scratch.partial, &mut self.hidden)?;
        }
        self.logits.clear();
        if self.shard.plan.is_last_stage(&self.shard.shape) {
            self.output(batch);
        }
        Ok(&self.logits)
    }

    /// A step of a paced rank: the usual exchanges with the other ranks, with waits in place of the computation between
    /// them.
    fn wait_through(
        &mut self,
        batch: Batch<'_>,
        collective: &mut dyn Collective,
        sink: &mut dyn KvSink,
    ) -> Result<(), ForwardError> {
        let Some(pace) = &mut self.pace else { return Ok(()) };
        let values = batch.tokens.len() * self.shard.shape.embedding_length;
        self.hidden.resize(values, 0.0);
        self.scratch.partial.resize(values, 0.0);
        pace.begin(batch);
        for index in 0..self.shard.layers.len() {
            let layer = LayerIndex((self.shard.plan.layers.start + index) as u32);
            for kind in [SyncKind::Attention, SyncKind::FeedForward] {
                pace.half_layer(layer, kind);
                if kind == SyncKind::Attention {
                    sink.stored(index, &self.cache);
                }
                collective.all_reduce(layer, kind, &self.scratch.partial, &mut self.hidden)?;
            }
        }
        self.logits.clear();
        if self.shard.plan.is_last_stage(&self.shard.shape) {
            pace.output(batch, &self.shard, &mut self.logits);
        }
        Ok(())
    }

    fn embed(&mut self, batch: Batch<'_>) -> Result<(), ForwardError> {
        let length = self.shard.shape.embedding_length;
        self.hidden.resize(batch.tokens.len() * length, 0.0);
        for (entry, hidden) in batch.tokens.iter().zip(self.hidden.chunks_exact_mut(length)) {
            let token = entry.token;
            self.shard.embed(token, hidden).map_err(|source| ForwardError::Embedding { token, source })?;
        }
        Ok(())
    }

    /// `hidden -> partial`: the attention of this rank's heads.
    fn attention(&mut self, batch: Batch<'_>, index: usize) {
        let layer = &self.shard.layers[index];
        norm(
            &self.compute,
            &self.hidden,
            &layer.attention_norm,
            self.shard.shape.layer_norm_rms_epsilon,
            &mut self.scratch.normed,
        );
        self.scratch.partial.fill(0.0);
        if self.shard.plan.heads.is_empty() {
            return;
        }
        self.project(batch, index);
        self.store(batch, index);
        self.attend(batch, index);
        let Scratch { activations, attended, partial, .. } = &mut self.scratch;
        let output = &self.shard.layers[index].attention_output;
        activations.load(&self.compute, attended, output.columns, output.wanted());
        matmul(&self.compute, output.view(), activations, partial);
    }

    /// Query, key and value with bias, head norm and rotation.
    fn project(&mut self, batch: Batch<'_>, index: usize) {
        let shape = &self.shard.shape;
        let layer = &self.shard.layers[index];
        let Scratch { normed, activations, query, key, value, .. } = &mut self.scratch;
        let matrices = [&layer.query, &layer.key, &layer.value];
        activations.load(&self.compute, normed, shape.embedding_length, wanted_by(&matrices));
        let tokens = batch.tokens.len();
        for (matrix, out) in matrices.into_iter().zip([&mut *query, key, value]) {
            out.resize(tokens * matrix.rows, 0.0);
        }
        matmuls(&self.compute, matrices.map(Matrix::view), activations, [query, key, value]);
        for (out, bias) in [&mut *query, key, value].into_iter().zip(&layer.biases) {
            if !bias.is_empty() {
                out.chunks_exact_mut(bias.len()).for_each(|row| (self.compute.kernels.add)(row, bias));
            }
        }
        let scale = 1.0 / (shape.head_length as f32).sqrt();
        for (rows, head_norm, scale) in [(query, &layer.head_norms[0], scale), (key, &layer.head_norms[1], 1.0)] {
            let per_token = rows.len() / batch.tokens.len();
            for (token, row) in rows.chunks_exact_mut(per_token).enumerate() {
                for head in row.chunks_exact_mut(shape.head_length) {
                    if !head_norm.is_empty() {
                        let before = head_copy(head);
                        let before = &before[..head.len()];
                        (self.compute.kernels.rms_norm)(before, head_norm, shape.layer_norm_rms_epsilon, head);
                    }
                    self.rope.rotate(token, head, scale);
                }
            }
        }
    }

    /// Stores the step's keys and values in the cache.
    fn store(&mut self, batch: Batch<'_>, index: usize) {
        let heads = self.shard.plan.heads_kv.len();
        let length = self.shard.shape.head_length;
        let Scratch { key, value, .. } = &self.scratch;
        for (token, entry) in batch.tokens.iter().enumerate() {
            let position = entry.position as usize;
            let block = batch.blocks[entry.slot.index()][position / KV_BLOCK_LENGTH];
            for head in 0..heads {
                let range = (token * heads + head) * length..(token * heads + head + 1) * length;
                let (place, offset) = (Place { layer: index, block, head }, position % KV_BLOCK_LENGTH);
                self.cache.store(self.compute.kernels, place, offset, &key[range.clone()], &value[range]);
            }
        }
    }

    fn attend(&mut self, batch: Batch<'_>, index: usize) {
        let Scratch { query, attended, states, .. } = &mut self.scratch;
        attended.resize(query.len(), 0.0);
        let queries = Queries { layer: index, batch, queries: query };
        attend(&self.compute, &self.cache, &self.heads, queries, states, attended);
    }

    /// `hidden -> partial`: this rank's columns of the feed-forward network or of the chosen experts.
    fn feed_forward(&mut self, batch: Batch<'_>, index: usize) {
        let layer: &Layer = &self.shard.layers[index];
        let epsilon = self.shard.shape.layer_norm_rms_epsilon;
        if let Some(router) = &layer.router {
            return experts(&self.compute, layer, router, &self.hidden, epsilon, &mut self.scratch);
        }
        norm(&self.compute, &self.hidden, &layer.feed_forward_norm, epsilon, &mut self.scratch.normed);
        feed_forward(&self.compute, layer, batch.tokens.len(), &mut self.scratch);
    }

    /// Logits of this rank's vocabulary rows, for the tokens that want them.
    fn output(&mut self, batch: Batch<'_>) {
        let length = self.shard.shape.embedding_length;
        let mut wanted = 0;
        for (token, entry) in batch.tokens.iter().enumerate() {
            if entry.wants_logits {
                self.hidden.copy_within(token * length..(token + 1) * length, wanted * length);
                wanted += 1;
            }
        }
        let output = &self.shard.output;
        self.logits.resize(wanted * output.rows, 0.0);
        if self.logits.is_empty() {
            return;
        }
        let Scratch { normed, activations, .. } = &mut self.scratch;
        let epsilon = self.shard.shape.layer_norm_rms_epsilon;
        norm(&self.compute, &self.hidden[..wanted * length], &self.shard.output_norm, epsilon, normed);
        activations.load(&self.compute, normed, length, output.wanted());
        matmul(&self.compute, output.view(), activations, &mut self.logits);
    }
}

/// Root-mean-square norm of each token (Zhang and Sennrich 2019).
fn norm(compute: &Compute, hidden: &[f32], weight: &[f32], epsilon: f32, out: &mut Vec<f32>) {
    out.resize(hidden.len(), 0.0);
    compute.pool.chunks(out, weight.len(), |token, out| {
        let row = &hidden[token * weight.len()..][..weight.len()];
        (compute.kernels.rms_norm)(row, weight, epsilon, out);
    });
}

/// Copies a head to the stack, because the norm's input and output may not overlap.
fn head_copy(head: &[f32]) -> [f32; gguf::shape::HEAD_LENGTH_MAX as usize] {
    let mut copy = [0.0; gguf::shape::HEAD_LENGTH_MAX as usize];
    copy[..head.len()].copy_from_slice(head);
    copy
}
