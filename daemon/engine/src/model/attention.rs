//! Grouped-query attention of this rank's heads over the blocks of the KV cache. The query heads of a KV head read it
//! together; a long context is cut into parts of a fixed length that threads process separately and that are merged in
//! order, so that a result depends on the sequence alone and not on batch or threads.
use std::ops::Range;

use common::limits::KV_BLOCK_LENGTH;
use kernels::{Attention, Compute};

use super::{
    Batch,
    kv_cache::{KvCache, Place},
};

/// Positions in a part.
const PART: usize = 512;
/// Length of a head's state before its values: the largest score and the sum of weights.
const HEADER: usize = 2;

/// This rank's heads.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Query heads of each KV head, as ranges of this rank's heads.
    groups: Vec<Range<usize>>,
    head_length: usize,
}

impl Heads {
    /// Creates the heads `heads` of a model where `per_kv` query heads share a KV head; `heads_kv` are this rank's KV
    /// heads.
    pub fn new(heads: &Range<usize>, heads_kv: &Range<usize>, per_kv: usize, head_length: usize) -> Self {
        let groups = heads_kv.clone().map(|kv| {
            let begin = (kv * per_kv).max(heads.start);
            begin - heads.start..((kv + 1) * per_kv).min(heads.end).max(begin) - heads.start
        });
        Self { groups: groups.collect(), head_length }
    }

    /// The heads of a layer without attention.
    pub const fn none() -> Self {
        Self { groups: Vec::new(), head_length: 0 }
    }

    fn largest_group(&self) -> usize {
        self.groups.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

/// A step's queries and the layer that they read.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Index of the layer in the cache.
    pub layer: usize,
    /// The step.
    pub batch: Batch<'a>,
    /// `[token, heads, head_length]`, scaled.
    pub queries: &'a [f32],
    /// Newest positions that a token attends to; `None`: all.
    pub window: Option<usize>,
    /// Later positions that a token attends to.
    pub ahead: usize,
    /// `[token]`: positions of its text, if tokens attend to later ones; otherwise empty.
    pub text_lengths: &'a [usize],
    /// `[heads]`: a score without a value; empty if there is none.
    pub sinks: &'a [f32],
    /// Limit of the scores.
    pub score_cap: Option<f32>,
}

/// Writes the weighted means of the values into `out` `[token, heads, head_length]`. `states` is scratch.
pub fn attend(
    compute: &Compute,
    cache: &KvCache,
    heads: &Heads,
    queries: Queries<'_>,
    states: &mut Vec<f32>,
    out: &mut [f32],
) {
    let (tokens, kv) = (queries.batch.tokens.len(), heads.groups.len());
    let per_state = heads.largest_group() * (HEADER + heads.head_length);
    let most = (0..tokens).map(|token| queries.parts(token).len()).max().unwrap_or(0);
    // With enough tokens for all threads, each thread adds up all parts of a token. Otherwise the parts are
    // distributed, too.
    let is_many = tokens * kv >= 4 * compute.pool.threads();
    let slots = if is_many { 2 } else { most };
    states.resize(tokens * kv * slots * per_state, 0.0);
    let at_once = if is_many { slots } else { 1 };
    compute.pool.chunks(states, at_once * per_state, |index, state| {
        let item = index * at_once / slots;
        let (token, head_kv) = (item / kv, item % kv);
        let seen = VisibleKeys { compute, cache, heads, queries, token, head_kv };
        if is_many { seen.all_parts(state) } else { seen.part(queries.parts(token).start + index % slots, state) }
    });
    let row = out.len() / tokens;
    for (item, states) in states.chunks_exact_mut(slots * per_state).enumerate() {
        let group = &heads.groups[item % kv];
        let out = &mut out[item / kv * row..][group.start * heads.head_length..group.end * heads.head_length];
        let parts = if is_many { 1 } else { queries.parts(item / kv).len() };
        let queries = queries.of(item / kv, group, heads.head_length);
        let (first, rest) = states.split_at_mut(per_state);
        let mut all = state(heads.head_length, queries, first);
        for part in rest.chunks_exact_mut(per_state).take(parts - 1) {
            all.merge(&state(heads.head_length, queries, part));
        }
        for (head, out) in out.chunks_exact_mut(heads.head_length).enumerate() {
            let inverse = 1.0 / all.sum[head];
            let values = &all.out[head * heads.head_length..];
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value * inverse);
        }
    }
}

impl<'a> Queries<'a> {
    /// Positions up to a token, itself included.
    fn own(&self, token: usize) -> usize {
        self.batch.tokens[token].position as usize + 1
    }

    /// Where the positions end that a token attends to.
    fn length(&self, token: usize) -> usize {
        let own = self.own(token);
        self.text_lengths.get(token).map_or(own, |length| own.saturating_add(self.ahead).min(*length))
    }

    /// The first position that a token attends to.
    fn first(&self, token: usize) -> usize {
        self.window.map_or(0, |window| self.own(token).saturating_sub(window))
    }

    /// Numbers of the parts with positions that a token attends to.
    fn parts(&self, token: usize) -> Range<usize> {
        self.first(token) / PART..self.length(token).div_ceil(PART)
    }

    /// The queries of some heads of a token.
    fn of(&self, token: usize, group: &Range<usize>, head_length: usize) -> &'a [f32] {
        let row = self.queries.len() / self.batch.tokens.len();
        &self.queries[token * row..][group.start * head_length..group.end * head_length]
    }
}

/// One token and one KV head.
struct VisibleKeys<'a> {
    compute: &'a Compute,
    cache: &'a KvCache,
    heads: &'a Heads,
    queries: Queries<'a>,
    token: usize,
    head_kv: usize,
}

impl VisibleKeys<'_> {
    /// Adds up all parts in order into the first half of `states`.
    fn all_parts(&self, states: &mut [f32]) {
        let (all, part) = states.split_at_mut(states.len() / 2);
        let group = &self.heads.groups[self.head_kv];
        let queries = self.queries.of(self.token, group, self.heads.head_length);
        let parts = self.queries.parts(self.token);
        self.part(parts.start, all);
        for number in parts.skip(1) {
            self.part(number, part);
            let part = state(self.heads.head_length, queries, part);
            state(self.heads.head_length, queries, all).merge(&part);
        }
    }

    fn place(&self, block: u32) -> Place {
        Place { layer: self.queries.layer, block, head: self.head_kv }
    }

    /// Computes one part; does nothing if the token does not attend to it.
    fn part(&self, number: usize, out: &mut [f32]) {
        let (length, head_length) = (self.queries.length(self.token), self.heads.head_length);
        let group = &self.heads.groups[self.head_kv];
        let mut state = state(head_length, self.queries.of(self.token, group, head_length), out);
        state.clear();
        let first = self.queries.first(self.token);
        if number == first / PART && !self.queries.sinks.is_empty() {
            state.largest.copy_from_slice(&self.queries.sinks[group.clone()]);
            state.sum.fill(1.0);
        }
        let entry = self.queries.batch.tokens[self.token];
        let tables = self.queries.batch.tables.of(self.cache.layer(self.queries.layer));
        let blocks = &tables[entry.slot.index()];
        let from = (number * PART).max(first / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH);
        for begin in (from..length.min((number + 1) * PART)).step_by(KV_BLOCK_LENGTH) {
            let count = (length - begin).min(KV_BLOCK_LENGTH);
            let (number, kernels) = (begin / KV_BLOCK_LENGTH, self.compute.kernels);
            let mut block = self.cache.block(self.place(blocks[number]), count);
            block.first = first.saturating_sub(begin);
            block.score_cap = self.queries.score_cap;
            if let Some(next) = blocks.get(number + 1).filter(|_| begin + KV_BLOCK_LENGTH < length) {
                let next = self.cache.block(self.place(*next), 0);
                block.next = [next.keys.bytes(), next.values.bytes()];
            }
            (kernels.attend)(block, &mut state);
        }
    }
}

/// A view of the state: `[heads]` largest scores, `[heads]` sums, `[heads, head_length]` values.
fn state<'a>(head_length: usize, queries: &'a [f32], state: &'a mut [f32]) -> Attention<'a> {
    let heads = queries.len() / head_length;
    let (largest, rest) = state.split_at_mut(heads);
    let (sum, rest) = rest.split_at_mut(heads);
    Attention { head_length, queries, largest, sum, out: &mut rest[..heads * head_length] }
}
