//! Keys and values of past positions in blocks of 32, addressed by the block tables in the plan. For each layer that has
//! keys of its own `[KV heads of this rank, block, keys or values]`, each keys `[key_length, 32]` or values `[32,
//! value_length]`, in q8_0 followed by scales `[length / 32, 32]`; a sequence need not be contiguous. Layers with a
//! window have fewer blocks than layers that attend to everything.
use std::{io, ops::Range};

use common::{limits::KV_BLOCK_LENGTH, precision::KvFormat};
use half::{f16, slice::HalfFloatSliceExt};
use kernels::{Block, Kernels, KvBlock, KvValues};
use models::{AttentionSpec, KvHeads, ModelSpec};
use planner::holding::kv_bytes;
use topology::{KvBlocks, ShardPlan};

use super::region::Region;

/// Values of a head that share a scale.
const SCALED: usize = 32;

/// The KV cache of one rank.
#[derive(Debug)]
pub struct KvCache {
    format: KvFormat,
    layers: Vec<CachedLayer>,
    region: Region,
}

/// Where a layer's keys and values are.
#[derive(Clone, Copy, Debug)]
pub struct CachedLayer {
    /// Its kind ([`ModelSpec::kinds`]).
    pub kind: usize,
    /// Whether it attends to a window, and has the blocks of such layers.
    pub is_windowed: bool,
    /// Whether it reads the keys and values of an earlier layer.
    pub is_shared: bool,
    heads: usize,
    key_length: usize,
    value_length: usize,
    /// Whether it stores values; otherwise they are the first elements of the keys, and keys are stored like values.
    has_values: bool,
    blocks: usize,
    /// First byte in the region.
    begin: usize,
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
    /// Creates the cache of a rank with these blocks; the system allocates the memory when it is first written.
    ///
    /// # Errors
    /// The system has no address space for it.
    pub fn new(format: KvFormat, spec: &ModelSpec, plan: &ShardPlan, blocks: KvBlocks) -> io::Result<Self> {
        let bytes = kv_bytes(format, spec, plan, blocks);
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut layers: Vec<CachedLayer> = Vec::with_capacity(plan.layers.len());
        let mut begin = 0;
        for layer in plan.layers.clone() {
            let attention = spec.layer(layer).attention();
            let (kind, is_windowed) = (usize::from(spec.layers[layer]), attention.is_some_and(AttentionSpec::forgets));
            let cached = match attention.and_then(|own| own.keys_of).map(usize::from) {
                // The cut keeps both layers in one stage.
                Some(source) => CachedLayer { kind, is_shared: true, ..layers[source - plan.layers.start] },
                None => {
                    let kv_heads = spec.layer(layer).mixer.kv_heads();
                    let none = KvHeads { group: 1, key_length: 0, value_length: 0, has_values: true };
                    let KvHeads { key_length, value_length, has_values, .. } = kv_heads.unwrap_or(none);
                    let (heads, blocks) = (plan.cuts[kind].heads_kv.len(), blocks.in_layer(spec.layer(layer)));
                    CachedLayer {
                        kind,
                        is_windowed,
                        is_shared: false,
                        heads,
                        key_length,
                        value_length,
                        has_values,
                        blocks,
                        begin,
                    }
                }
            };
            if !cached.is_shared {
                begin += cached.heads * cached.blocks * cached.part_bytes(format);
            }
            layers.push(cached);
        }
        Ok(Self { format, layers, region: Region::new(bytes)? })
    }

    /// Where a layer's keys and values are.
    pub fn layer(&self, layer: usize) -> &CachedLayer {
        &self.layers[layer]
    }

    /// Stores key and value of one head at an offset (0 to 31) in a block; the value may be a part of the key.
    pub fn store(&mut self, kernels: &Kernels, place: Place, offset: usize, key: &[f32], value: &[f32]) {
        let (keys, values) = (self.range(place, false), self.range(place, true));
        let (format, has_values) = (self.format, self.layers[place.layer].has_values);
        let bytes = self.region.bytes_mut();
        let rows = if has_values { value } else { key };
        store(kernels, format, &mut bytes[values], rows, offset * rows.len(), 1, offset);
        if has_values {
            store(kernels, format, &mut bytes[keys], key, offset, KV_BLOCK_LENGTH, offset);
        }
    }

    /// The first `count` positions of one head in one block.
    pub fn block(&self, place: Place, count: usize) -> KvBlock<'_> {
        let CachedLayer { key_length, value_length, has_values, .. } = self.layers[place.layer];
        let keys = has_values.then(|| self.values(self.range(place, false), key_length));
        let values = self.values(self.range(place, true), if has_values { value_length } else { key_length });
        KvBlock { keys, values, first: 0, count, score_cap: None, next: [&[]; 2] }
    }

    /// Keys and values of one head in one block in their stored layout, [`Self::part_bytes`] long: valid in a cache of
    /// the same format and head length.
    pub fn part(&self, place: Place) -> &[u8] {
        &self.region.bytes()[self.range(place, false).start..self.range(place, true).end]
    }

    /// Stores a part of another cache ([`Self::part`]); false if this cache has no such place or parts of another size.
    pub fn take_over(&mut self, place: Place, part: &[u8]) -> bool {
        let Some(layer) = self.layers.get(place.layer) else { return false };
        let is_here = (place.block as usize) < layer.blocks && place.head < layer.heads && !layer.is_shared;
        if !is_here || part.len() != self.part_bytes(place.layer) {
            return false;
        }
        let range = self.range(place, false).start..self.range(place, true).end;
        self.region.bytes_mut()[range].copy_from_slice(part);
        true
    }

    /// Bytes of keys and values of one head in one block of a layer.
    pub fn part_bytes(&self, layer: usize) -> usize {
        self.layers[layer].part_bytes(self.format)
    }

    /// Copies a block in all layers that attend to everything.
    pub fn copy(&mut self, from: u32, to: u32) {
        for layer in 0..self.layers.len() {
            let CachedLayer { heads, is_windowed, is_shared, .. } = self.layers[layer];
            for head in 0..if is_windowed || is_shared { 0 } else { heads } {
                let place = |block: u32| Place { layer, block, head };
                // Its values follow its keys.
                let source = self.range(place(from), false).start..self.range(place(from), true).end;
                let target = self.range(place(to), false).start;
                self.region.bytes_mut().copy_within(source, target);
            }
        }
    }

    /// For benchmarks: fills every position with small numbers, so that reads hit real memory and not the system's zero
    /// page.
    pub fn fill(&mut self) {
        // Read as halves, floats or bytes, these bits are far from infinity.
        self.region.bytes_mut().fill(0x11);
    }

    fn range(&self, place: Place, is_value: bool) -> Range<usize> {
        let layer = &self.layers[place.layer];
        let [keys, values] = layer.half_bytes(self.format);
        let begin = layer.begin + (place.head * layer.blocks + place.block as usize) * (keys + values);
        if is_value { begin + keys..begin + keys + values } else { begin..begin + keys }
    }

    /// Keys or values of one head in one block.
    fn values(&self, range: Range<usize>, length: usize) -> KvValues<'_> {
        let bytes = &self.region.bytes()[range];
        match self.format {
            KvFormat::F32 => KvValues::F32(bytemuck::cast_slice(bytes)),
            KvFormat::F16 => KvValues::F16(bytemuck::cast_slice(bytes)),
            KvFormat::Q8 => {
                let (levels, scales) = bytes.split_at(KV_BLOCK_LENGTH * length);
                KvValues::Q8(bytemuck::cast_slice(levels), bytemuck::cast_slice(scales))
            }
            KvFormat::Q4 => {
                let (levels, scales) = bytes.split_at(nibble_bytes(length));
                KvValues::Q4(levels, bytemuck::cast_slice(scales))
            }
        }
    }
}

impl CachedLayer {
    /// Bytes of the keys and of the values of one head in one block; of rows that are both, as of values.
    fn half_bytes(&self, format: KvFormat) -> [usize; 2] {
        let [keys, values] =
            [self.key_length, self.value_length].map(|length| KV_BLOCK_LENGTH * format.head_bytes(length));
        if self.has_values { [keys, values] } else { [0, keys] }
    }

    /// Bytes of both.
    fn part_bytes(&self, format: KvFormat) -> usize {
        self.half_bytes(format).iter().sum()
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
        KvFormat::Q4 => {
            let (levels, scales) = part.split_at_mut(nibble_bytes(values.len()));
            let scales: &mut [f16] = bytemuck::cast_slice_mut(scales);
            // Rows are padded; columns are not.
            let first = if step == 1 { position * values.len().next_multiple_of(SCALED) } else { first };
            for (group, values) in values.chunks(SCALED).enumerate() {
                let scale = nibble_scale(values);
                scales[group * KV_BLOCK_LENGTH + position] = scale;
                let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
                for (column, value) in values.iter().enumerate() {
                    let level = (value * inverse + 8.5).clamp(0.0, 15.0) as u8;
                    set_nibble(levels, first + (group * SCALED + column) * step, level);
                }
            }
        }
    }
}

/// Bytes of the levels of a block's keys or values in 4 bits.
const fn nibble_bytes(length: usize) -> usize {
    KV_BLOCK_LENGTH * length.next_multiple_of(SCALED) / 2
}

/// The scale of values in 4 bits: the value farthest from zero becomes the lowest of the 16 levels, as in llama.cpp's Q4_0.
fn nibble_scale(values: &[f32]) -> f16 {
    let largest = values.iter().fold(0.0_f32, |most, value| if value.abs() > most.abs() { *value } else { most });
    f16::from_f32(largest / -8.0)
}

/// Sets a value of 4 bits: of each 32, the first half is in the low bits of 16 bytes.
fn set_nibble(levels: &mut [u8], number: usize, level: u8) {
    let half = SCALED / 2;
    let byte = &mut levels[number / SCALED * half + number % half];
    *byte = if number % SCALED < half { *byte & 0xf0 | level } else { *byte & 0x0f | level << 4 };
}

#[cfg(test)]
mod tests {
    use models::known;
    use topology::shard::cut_stage;

    use super::*;

    #[test]
    fn parts_copy_between_caches_and_wrong_places_are_refused() {
        let known = |name: &str| known::MODELS.iter().find(|known| known.name == name).expect("it is known").spec();
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            // One of four KV heads; latents, which are whole on every rank.
            check_copies(format, &known("tinyllama-1.1b"), 1, [64, 64]);
            check_copies(format, &known("glm-4.7-flash"), 0, [576, 512]);
        }
    }

    /// Copies a block of a KV head of one rank to the second of four, which has more blocks.
    #[track_caller]
    fn check_copies(format: KvFormat, spec: &ModelSpec, head: usize, [key, value]: [usize; 2]) {
        let kernels = Kernels::choose(None).expect("one of them runs here");
        let whole = cut_stage(spec, &(0..2), &[1]).expect("one rank has all");
        let quarters = cut_stage(spec, &(0..2), &[1; 4]).expect("each rank has a KV head");
        let mut one = KvCache::new(format, spec, &whole[0], KvBlocks::alike(3)).expect("there is memory");
        let mut two = KvCache::new(format, spec, &quarters[1], KvBlocks::alike(7)).expect("there is memory");
        let values =
            |count, seed: usize| (0..count).map(|i| ((i * 31 + seed * 7) % 97) as f32 - 48.0).collect::<Vec<_>>();
        let (from, to) = (Place { layer: 1, block: 2, head }, Place { layer: 1, block: 6, head: 0 });
        (0..KV_BLOCK_LENGTH).for_each(|offset| {
            one.store(kernels, from, offset, &values(key, offset), &values(value, offset + 100));
            two.store(kernels, to, offset, &values(key, 1), &values(value, 2));
        });
        let part = one.part(from).to_vec();
        assert_eq!(part.len(), one.part_bytes(1));
        assert!(two.take_over(to, &part));
        assert_eq!(two.part(to), part, "{format}");
        assert!(!two.take_over(Place { block: 7, ..to }, &part) && !two.take_over(Place { head: 1, ..to }, &part));
        assert!(!two.take_over(Place { layer: 2, ..to }, &part) && !two.take_over(to, &part[1..]));
    }
}
