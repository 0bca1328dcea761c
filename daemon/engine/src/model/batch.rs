//! What one step computes, and the buffers that it reuses.
use std::ops::Range;

use common::ids::Slot;
use kernels::Activations;
use kernels::{Choice, GroupedActivations, Groups};

use super::kv_cache::CachedLayer;

/// A token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchToken {
    /// Slot of its sequence.
    pub slot: Slot,
    /// Its position in the sequence.
    pub position: u32,
    /// Token id, below the vocabulary's length.
    pub token: u32,
    /// Whether the logits after it are needed.
    pub wants_logits: bool,
    /// Whether it was not sampled, so that the next step of its sequence may replace it.
    pub is_speculative: bool,
}

/// A step's tokens and the KV blocks of their sequences.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Tokens; those of one sequence in order of position.
    pub tokens: &'a [BatchToken],
    /// The blocks of their sequences.
    pub tables: BlockTables<'a>,
}

/// KV blocks of each slot in order of position.
#[derive(Clone, Copy, Debug)]
pub struct BlockTables<'a> {
    /// In layers that attend to everything.
    pub whole: &'a [Vec<u32>],
    /// In layers with a window; the numbers of blocks that fell out of it mean nothing.
    pub windowed: &'a [Vec<u32>],
}

impl<'a> BlockTables<'a> {
    /// The same blocks in all layers.
    pub fn alike(tables: &'a [Vec<u32>]) -> Self {
        Self { whole: tables, windowed: tables }
    }

    /// The blocks of each slot in a layer.
    pub fn of(&self, layer: &CachedLayer) -> &'a [Vec<u32>] {
        if layer.is_windowed { self.windowed } else { self.whole }
    }
}

/// Buffers of a step, reused from step to step.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[token, embedding_length]` after a norm.
    pub normed: Vec<f32>,
    /// The same, quantised.
    pub activations: Activations,
    /// `[token, heads, head_length]`
    pub(super) query: Vec<f32>,
    /// `[token, head_count_kv, head_length]`
    pub(super) key: Vec<f32>,
    /// `[token, head_count_kv, head_length]`
    pub(super) value: Vec<f32>,
    /// `[token, heads, head_length]`
    pub(super) attended: Vec<f32>,
    /// `[token]`: positions of its text, in models whose tokens attend to later ones.
    pub(super) text_lengths: Vec<usize>,
    /// `[token, padded columns]`: what the mixer's output matrix is multiplied with, if its columns have gaps.
    pub(super) spread: Vec<f32>,
    /// Buffers of attention.
    pub(super) together: Together,
    /// Values read from the states of recurrent layers.
    pub(super) read: Vec<f32>,
    /// `[token]`: sums of squares of this rank, if the mixer's norm spans the ranks.
    pub(super) squares: Vec<f32>,
    /// `[token, columns]`
    pub gate: Vec<f32>,
    /// `[token, columns]`
    pub up: Vec<f32>,
    /// `[token, layer of the stage, input_length]`: the inputs of tokens for each layer.
    pub(super) inputs: Vec<f32>,
    /// Buffers of the experts.
    pub routing: Routing,
    /// `[token, embedding_length]`: this rank's contribution to the hidden state.
    pub partial: Vec<f32>,
    /// `[token, embedding_length]`: the sum of all ranks' contributions, before its norm.
    pub(super) summed: Vec<f32>,
}

/// Buffers of attention, reused from layer to layer.
#[derive(Debug, Default)]
pub struct Together {
    /// The step's tokens in ranges that read keys and values together, each of one sequence.
    pub(super) ranges: Vec<Range<usize>>,
    /// `[range, group of heads, slot, token of the range]` states.
    pub(super) states: Vec<f32>,
}

/// Buffers of the experts, reused from step to step.
#[derive(Debug, Default)]
pub struct Routing {
    /// `[token, expert_count]`
    pub(super) logits: Vec<f32>,
    /// `[token, expert_used_count]`
    pub(super) choices: Vec<Choice>,
    pub(super) groups: Groups,
    /// `[token, embedding_length]`, then `[row of the groups, columns]`.
    pub(super) activations: GroupedActivations,
    /// `[row of the groups, columns]`
    pub(super) inner: Vec<f32>,
}

/// Number of positions of each token's text, which ends with the step.
pub(super) fn text_lengths(tokens: &[BatchToken], out: &mut Vec<usize>) {
    out.clear();
    for text in tokens.chunk_by(|one, next| one.slot == next.slot) {
        let length = text.last().map_or(0, |last| last.position as usize + 1);
        out.extend(text.iter().map(|_| length));
    }
}
