//! Keys and values of past positions in blocks of 32, reached through block tables that travel in the plan.
//! `[layer, head_count_kv of this rank, block, keys or values]`, each keys `[head_length, 32]` or values `[32, head_length]`, in
//! q8_0 with scales `[head_length / 32, 32]` behind them; never assumes that a sequence is contiguous.
use std::{io, ops::Range};

use half::{f16, slice::HalfFloatSliceExt};
use shared::topology::{KvFormat, memory, spec::KV_BLOCK_LENGTH};

use super::region::Region;
use crate::kernels::{Block, Kernels, KvBlock, KvValues};

/// Values of a head that share a scale.
const SCALED: usize = 32;

/// The KV cache of one rank.
#[derive(Debug)]
pub struct KvCache {
    format: KvFormat,
    layers: usize,
    blocks: usize,
    head_count_kv: usize,
    head_length: usize,
    region: Region,
}

/// One head in one block of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The layer.
    pub layer: usize,
    /// The block.
    pub block: u32,
    /// The KV head, counted on this rank.
    pub head: usize,
}

impl KvCache {
    /// A cache of `blocks` blocks for `head_count_kv` heads; the system gives the memory when it is first written.
    ///
    /// # Errors
    /// The system has no address space for it.
    pub fn new(
        format: KvFormat,
        layers: usize,
        blocks: usize,
        head_count_kv: usize,
        head_length: usize,
    ) -> io::Result<Self> {
        let bytes = Self::bytes(format, layers, blocks, head_count_kv, head_length);
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { format, layers, blocks, head_count_kv, head_length, region: Region::new(bytes)? })
    }

    /// Bytes of such a cache.
    pub fn bytes(format: KvFormat, layers: usize, blocks: usize, head_count_kv: usize, head_length: usize) -> u64 {
        memory::kv_bytes(format, layers, blocks, head_count_kv, head_length)
    }

    /// Stores key and value of one head at an offset (0 to 31) in a block.
    pub fn store(&mut self, kernels: &Kernels, place: Place, offset: usize, key: &[f32], value: &[f32]) {
        let (keys, values) = (self.range(place, false), self.range(place, true));
        let (format, length) = (self.format, self.head_length);
        let bytes = self.region.bytes_mut();
        store(kernels, format, &mut bytes[keys], key, (offset, KV_BLOCK_LENGTH), offset);
        store(kernels, format, &mut bytes[values], value, (offset * length, 1), offset);
    }

    /// The first `count` positions of one head in one block.
    pub fn block(&self, place: Place, count: usize) -> KvBlock<'_> {
        let (keys, values) = (self.values(self.range(place, false)), self.values(self.range(place, true)));
        KvBlock { keys, values, count, next: [&[]; 2] }
    }

    /// Copies a block, all layers and heads of it.
    pub fn copy(&mut self, from: u32, to: u32) {
        for (layer, head) in (0..self.layers).flat_map(|layer| (0..self.head_count_kv).map(move |head| (layer, head))) {
            let place = |block: u32| Place { layer, block, head };
            // Its values lie behind its keys.
            let source = self.range(place(from), false).start..self.range(place(from), true).end;
            let target = self.range(place(to), false).start;
            self.region.bytes_mut().copy_within(source, target);
        }
    }

    /// Fills every position with small numbers, so that reading finds memory and not the system's page of zeros: for measuring.
    pub fn fill(&mut self) {
        // As halves, floats and bytes these bits are far from infinity.
        self.region.bytes_mut().fill(0x11);
    }

    fn range(&self, place: Place, is_value: bool) -> Range<usize> {
        let bytes = KV_BLOCK_LENGTH * self.format.head_bytes(self.head_length);
        let head = place.layer * self.head_count_kv + place.head;
        let number = 2 * (head * self.blocks + place.block as usize) + usize::from(is_value);
        number * bytes..(number + 1) * bytes
    }

    fn values(&self, range: Range<usize>) -> KvValues<'_> {
        let bytes = &self.region.bytes()[range];
        match self.format {
            KvFormat::F32 => KvValues::F32(bytemuck::cast_slice(bytes)),
            KvFormat::F16 => KvValues::F16(bytemuck::cast_slice(bytes)),
            KvFormat::Q8 => {
                let (levels, scales) = bytes.split_at(KV_BLOCK_LENGTH * self.head_length);
                KvValues::Q8(bytemuck::cast_slice(levels), bytemuck::cast_slice(scales))
            }
        }
    }
}

/// Stores a head's values from `first` on, `step` apart; a scale goes to the place of the position.
fn store(
    kernels: &Kernels,
    format: KvFormat,
    part: &mut [u8],
    values: &[f32],
    (first, step): (usize, usize),
    position: usize,
) {
    match format {
        KvFormat::F32 => {
            let places = bytemuck::cast_slice_mut::<u8, f32>(part)[first..].iter_mut().step_by(step);
            places.zip(values).for_each(|(out, value)| *out = *value);
        }
        KvFormat::F16 => {
            let mut halves = [f16::ZERO; SCALED];
            let out = &mut bytemuck::cast_slice_mut::<u8, f16>(part)[first..];
            for (group, values) in values.chunks(SCALED).enumerate() {
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                let places = out[group * SCALED * step..].iter_mut().step_by(step);
                places.zip(halves).for_each(|(out, half)| *out = *half);
            }
        }
        KvFormat::Q8 => {
            let (levels, scales) = part.split_at_mut(KV_BLOCK_LENGTH * values.len());
            let scales: &mut [f16] = bytemuck::cast_slice_mut(scales);
            for (group, values) in values.chunks(SCALED).enumerate() {
                let mut block = Block::default();
                (kernels.quantise)(values, &mut block);
                scales[group * KV_BLOCK_LENGTH + position] = f16::from_f32(block.scale);
                let places = levels[first + group * SCALED * step..].iter_mut().step_by(step);
                places.zip(&block.quants[..values.len()]).for_each(|(out, quant)| *out = quant.cast_unsigned());
            }
        }
    }
}
