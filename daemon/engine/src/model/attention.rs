//! Grouped-query attention of this rank's heads over the blocks of the KV cache. The query heads of a KV head read it
//! together; a long context is cut into parts of a fixed length that threads process separately and that are merged in
//! order, so that a result depends on the sequence alone and not on batch or threads.
use std::ops::Range;

use common::limits::KV_BLOCK_LENGTH;
use kernels::{Attention, Compute, KvValues};
use models::KvHeads;
use topology::LayerCut;

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
    groups: Vec<HeadGroup>,
    /// The same in smaller groups, for steps of few tokens.
    apart: Vec<HeadGroup>,
    lengths: Lengths,
}

/// Query heads that read a KV head together.
#[derive(Clone, Debug)]
struct HeadGroup {
    heads: Range<usize>,
    head_kv: usize,
}

/// Elements of keys and values.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    key: usize,
    value: usize,
}

impl Heads {
    /// The query heads and KV heads of a rank. In steps of few tokens, those of a KV head are `divided` into so many
    /// groups, which threads process separately.
    pub fn new(cut: &LayerCut, kv: KvHeads, divided: usize) -> Self {
        let (heads, per_kv) = (&cut.heads, kv.group);
        let groups = cut.heads_kv.clone().enumerate().map(|(head_kv, kv)| {
            let begin = (kv * per_kv).max(heads.start);
            let end = ((kv + 1) * per_kv).min(heads.end).max(begin);
            HeadGroup { heads: begin - heads.start..end - heads.start, head_kv }
        });
        let groups: Vec<HeadGroup> = groups.collect();
        let apart = groups.iter().flat_map(|group| {
            let length = group.heads.len().div_ceil(divided.max(1)).max(1);
            let parts = group.heads.clone().step_by(length);
            parts.map(move |begin| HeadGroup { heads: begin..(begin + length).min(group.heads.end), ..*group })
        });
        Self { apart: apart.collect(), groups, lengths: Lengths { key: kv.key_length, value: kv.value_length } }
    }

    /// The heads of a layer without attention.
    pub const fn none() -> Self {
        Self { groups: Vec::new(), apart: Vec::new(), lengths: Lengths { key: 0, value: 0 } }
    }
}

/// A step's queries and the layer that they read.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Index of the layer in the cache.
    pub layer: usize,
    /// The step.
    pub batch: Batch<'a>,
    /// `[token, heads, key_length]`, scaled.
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

/// Writes the weighted means of the values into `out` `[token, heads, value_length]`. `states` is scratch.
pub fn attend(
    compute: &Compute,
    cache: &KvCache,
    heads: &Heads,
    queries: Queries<'_>,
    states: &mut Vec<f32>,
    out: &mut [f32],
) {
    let (tokens, lengths) = (queries.batch.tokens.len(), heads.lengths);
    let is_many = tokens * heads.groups.len() >= 4 * compute.pool.threads();
    let groups = &if is_many { &heads.groups } else { &heads.apart }[..];
    let kv = groups.len();
    let largest = groups.iter().map(|group| group.heads.len()).max().unwrap_or(0);
    let per_state = largest * (HEADER + lengths.value);
    let most = (0..tokens).map(|token| queries.parts(token).len()).max().unwrap_or(0);
    // With enough tokens for all threads, each thread adds up all parts of a token. Otherwise the parts are
    // distributed, too.
    let slots = if is_many { 2 } else { most };
    states.resize(tokens * kv * slots * per_state, 0.0);
    let at_once = if is_many { slots } else { 1 };
    compute.pool.chunks(states, at_once * per_state, |index, state| {
        let item = index * at_once / slots;
        let (token, group) = (item / kv, &groups[item % kv]);
        let seen = VisibleKeys { compute, cache, lengths, queries, token, group };
        if is_many { seen.all_parts(state) } else { seen.part(queries.parts(token).start + index % slots, state) }
    });
    let row = out.len() / tokens;
    for (item, states) in states.chunks_exact_mut(slots * per_state).enumerate() {
        let group = &groups[item % kv].heads;
        let out = &mut out[item / kv * row..][group.start * lengths.value..group.end * lengths.value];
        let parts = if is_many { 1 } else { queries.parts(item / kv).len() };
        let queries = queries.of(item / kv, group, lengths.key);
        let (first, rest) = states.split_at_mut(per_state);
        let mut all = state(lengths, queries, first);
        for part in rest.chunks_exact_mut(per_state).take(parts - 1) {
            all.merge(&state(lengths, queries, part));
        }
        for (head, out) in out.chunks_exact_mut(lengths.value).enumerate() {
            let inverse = 1.0 / all.sum[head];
            let values = &all.out[head * lengths.value..];
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
    fn of(&self, token: usize, group: &Range<usize>, key_length: usize) -> &'a [f32] {
        let row = self.queries.len() / self.batch.tokens.len();
        &self.queries[token * row..][group.start * key_length..group.end * key_length]
    }
}

/// One token and some query heads of one KV head.
struct VisibleKeys<'a> {
    compute: &'a Compute,
    cache: &'a KvCache,
    lengths: Lengths,
    queries: Queries<'a>,
    token: usize,
    group: &'a HeadGroup,
}

impl VisibleKeys<'_> {
    /// Adds up all parts in order into the first half of `states`.
    fn all_parts(&self, states: &mut [f32]) {
        let (all, part) = states.split_at_mut(states.len() / 2);
        let queries = self.queries.of(self.token, &self.group.heads, self.lengths.key);
        let parts = self.queries.parts(self.token);
        self.part(parts.start, all);
        for number in parts.skip(1) {
            self.part(number, part);
            let part = state(self.lengths, queries, part);
            state(self.lengths, queries, all).merge(&part);
        }
    }

    fn place(&self, block: u32) -> Place {
        Place { layer: self.queries.layer, block, head: self.group.head_kv }
    }

    /// Computes one part; does nothing if the token does not attend to it.
    fn part(&self, number: usize, out: &mut [f32]) {
        let (length, group) = (self.queries.length(self.token), &self.group.heads);
        let mut state = state(self.lengths, self.queries.of(self.token, group, self.lengths.key), out);
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
                block.next = [next.keys.map_or(&[][..], KvValues::bytes), next.values.bytes()];
            }
            (kernels.attend)(block, &mut state);
        }
    }
}

/// A view of the state: `[heads]` largest scores, `[heads]` sums, `[heads, value_length]` values.
fn state<'a>(lengths: Lengths, queries: &'a [f32], state: &'a mut [f32]) -> Attention<'a> {
    let (key_length, value_length) = (lengths.key, lengths.value);
    let heads = queries.len() / key_length;
    let (largest, rest) = state.split_at_mut(heads);
    let (sum, rest) = rest.split_at_mut(heads);
    Attention { key_length, value_length, queries, largest, sum, out: &mut rest[..heads * value_length] }
}
