//! The forward pass of one rank over a batch of tokens of several sequences. Follows the paper; timing is done
//! elsewhere.
mod joining;
mod output;

use common::{ids::LayerIndex, limits::SLOTS_MAX};
use kernels::{Compute, matmul};
use models::Mixer;
use telemetry::SyncKind;
use topology::LayerCut;

use super::{
    attention::Heads,
    embedding::RowError,
    error::ExpertError,
    experts::experts,
    feed_forward::feed_forward,
    kv_cache::KvCache,
    mixer::{
        MixerWeights, attention::OwnHeads, convolution, delta, latent::OwnLatent, squares::SquaresPlace,
        state::StateCache, state_space::OwnSpace,
    },
    norm::{norm, same_norm},
    pace::Pace,
    rope::Rope,
    weights::{Layer, Shard},
};
use crate::collective::{Collective, CollectiveError, WorkCounter};
use crate::model::batch::{Batch, Scratch, text_lengths};

/// Receives a notification as soon as a layer has stored its keys and values.
pub trait KvSink {
    /// The layer with this index in the cache has stored the keys and values of the step, or changed its states.
    fn stored(&mut self, layer: usize, cache: &KvCache, states: &StateCache);
}

/// Ignores the notifications.
impl KvSink for () {
    fn stored(&mut self, _: usize, _: &KvCache, _: &StateCache) {}
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The model file cannot be read.
    #[error(transparent)]
    Embedding(#[from] RowError),
    /// The model file cannot be read for experts.
    #[error(transparent)]
    Experts(#[from] ExpertError),
}

/// What a rank remembers of past positions.
#[derive(Debug)]
pub struct Memories<'a> {
    /// Keys and values.
    pub cache: &'a mut KvCache,
    /// States of recurrent layers.
    pub states: &'a mut StateCache,
}

/// One rank's model, ready to step.
#[derive(Debug)]
pub struct Model {
    shard: Shard,
    compute: Compute,
    cache: KvCache,
    states: StateCache,
    /// Tables of rotation angles, as in the spec.
    ropes: Vec<Rope>,
    /// This rank's heads in each kind of layer.
    heads: Vec<Heads>,
    scratch: Scratch,
    /// `[token, embedding_length]`, the same on every rank of the stage.
    hidden: Vec<f32>,
    /// `[token that wants logits, vocabulary rows of this rank]`
    logits: Vec<f32>,
    /// `[token, embedding_length]`: the hidden states of its model before the tokens of a step, if it is a predictor.
    joined: Vec<f32>,
    /// For benchmarks: waits instead of computing.
    pace: Option<Pace>,
}

impl Model {
    /// Creates a model from its weights, an empty KV cache and the means to compute, for sequences of at most
    /// `context_length` positions.
    pub fn new(shard: Shard, cache: KvCache, compute: Compute, context_length: usize) -> Self {
        let ropes = shard.spec.ropes.iter().map(|rope| {
            let is_long = rope.takes_long_divisors(context_length) == Some(true);
            let factors = if is_long { &shard.rope_factors_long } else { &shard.rope_factors };
            Rope::new(rope, factors.as_deref())
        });
        let ropes = ropes.collect();
        let kinds = shard.spec.kinds.iter().zip(&shard.plan.cuts);
        let heads = kinds.map(|(kind, cut)| {
            // All heads of latent attention read one KV head.
            let divided = if matches!(kind.mixer, Mixer::Latent(_)) { compute.pool.threads() } else { 1 };
            kind.mixer.kv_heads().map_or_else(Heads::none, |own| Heads::new(cut, own, divided))
        });
        let (heads, scratch) = (heads.collect(), Scratch::default());
        // Reserve for the largest batch; untouched pages cost nothing.
        let logits = Vec::with_capacity(usize::from(SLOTS_MAX) * shard.output.rows);
        Self {
            shard,
            compute,
            cache,
            states: StateCache::none(),
            ropes,
            heads,
            scratch,
            hidden: Vec::new(),
            logits,
            joined: Vec::new(),
            pace: None,
        }
    }

    /// The model with these states of recurrent layers.
    pub fn with_states(self, states: StateCache) -> Self {
        Self { states, ..self }
    }

    /// Makes the model wait at this pace instead of computing.
    pub fn paced(self, pace: Option<Pace>) -> Self {
        Self { pace, ..self }
    }

    /// Counts reads of the model's file, and the waits of a paced model, as work of an engine.
    pub fn report_to(&mut self, work: &WorkCounter) {
        self.shard.report_to(work);
        self.pace.iter_mut().for_each(|pace| pace.report_to(work));
    }

    /// The weights.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Keys and values of past positions, and states.
    pub fn memories(&mut self) -> Memories<'_> {
        Memories { cache: &mut self.cache, states: &mut self.states }
    }

    /// What an embedding is computed from: the weights, the kernels, the hidden states of the latest step
    /// `[token, embedding_length]`, and scratch.
    pub(super) fn pooling_parts(&mut self) -> (&Shard, &Compute, &[f32], &mut Scratch) {
        (&self.shard, &self.compute, &self.hidden, &mut self.scratch)
    }

    /// Its kernels and threads.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Copies KV blocks, one after another, as (source, destination), both below the cache's block count.
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        copies.iter().for_each(|(from, to)| self.cache.copy(*from, *to));
    }

    /// Copies states, one after another, as (source, destination), both below the number of states.
    pub fn copy_states(&mut self, copies: &[(u16, u16)]) {
        copies.iter().for_each(|(from, to)| self.states.copy(usize::from(*from), usize::from(*to)));
    }

    /// The hidden states of a step of `tokens` tokens, `[token, embedding_length]`: input from the previous stage
    /// before the step, output for the next stage after it.
    pub fn hidden(&mut self, tokens: usize) -> &mut [f32] {
        self.hidden.resize(tokens * self.shard.spec.embedding_length, 0.0);
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
        self.states.begin(batch.tokens);
        if self.shard.plan.is_first_stage() {
            self.embed(batch)?;
        }
        self.join();
        self.load_inputs(batch)?;
        if !self.shard.spec.generates() {
            text_lengths(batch.tokens, &mut self.scratch.text_lengths);
        }
        for rope in &mut self.ropes {
            rope.load(batch.tokens.iter().map(|token| token.position));
        }
        for index in 0..self.shard.layers.len() {
            let layer = LayerIndex((self.shard.plan.layers.start + index) as u32);
            let ([mixes, feeds], [sums, _]) = self.halves(index);
            if mixes {
                self.mix(batch, index);
            }
            sink.stored(index, &self.cache, &self.states);
            if sums > 0 {
                self.add_up(index, layer, SyncKind::Attention, collective)?;
            }
            if feeds {
                self.feed_forward(batch, index)?;
                self.add_up(index, layer, SyncKind::FeedForward, collective)?;
            }
            self.add_input(index);
        }
        self.logits.clear();
        if self.shard.plan.is_last_stage(&self.shard.spec) {
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
        let (tokens, embedding) = (batch.tokens.len(), self.shard.spec.embedding_length);
        pace.begin(batch);
        for (index, own) in self.shard.layers.iter().enumerate() {
            let layer = LayerIndex((self.shard.plan.layers.start + index) as u32);
            let ranks = self.shard.plan.cut_of(&self.shard.spec, layer.0 as usize).ranks;
            let exchanges = own.spec.exchanges(tokens, ranks, embedding);
            for (kind, rows) in [SyncKind::Attention, SyncKind::FeedForward].into_iter().zip(exchanges) {
                pace.half_layer(layer, kind);
                if kind == SyncKind::Attention {
                    sink.stored(index, &self.cache, &self.states);
                }
                if rows > 0 {
                    let Scratch { partial, summed, .. } = &mut self.scratch;
                    partial.resize(rows * embedding, 0.0);
                    summed.resize(rows * embedding, 0.0);
                    collective.all_reduce(layer, kind, partial, summed)?;
                }
            }
        }
        self.hidden.resize(tokens * embedding, 0.0);
        self.logits.clear();
        if self.shard.plan.is_last_stage(&self.shard.spec) {
            pace.output(batch, &self.shard, &mut self.logits);
        }
        Ok(())
    }

    fn embed(&mut self, batch: Batch<'_>) -> Result<(), ForwardError> {
        let length = self.shard.spec.embedding_length;
        self.hidden.resize(batch.tokens.len() * length, 0.0);
        embed(&mut self.shard, batch, &mut self.hidden)
    }

    /// The inputs that the step's tokens have for each layer, if they have any.
    fn load_inputs(&mut self, batch: Batch<'_>) -> Result<(), ForwardError> {
        if self.shard.inputs().is_none() {
            return Ok(());
        }
        // A later stage has no embeddings yet.
        let is_first = self.shard.plan.is_first_stage();
        let mut embeddings = std::mem::take(if is_first { &mut self.hidden } else { &mut self.scratch.summed });
        if !is_first {
            embeddings.resize(batch.tokens.len() * self.shard.spec.embedding_length, 0.0);
            embed(&mut self.shard, batch, &mut embeddings)?;
        }
        let Some(inputs) = self.shard.inputs() else { return Ok(()) };
        inputs.load(&self.compute, batch.tokens, &embeddings, &mut self.scratch)?;
        *(if is_first { &mut self.hidden } else { &mut self.scratch.summed }) = embeddings;
        Ok(())
    }

    /// Adds the tokens' inputs for this layer to the hidden state, and scales the result.
    fn add_input(&mut self, index: usize) {
        let (layer, epsilon) = (&self.shard.layers[index], self.shard.spec.norm_epsilon);
        if let Some(input) = &layer.input {
            input.add(&self.compute, index, epsilon, &mut self.hidden, &mut self.scratch);
        }
        if let Some(scale) = layer.output_scale {
            self.hidden.iter_mut().for_each(|hidden| *hidden *= scale);
        }
    }

    /// `hidden -> partial`: the mixer of this rank's units.
    fn mix(&mut self, batch: Batch<'_>, index: usize) {
        let layer = &self.shard.layers[index];
        norm(&self.compute, &self.shard.spec, &self.hidden, &layer.mixer_norm, &mut self.scratch.normed);
        self.scratch.partial.clear();
        self.scratch.partial.resize(self.hidden.len(), 0.0);
        let mixer = &self.shard.layers[index].spec.mixer;
        let has_squares = mixer.squares_rows(1, self.cut(index).ranks, self.shard.spec.embedding_length) > 0;
        self.scratch.squares.clear();
        // A rank without units has only zeros.
        self.scratch.squares.resize(if has_squares { batch.tokens.len() } else { 0 }, 0.0);
        if !self.cut(index).heads.is_empty() {
            self.mix_units(batch, index);
            let output = &self.shard.layers[index].mixer_output;
            let Scratch { activations, attended, spread, partial, .. } = &mut self.scratch;
            activations.load(&self.compute, output.spread(attended, spread), output.columns, output.wanted());
            matmul(&self.compute, output.view(), activations, partial);
            output.scale(partial);
        }
        let bias = &self.shard.layers[index].mixer_output_bias;
        if !bias.is_empty() {
            let rows = self.scratch.partial.chunks_exact_mut(bias.len());
            rows.for_each(|row| (self.compute.kernels.add)(row, bias));
        }
    }

    /// `normed -> attended`
    fn mix_units(&mut self, batch: Batch<'_>, index: usize) {
        let (layer, scratch, compute) = (&self.shard.layers[index], &mut self.scratch, &self.compute);
        let (number, epsilon) = (self.shard.plan.layers.start + index, self.shard.spec.norm_epsilon);
        let cut = self.shard.plan.cut_of(&self.shard.spec, number);
        let heads = &self.heads[usize::from(self.shard.spec.layers[number])];
        match (&layer.spec.mixer, &layer.mixer) {
            (Mixer::Attention(spec), MixerWeights::Attention(weights)) => {
                let ropes = &self.ropes;
                let own = OwnHeads { compute, spec, weights, epsilon, cut, heads, ropes, layer: index };
                own.mix(batch, &mut self.cache, scratch);
            }
            (Mixer::Latent(spec), MixerWeights::Latent(weights)) => {
                let rope = &self.ropes[usize::from(spec.rope)];
                let own = OwnLatent { compute, spec, weights, epsilon, heads, rope, layer: index };
                own.mix(batch, &mut self.cache, scratch);
            }
            (_, MixerWeights::Convolution(weights)) => {
                convolution::mix(compute, weights, index, batch.tokens, &mut self.states, scratch);
            }
            (Mixer::Delta(spec), MixerWeights::Delta(weights)) => {
                delta::mix(compute, spec, weights, index, batch.tokens, &mut self.states, scratch);
            }
            (Mixer::StateSpace(spec), MixerWeights::StateSpace(weights)) => {
                let own = OwnSpace { compute, spec, weights, cut, layer: index };
                own.mix(batch.tokens, &mut self.states, scratch);
            }
            _ => unreachable!("weights are read as the layer's description demands"),
        }
    }

    /// This rank's part of a layer, numbered in the stage.
    fn cut(&self, index: usize) -> &LayerCut {
        self.shard.plan.cut_of(&self.shard.spec, self.shard.plan.layers.start + index)
    }

    /// Whether a layer has either half, and how many hidden states of each token ranks add up behind it.
    fn halves(&self, index: usize) -> ([bool; 2], [usize; 2]) {
        let spec = &self.shard.layers[index].spec;
        (spec.halves(), spec.sums())
    }

    /// `partial -> hidden`: adds the sum over the ranks of what half a layer computed, or the norm of that sum.
    fn add_up(
        &mut self,
        index: usize,
        layer: LayerIndex,
        kind: SyncKind,
        collective: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        let scale = self.shard.layers[index].spec.residual_scale;
        if scale != 1.0 {
            self.scratch.partial.iter_mut().for_each(|value| *value *= scale);
        }
        if kind == SyncKind::Attention && !self.scratch.squares.is_empty() {
            return self.add_up_normed(index, layer, collective);
        }
        let weights = &self.shard.layers[index];
        let Scratch { partial, normed, summed, .. } = &mut self.scratch;
        let branch = weights.shared.as_ref().and_then(|shared| shared.branch.as_ref());
        let branch = branch.filter(|_| kind == SyncKind::FeedForward);
        let weight = match kind {
            SyncKind::Attention => &weights.mixer_post_norm,
            SyncKind::FeedForward => &weights.feed_forward_post_norm,
        };
        if weight.is_empty() {
            return Ok(collective.all_reduce(layer, kind, partial, &mut self.hidden)?);
        }
        summed.clear();
        summed.resize(partial.len(), 0.0);
        collective.all_reduce(layer, kind, partial, summed)?;
        let epsilon = self.shard.spec.norm_epsilon;
        if let Some(branch) = branch {
            // The experts and the branch next to them have norms of their own before the norm of both.
            let (experts, own) = summed.split_at(self.hidden.len());
            same_norm(&self.compute, own, &branch.behind, epsilon, partial);
            same_norm(&self.compute, experts, &branch.behind_experts, epsilon, normed);
            partial.iter_mut().zip(&*normed).for_each(|(sum, experts)| *sum += *experts);
            summed.clear();
            summed.extend_from_slice(partial);
        }
        same_norm(&self.compute, summed, weight, epsilon, normed);
        self.hidden.iter_mut().zip(normed).for_each(|(hidden, value)| *hidden += *value);
        Ok(())
    }

    /// `partial -> hidden`: adds the sum over the ranks of what a mixer computed whose norm spans them, divided by the root
    /// mean square of all of them.
    fn add_up_normed(
        &mut self,
        index: usize,
        layer: LayerIndex,
        collective: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        let (embedding, values) = (self.shard.spec.embedding_length, self.hidden.len());
        let cut = self.shard.plan.cut_of(&self.shard.spec, layer.0 as usize);
        let (place, mixer) = (SquaresPlace { ranks: cut.ranks, embedding }, &self.shard.layers[index].spec.mixer);
        let Scratch { partial, summed, squares, .. } = &mut self.scratch;
        let rows = mixer.squares_rows(squares.len(), cut.ranks, embedding);
        partial.resize(values + rows * embedding, 0.0);
        place.write(cut.rank, squares, &mut partial[values..]);
        summed.clear();
        summed.resize(partial.len(), 0.0);
        collective.all_reduce(layer, SyncKind::Attention, partial, summed)?;
        let (units, columns) = mixer.units();
        place.add_normed(summed, units * columns, self.shard.spec.norm_epsilon, &mut self.hidden);
        Ok(())
    }

    /// `hidden -> partial`: this rank's columns of the feed-forward network or of the chosen experts, plus, in a layer
    /// whose halves are parallel, the attention's output.
    fn feed_forward(&mut self, batch: Batch<'_>, index: usize) -> Result<(), ForwardError> {
        let Shard { layers, spec, experts: cache, .. } = &mut self.shard;
        let layer: &Layer = &layers[index];
        let epsilon = spec.norm_epsilon;
        if let Some(router) = &layer.router {
            let cached = cache.as_mut().and_then(|cache| cache.of_layer(index));
            return Ok(experts(&self.compute, layer, router, cached, &self.hidden, epsilon, &mut self.scratch)?);
        }
        if layer.spec.is_parallel() {
            // The network reads the norm that the attention left, and overwrites `partial`.
            let Scratch { partial, summed, .. } = &mut self.scratch;
            std::mem::swap(partial, summed);
            partial.resize(summed.len(), 0.0);
            feed_forward(&self.compute, layer, batch.tokens.len(), &mut self.scratch);
            (self.compute.kernels.add)(&mut self.scratch.partial, &self.scratch.summed);
            return Ok(());
        }
        norm(&self.compute, spec, &self.hidden, &layer.feed_forward_norm, &mut self.scratch.normed);
        feed_forward(&self.compute, layer, batch.tokens.len(), &mut self.scratch);
        Ok(())
    }
}

/// The scaled embeddings of a step's tokens, `[token, embedding_length]`.
fn embed(shard: &mut Shard, batch: Batch<'_>, out: &mut [f32]) -> Result<(), ForwardError> {
    let (length, scale) = (shard.spec.embedding_length, shard.spec.embedding_scale);
    for (entry, hidden) in batch.tokens.iter().zip(out.chunks_exact_mut(length)) {
        shard.embed(entry.token, hidden)?;
        if scale != 1.0 {
            hidden.iter_mut().for_each(|value| *value *= scale);
        }
    }
    Ok(())
}
