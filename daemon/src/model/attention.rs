//! Grouped-query attention of this rank's heads over the blocks of the KV cache, with an online softmax by position.
use shared::topology::spec::KV_BLOCK_LENGTH;

use super::kv_cache::{HeadBlock, KvCache};
use crate::kernels::Kernels;

/// One head of one token: what it attends with and to.
#[derive(Clone, Copy, Debug)]
pub struct HeadQuery<'a> {
    /// The layer's number in the cache.
    pub layer: usize,
    /// The KV head, counted on this rank.
    pub head_kv: usize,
    /// Positions that it sees: its own and all before.
    pub length: usize,
    /// The sequence's blocks in the order of positions.
    pub blocks: &'a [u32],
    /// `[head_length]`
    pub query: &'a [f32],
}

/// Writes the weighted mean of the values into `out` `[head_length]`.
///
/// Positions are merged block by block in order, so that the result depends on the sequence alone and not on the batch
/// (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax").
pub fn attend(kernels: &Kernels, cache: &KvCache, head: HeadQuery<'_>, out: &mut [f32]) {
    let scale = 1.0 / (out.len() as f32).sqrt();
    let mut largest = f32::NEG_INFINITY;
    let mut sum = 0.0;
    out.fill(0.0);
    for (index, block) in head.blocks.iter().take(head.length.div_ceil(KV_BLOCK_LENGTH)).enumerate() {
        let count = (head.length - index * KV_BLOCK_LENGTH).min(KV_BLOCK_LENGTH);
        let (keys, values) = cache.block(head.layer, *block, head.head_kv);
        let mut scores = [0.0; KV_BLOCK_LENGTH];
        let scores = &mut scores[..count];
        score(kernels, keys, head.query, scores);
        scores.iter_mut().for_each(|score| *score *= scale);
        let block_largest = scores.iter().fold(f32::NEG_INFINITY, |largest, score| largest.max(*score));
        if block_largest > largest {
            let shrink = (largest - block_largest).exp();
            out.iter_mut().for_each(|value| *value *= shrink);
            sum *= shrink;
            largest = block_largest;
        }
        for score in scores.iter_mut() {
            *score = (*score - largest).exp();
            sum += *score;
        }
        accumulate(kernels, values, scores, out);
    }
    let inverse = 1.0 / sum;
    out.iter_mut().for_each(|value| *value *= inverse);
}

fn score(kernels: &Kernels, keys: HeadBlock<'_>, query: &[f32], scores: &mut [f32]) {
    match keys {
        HeadBlock::F32(keys) => {
            let rows = scores.iter_mut().zip(keys.chunks_exact(query.len()));
            rows.for_each(|(score, key)| *score = (kernels.dot_f32)(query, key));
        }
        HeadBlock::F16(keys) => {
            let rows = scores.iter_mut().zip(keys.chunks_exact(query.len()));
            rows.for_each(|(score, key)| *score = (kernels.dot_f16)(query, key));
        }
    }
}

fn accumulate(kernels: &Kernels, values: HeadBlock<'_>, weights: &[f32], out: &mut [f32]) {
    match values {
        HeadBlock::F32(values) => {
            let rows = weights.iter().zip(values.chunks_exact(out.len()));
            rows.for_each(|(weight, value)| (kernels.accumulate_f32)(out, *weight, value));
        }
        HeadBlock::F16(values) => {
            let rows = weights.iter().zip(values.chunks_exact(out.len()));
            rows.for_each(|(weight, value)| (kernels.accumulate_f16)(out, *weight, value));
        }
    }
}
