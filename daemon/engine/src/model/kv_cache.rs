//! Keys and values of past positions in blocks of 32, addressed by the block tables in the plan. `[layer, head_count_kv
//! of this rank, block, keys or values]`, each keys `[head_length, 32]` or values `[32, head_length]`, in q8_0 followed
//! by scales `[head_length / 32, 32]`; a sequence need not be contiguous.
use std::{io, ops::Range};

use common::{limits::KV_BLOCK_LENGTH, precision::KvFormat};
use half::{f16, slice::HalfFloatSliceExt};
use kernels::{Block, Kernels, KvBlock, KvValues};
use planner::holding::kv_bytes;

use super::region::Region;

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
    /// The KV head, numbered on this rank.
    pub head: usize,
}

impl KvCache {
    /// Creates a cache of `blocks` blocks for `head_count_kv` heads; the system allocates the memory when it is first
    /// written.
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

    /// Size of such a cache in bytes.
    pub fn bytes(format: KvFormat, layers: usize, blocks: usize, head_count_kv: usize, head_length: usize) -> u64 {
        kv_bytes(format, layers, blocks, head_count_kv, head_length)
    }

    /// Stores key and value of one head at an offset (0 to 31) in a block.
    pub fn store(&mut self, kernels: &Kernels, place: Place, offset: usize, key: &[f32], value: &[f32]) {
        let (keys, values) = (self.range(place, false), self.range(place, true));
        let (format, length) = (self.format, self.head_length);
        let bytes = self.region.bytes_mut();
        store(kernels, format, &mut bytes[keys], key, offset, KV_BLOCK_LENGTH, offset);
        store(kernels, format, &mut bytes[values], value, offset * length, 1, offset);
    }

    /// The first `count` positions of one head in one block.
    pub fn block(&self, place: Place, count: usize) -> KvBlock<'_> {
        let (keys, values) = (self.values(self.range(place, false)), self.values(self.range(place, true)));
        KvBlock { keys, values, first: 0, count, score_cap: None, next: [&[]; 2] }
    }

    /// Keys and values of one head in one block in their stored layout, [`Self::part_bytes`] long: valid in a cache of
    /// the same format and head length.
    pub fn part(&self, place: Place) -> &[u8] {
        &self.region.bytes()[self.range(place, false).start..self.range(place, true).end]
    }

    /// Stores a part of another cache ([`Self::part`]); false if this cache has no such place or parts of another size.
    pub fn take_over(&mut self, place: Place, part: &[u8]) -> bool {
        let is_here = (place.block as usize) < self.blocks && place.head < self.head_count_kv;
        let range = self.range(place, false).start..self.range(place, true).end;
        let room = self.region.bytes_mut().get_mut(range);
        let Some(room) = room.filter(|room| is_here && room.len() == part.len()) else { return false };
        room.copy_from_slice(part);
        true
    }

    /// Bytes of keys and values of one head in one block.
    pub fn part_bytes(&self) -> usize {
        2 * KV_BLOCK_LENGTH * self.format.head_bytes(self.head_length)
    }

    /// Copies a block with all its layers and heads.
    pub fn copy(&mut self, from: u32, to: u32) {
        for (layer, head) in (0..self.layers).flat_map(|layer| (0..self.head_count_kv).map(move |head| (layer, head))) {
            let place = |block: u32| Place { layer, block, head };
            // Its values follow its keys.
            let source = self.range(place(from), false).start..self.range(place(from), true).end;
            let target = self.range(place(to), false).start;
            self.region.bytes_mut().copy_within(source, target);
        }
    }

    /// For benchmarks: fills every position with small numbers, so that reads hit real memory and not the system's zero
    /// page.
    pub fn fill(&mut self) {
        // Read as halves, floats or bytes, these bits are far from infinity.
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

/// Stores a head's values from index `first` on, `step` apart; the scales go to this position.
fn store(
    kernels: &Kernels,
    format: KvFormat,
    part: &mut [u8],
    values: &[f32],
    first: usize,
    step: usize,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_copy_between_caches_and_wrong_places_are_refused() {
        let kernels = Kernels::choose(None).expect("one of them runs here");
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8] {
            let mut one = KvCache::new(format, 2, 3, 2, 64).expect("there is memory");
            // The other rank has one of the two heads, and more blocks.
            let mut two = KvCache::new(format, 2, 7, 1, 64).expect("there is memory");
            let values = |seed: usize| (0..64).map(|i| ((i * 31 + seed * 7) % 97) as f32 - 48.0).collect::<Vec<_>>();
            let (from, to) = (Place { layer: 1, block: 2, head: 1 }, Place { layer: 1, block: 6, head: 0 });
            (0..KV_BLOCK_LENGTH).for_each(|offset| {
                one.store(kernels, from, offset, &values(offset), &values(offset + 100));
                two.store(kernels, to, offset, &values(1), &values(2));
            });
            let part = one.part(from).to_vec();
            assert_eq!(part.len(), one.part_bytes());
            assert!(two.take_over(to, &part));
            assert_eq!(two.part(to), part, "{format}");
            assert!(!two.take_over(Place { block: 7, ..to }, &part) && !two.take_over(Place { head: 1, ..to }, &part));
            assert!(!two.take_over(Place { layer: 2, ..to }, &part) && !two.take_over(to, &part[1..]));
        }
    }
}
