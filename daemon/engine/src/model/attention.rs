//! Grouped-query attention of this rank's heads over the blocks of the KV cache. The query heads of a KV head read it
//! together, and so do some tokens of a sequence: a block comes from memory once for all of them. A long context is cut
//! into parts of a fixed length that threads process separately and that are merged in order, so that a result depends
//! on the sequence alone and not on batch or threads.
use std::ops::Range;

use common::limits::KV_BLOCK_LENGTH;
use kernels::{Attention, Compute, KvValues};
use models::KvHeads;
use topology::LayerCut;

use super::{
    Batch, BatchToken,
    batch::Together,
    kv_cache::{KvCache, Place},
};

/// Positions in a part.
const PART: usize = 512;
/// Most tokens of a sequence that read a block together: their queries and states stay in the second cache level.
const TOKENS: usize = 8;
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

/// Writes the weighted means of the values into `out` `[token, heads, value_length]`.
pub fn attend(
    compute: &Compute,
    cache: &KvCache,
    heads: &Heads,
    queries: Queries<'_>,
    together: &mut Together,
    out: &mut [f32],
) {
    let (lengths, tokens) = (heads.lengths, queries.batch.tokens);
    let Together { ranges, states } = together;
    collect_ranges(tokens, ranges);
    let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
    // States of the parts of several tokens behind a long context would take more memory than those of a prompt.
    let least = if longest > 1 { 1 } else { 4 } * compute.pool.threads();
    let is_many = ranges.len() * heads.groups.len() >= least;
    let groups = &if is_many { &heads.groups } else { &heads.apart }[..];
    let largest = groups.iter().map(|group| group.heads.len()).max().unwrap_or(0);
    let per_state = largest * (HEADER + lengths.value);
    let per_slot = longest * per_state;
    let most = ranges.iter().map(|tokens| queries.parts_of(tokens).len()).max().unwrap_or(0);
    // With enough tokens for all threads, each thread adds up all parts of a range. Otherwise the parts are
    // distributed, too.
    let slots = if is_many { 2 } else { most };
    states.resize(ranges.len() * groups.len() * slots * per_slot, 0.0);
    let seen_by = |item: usize| {
        let (tokens, group) = (&ranges[item / groups.len()], &groups[item % groups.len()]);
        VisibleKeys { compute, cache, lengths, queries, tokens, group, per_state }
    };
    if is_many {
        compute.pool.chunks(states, slots * per_slot, |item, states| seen_by(item).all_parts(states));
    } else {
        compute.pool.chunks(states, per_slot, |index, states| {
            let seen = seen_by(index / slots);
            seen.part(queries.parts_of(seen.tokens).start + index % slots, states);
        });
        if slots > 1 {
            compute.pool.chunks(states, slots * per_slot, |item, states| seen_by(item).merge_all(per_slot, states));
        }
    }
    let (row, states) = (out.len() / tokens.len(), &states[..]);
    // Few tokens are copied faster than threads wake up.
    let at_once = if is_many { 1 } else { tokens.len() };
    compute.pool.chunks(out, at_once * row, |chunk, out| {
        for (token, out) in (chunk * at_once..).zip(out.chunks_exact_mut(row)) {
            let range = ranges.partition_point(|range| range.end <= token);
            for (number, group) in groups.iter().enumerate() {
                let slot = (range * groups.len() + number) * slots * per_slot;
                let state = &states[slot + (token - ranges[range].start) * per_state..][..per_state];
                let columns = group.heads.start * lengths.value..group.heads.end * lengths.value;
                means(state, group.heads.len(), &mut out[columns]);
            }
        }
    });
}

/// Divides the tokens of a step into ranges that read together.
fn collect_ranges(tokens: &[BatchToken], ranges: &mut Vec<Range<usize>>) {
    ranges.clear();
    let mut begin = 0;
    for sequence in tokens.chunk_by(|one, next| one.slot == next.slot) {
        for part in sequence.chunks(TOKENS) {
            ranges.push(begin..begin + part.len());
            begin += part.len();
        }
    }
}

/// The weighted means `[heads, value_length]` of a state.
fn means(state: &[f32], heads: usize, out: &mut [f32]) {
    let (sums, values) = (&state[heads..2 * heads], &state[HEADER * heads..]);
    let length = out.len() / heads;
    for (head, out) in out.chunks_exact_mut(length).enumerate() {
        let inverse = 1.0 / sums[head];
        out.iter_mut().zip(&values[head * length..]).for_each(|(out, value)| *out = value * inverse);
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

    /// Numbers of the parts with positions that some tokens of a sequence attend to.
    fn parts_of(&self, tokens: &Range<usize>) -> Range<usize> {
        let parts = tokens.clone().map(|token| self.parts(token));
        parts.reduce(|all, own| all.start.min(own.start)..all.end.max(own.end)).unwrap_or_default()
    }

    /// The queries of some heads of a token.
    fn of(&self, token: usize, group: &Range<usize>, key_length: usize) -> &'a [f32] {
        let row = self.queries.len() / self.batch.tokens.len();
        &self.queries[token * row..][group.start * key_length..group.end * key_length]
    }
}

/// Some tokens of a sequence and some query heads of one KV head.
struct VisibleKeys<'a> {
    compute: &'a Compute,
    cache: &'a KvCache,
    lengths: Lengths,
    queries: Queries<'a>,
    tokens: &'a Range<usize>,
    group: &'a HeadGroup,
    /// Length of a token's state.
    per_state: usize,
}

impl VisibleKeys<'_> {
    /// Adds up all parts in order into the first half of `states` `[2, token]`.
    fn all_parts(&self, states: &mut [f32]) {
        let (all, part) = states.split_at_mut(states.len() / 2);
        for number in self.queries.parts_of(self.tokens) {
            self.part(number, part);
            self.merge(number, all, part);
            // Behind a long context, all parts together take a slow core many seconds.
            self.compute.pool.advance();
        }
    }

    /// Adds up the parts `[part, token]` in order into the first one.
    fn merge_all(&self, per_slot: usize, states: &mut [f32]) {
        let (all, rest) = states.split_at_mut(per_slot);
        let numbers = self.queries.parts_of(self.tokens);
        // The first part is in its place for the tokens that attend to it.
        for (number, part) in numbers.skip(1).zip(rest.chunks_exact_mut(per_slot)) {
            self.merge(number, all, part);
        }
    }

    /// Adds a part `[token]` to what the tokens that attend to it have of the parts before.
    fn merge(&self, number: usize, all: &mut [f32], part: &mut [f32]) {
        let states = all.chunks_exact_mut(self.per_state).zip(part.chunks_exact_mut(self.per_state));
        for (token, (all, part)) in self.tokens.clone().zip(states) {
            let parts = self.queries.parts(token);
            if parts.start == number {
                all.copy_from_slice(part);
            } else if parts.contains(&number) {
                let part = self.state(token, part);
                self.state(token, all).merge(&part);
            }
        }
    }

    /// Computes one part `[token]` for the tokens that attend to it.
    fn part(&self, number: usize, states: &mut [f32]) {
        let (mut first, mut end) = (usize::MAX, 0);
        for (token, own) in self.tokens.clone().zip(states.chunks_exact_mut(self.per_state)) {
            if self.queries.parts(token).contains(&number) {
                self.begin(token, number, own);
                (first, end) = (first.min(self.queries.first(token)), end.max(self.queries.length(token)));
            }
        }
        let tables = self.queries.batch.tables.of(self.cache.layer(self.queries.layer));
        let blocks = &tables[self.queries.batch.tokens[self.tokens.start].slot.index()];
        let from = (number * PART).max(first / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH);
        for begin in (from..end.min((number + 1) * PART)).step_by(KV_BLOCK_LENGTH) {
            let number = begin / KV_BLOCK_LENGTH;
            let mut block = self.cache.block(self.place(blocks[number]), KV_BLOCK_LENGTH);
            block.score_cap = self.queries.score_cap;
            if let Some(next) = blocks.get(number + 1).filter(|_| begin + KV_BLOCK_LENGTH < end) {
                let next = self.cache.block(self.place(*next), 0);
                block.next = [next.keys.map_or(&[][..], KvValues::bytes), next.values.bytes()];
            }
            for (token, own) in self.tokens.clone().zip(states.chunks_exact_mut(self.per_state)) {
                let (first, length) = (self.queries.first(token), self.queries.length(token));
                if first < begin + KV_BLOCK_LENGTH && begin < length {
                    block.first = first.saturating_sub(begin);
                    block.count = (length - begin).min(KV_BLOCK_LENGTH);
                    kernels::attend(self.compute.kernels, block, &mut self.state(token, own));
                    // Once is enough.
                    block.next = [&[]; 2];
                }
            }
        }
    }

    /// The state of a token before a part.
    fn begin(&self, token: usize, number: usize, state: &mut [f32]) {
        let mut state = self.state(token, state);
        state.clear();
        if number == self.queries.parts(token).start && !self.queries.sinks.is_empty() {
            state.largest.copy_from_slice(&self.queries.sinks[self.group.heads.clone()]);
            state.sum.fill(1.0);
        }
    }

    fn place(&self, block: u32) -> Place {
        Place { layer: self.queries.layer, block, head: self.group.head_kv }
    }

    /// A view of a token's state.
    fn state<'a>(&'a self, token: usize, state: &'a mut [f32]) -> Attention<'a> {
        state_of(self.lengths, self.queries.of(token, &self.group.heads, self.lengths.key), state)
    }
}

/// A view of the state: `[heads]` largest scores, `[heads]` sums, `[heads, value_length]` values.
fn state_of<'a>(lengths: Lengths, queries: &'a [f32], state: &'a mut [f32]) -> Attention<'a> {
    let (key_length, value_length) = (lengths.key, lengths.value);
    let heads = queries.len() / key_length;
    let (largest, rest) = state.split_at_mut(heads);
    let (sum, rest) = rest.split_at_mut(heads);
    Attention { key_length, value_length, queries, largest, sum, out: &mut rest[..heads * value_length] }
}
