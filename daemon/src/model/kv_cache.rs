//! Keys and values of past positions in blocks of 32, reached through block tables that travel in the plan.
//! Per layer `[block, head_count_kv of this rank, 32, head_length]`; never assumes that a sequence is contiguous.
use shared::topology::{KvFormat, spec::KV_BLOCK_LENGTH};

use crate::kernels::Kernels;

/// The KV cache of one rank.
#[derive(Debug)]
pub struct KvCache {
    head_count_kv: usize,
    head_length: usize,
    layers: Vec<LayerCache>,
}

#[derive(Debug)]
enum LayerCache {
    F32 { keys: Vec<f32>, values: Vec<f32> },
    F16 { keys: Vec<u16>, values: Vec<u16> },
}

/// 32 positions of one head: keys or values `[32, head_length]`.
#[derive(Clone, Copy, Debug)]
pub enum HeadBlock<'a> {
    /// As they were computed.
    F32(&'a [f32]),
    /// Halves, as bits.
    F16(&'a [u16]),
}

impl KvCache {
    /// A cache of `blocks` blocks for `head_count_kv` heads; the system gives the memory when it is first written.
    pub fn new(format: KvFormat, layers: usize, blocks: usize, head_count_kv: usize, head_length: usize) -> Self {
        let length = blocks * head_count_kv * KV_BLOCK_LENGTH * head_length;
        let layer = |_| match format {
            KvFormat::F32 => LayerCache::F32 { keys: vec![0.0; length], values: vec![0.0; length] },
            KvFormat::F16 => LayerCache::F16 { keys: vec![0; length], values: vec![0; length] },
        };
        Self { head_count_kv, head_length, layers: (0..layers).map(layer).collect() }
    }

    /// Bytes of such a cache.
    pub fn bytes(format: KvFormat, layers: usize, blocks: usize, head_count_kv: usize, head_length: usize) -> u64 {
        let values = layers as u64 * blocks as u64 * (head_count_kv * KV_BLOCK_LENGTH * head_length) as u64;
        2 * values * format.value_bytes() as u64
    }

    /// Stores key and value of one head at an offset (0 to 31) in a block.
    pub fn store(
        &mut self,
        kernels: &Kernels,
        (layer, block, head, offset): (usize, u32, usize, usize),
        key: &[f32],
        value: &[f32],
    ) {
        let range = {
            let begin = self.begin(block, head) + offset * self.head_length;
            begin..begin + self.head_length
        };
        match &mut self.layers[layer] {
            LayerCache::F32 { keys, values } => {
                keys[range.clone()].copy_from_slice(key);
                values[range].copy_from_slice(value);
            }
            LayerCache::F16 { keys, values } => {
                (kernels.to_f16)(key, &mut keys[range.clone()]);
                (kernels.to_f16)(value, &mut values[range]);
            }
        }
    }

    /// Keys and values of one head in one block.
    pub fn block(&self, layer: usize, block: u32, head: usize) -> (HeadBlock<'_>, HeadBlock<'_>) {
        let begin = self.begin(block, head);
        let range = begin..begin + KV_BLOCK_LENGTH * self.head_length;
        match &self.layers[layer] {
            LayerCache::F32 { keys, values } => (HeadBlock::F32(&keys[range.clone()]), HeadBlock::F32(&values[range])),
            LayerCache::F16 { keys, values } => (HeadBlock::F16(&keys[range.clone()]), HeadBlock::F16(&values[range])),
        }
    }

    fn begin(&self, block: u32, head: usize) -> usize {
        (block as usize * self.head_count_kv + head) * KV_BLOCK_LENGTH * self.head_length
    }
}
