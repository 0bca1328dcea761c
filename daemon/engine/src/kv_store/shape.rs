//! What a block or a state of this rank consists of. A file lists its parts (KV heads of a layer, or units of a state, as
//! indices in the whole model), so that ranks of another cut take from it what they need.
use topology::ShardPlan;

use crate::model::{KvCache, StateCache, UnitPlace, kv_cache::Place};

/// Bytes of an entry of the list: layer, index, and bytes of the part.
const ENTRY: usize = 8;

/// The parts of each layer of a rank.
#[derive(Debug)]
pub(super) struct Shape {
    first_layer: usize,
    layers: Vec<LayerParts>,
    /// Whether the model has states, on this rank or another one.
    pub(super) has_states: bool,
}

#[derive(Debug)]
struct LayerParts {
    /// First KV head of its own, and their number.
    heads: (usize, usize),
    /// Bytes of a head in a block.
    part_bytes: usize,
    is_windowed: bool,
    /// First unit with a state, their number, and the bytes of each.
    units: (usize, usize, usize),
}

/// One part in a file.
struct Listed<'a> {
    layer: usize,
    index: usize,
    bytes: &'a [u8],
}

/// Which of a rank's parts were taken from files, by layer and index on this rank.
struct TakenParts {
    done: Vec<bool>,
    /// Number of the first part of each layer.
    firsts: Vec<usize>,
}

impl TakenParts {
    fn none(counts: impl Iterator<Item = usize>) -> Self {
        let (mut firsts, mut all) = (Vec::new(), 0);
        for count in counts {
            firsts.push(all);
            all += count;
        }
        Self { done: vec![false; all], firsts }
    }

    /// The mark of a part.
    fn mark(&mut self, layer: usize, index: usize) -> &mut bool {
        &mut self.done[self.firsts[layer] + index]
    }
}

impl Shape {
    /// The shape of a rank with this shard.
    pub(super) fn of(plan: &ShardPlan, cache: &KvCache, states: &StateCache, has_states: bool) -> Self {
        let layers = (0..plan.layers.len()).map(|layer| {
            let (cached, part_bytes) = (cache.layer(layer), cache.part_bytes(layer));
            let cut = &plan.cuts[cached.kind];
            let count = if cached.is_shared || part_bytes == 0 { 0 } else { cut.heads_kv.len() };
            let units = (cut.heads.start, states.units(layer), states.part_bytes(layer));
            LayerParts { heads: (cut.heads_kv.start, count), part_bytes, is_windowed: cached.is_windowed, units }
        });
        Self { first_layer: plan.layers.start, layers: layers.collect(), has_states }
    }

    /// Keys and values of a block, whose number is another one in layers with a window.
    pub(super) fn block(&self, cache: &KvCache, whole: u32, windowed: u32) -> Vec<u8> {
        let mut out = self.list(|layer| (layer.heads.0, layer.heads.1, layer.part_bytes));
        for (layer, parts) in self.layers.iter().enumerate() {
            let block = if parts.is_windowed { windowed } else { whole };
            (0..parts.heads.1).for_each(|head| out.extend_from_slice(cache.part(Place { layer, block, head })));
        }
        out
    }

    /// Stores a block in the cache, in layers with a window only if it has a number there; false if the files together
    /// lack anything or do not fit.
    pub(super) fn take_block<'a>(
        &self,
        cache: &mut KvCache,
        whole: u32,
        windowed: Option<u32>,
        files: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let mut taken = TakenParts::none(self.layers.iter().map(|layer| layer.heads.1));
        for part in files.flat_map(listed) {
            let Some((layer, parts)) = self.own(part.layer) else { continue };
            let Some(head) = own_index(part.index, parts.heads.0, parts.heads.1) else { continue };
            let block = if parts.is_windowed { windowed } else { Some(whole) };
            let mark = taken.mark(layer, head);
            *mark = *mark || block.is_none_or(|block| cache.take_over(Place { layer, block, head }, part.bytes));
        }
        taken.done.iter().all(|is_done| *is_done)
    }

    /// A state.
    pub(super) fn state(&self, states: &StateCache, state: u16) -> Vec<u8> {
        let mut out = self.list(|layer| layer.units);
        for (layer, parts) in self.layers.iter().enumerate() {
            (0..parts.units.1).for_each(|unit| states.part(UnitPlace { state, layer, unit }, &mut out));
        }
        out
    }

    /// Stores a state; false if the files together lack anything or do not fit.
    pub(super) fn take_state<'a>(
        &self,
        states: &mut StateCache,
        state: u16,
        files: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let mut taken = TakenParts::none(self.layers.iter().map(|layer| layer.units.1));
        for part in files.flat_map(listed) {
            let Some((layer, parts)) = self.own(part.layer) else { continue };
            let Some(unit) = own_index(part.index, parts.units.0, parts.units.1) else { continue };
            let mark = taken.mark(layer, unit);
            *mark = *mark || states.take_over(UnitPlace { state, layer, unit }, part.bytes);
        }
        taken.done.iter().all(|is_done| *is_done)
    }

    /// The list of all parts, given the first index, the number and the bytes of each layer's; with room for the parts.
    fn list(&self, of: impl Fn(&LayerParts) -> (usize, usize, usize)) -> Vec<u8> {
        let count: usize = self.layers.iter().map(|layer| of(layer).1).sum();
        let bytes: usize = self.layers.iter().map(&of).map(|(_, count, bytes)| count * bytes).sum();
        let mut out = Vec::with_capacity(size_of::<u32>() + count * ENTRY + bytes);
        out.extend((count as u32).to_le_bytes());
        for (layer, parts) in self.layers.iter().enumerate() {
            let (first, count, bytes) = of(parts);
            for index in first..first + count {
                out.extend(((self.first_layer + layer) as u16).to_le_bytes());
                out.extend((index as u16).to_le_bytes());
                out.extend((bytes as u32).to_le_bytes());
            }
        }
        out
    }

    /// A layer of this rank, by its index in the whole model.
    fn own(&self, layer: usize) -> Option<(usize, &LayerParts)> {
        let layer = layer.checked_sub(self.first_layer)?;
        Some((layer, self.layers.get(layer)?))
    }
}

fn own_index(index: usize, first: usize, count: usize) -> Option<usize> {
    index.checked_sub(first).filter(|index| *index < count)
}

/// The parts in the payload of a file; a malformed one ends early.
fn listed(payload: &[u8]) -> impl Iterator<Item = Listed<'_>> {
    let split = payload.split_first_chunk().and_then(|(count, rest)| {
        let bytes = (u32::from_le_bytes(*count) as usize).checked_mul(ENTRY)?;
        rest.split_at_checked(bytes)
    });
    let (entries, mut parts) = split.unwrap_or_default();
    entries.as_chunks::<ENTRY>().0.iter().map_while(move |entry| {
        let [a, b, c, d, length @ ..] = *entry;
        let bytes;
        (bytes, parts) = parts.split_at_checked(u32::from_le_bytes(length) as usize)?;
        Some(Listed {
            layer: usize::from(u16::from_le_bytes([a, b])),
            index: usize::from(u16::from_le_bytes([c, d])),
            bytes,
        })
    })
}
