//! What a block or a state of this rank consists of, in the order in which it is stored.
use topology::ShardPlan;

use crate::model::{KvCache, StateCache, UnitPlace, kv_cache::Place};

/// The parts of each layer of a rank.
#[derive(Debug)]
pub(super) struct Shape {
    layers: Vec<LayerParts>,
    /// Bytes of a block.
    pub(super) block_bytes: usize,
    /// Bytes of a state.
    pub(super) state_bytes: usize,
    /// Whether the model has states, on this rank or another one.
    pub(super) has_states: bool,
}

#[derive(Debug)]
struct LayerParts {
    /// KV heads of its own.
    heads: usize,
    /// Bytes of a head in a block.
    part_bytes: usize,
    is_windowed: bool,
    /// Units with a state, and the bytes of each.
    units: (usize, usize),
}

impl Shape {
    /// The shape of a rank with this shard.
    pub(super) fn of(plan: &ShardPlan, cache: &KvCache, states: &StateCache, has_states: bool) -> Self {
        let layers = (0..plan.layers.len()).map(|layer| {
            let (cached, part_bytes) = (cache.layer(layer), cache.part_bytes(layer));
            let heads = if cached.is_shared || part_bytes == 0 { 0 } else { plan.cuts[cached.kind].heads_kv.len() };
            let units = (states.units(layer), states.part_bytes(layer));
            LayerParts { heads, part_bytes, is_windowed: cached.is_windowed, units }
        });
        let layers: Vec<LayerParts> = layers.collect();
        let block_bytes = layers.iter().map(|layer| layer.heads * layer.part_bytes).sum();
        let state_bytes = layers.iter().map(|layer| layer.units.0 * layer.units.1).sum();
        Self { layers, block_bytes, state_bytes, has_states }
    }

    /// Keys and values of a block, whose number is another one in layers with a window.
    pub(super) fn block(&self, cache: &KvCache, whole: u32, windowed: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.block_bytes);
        for (layer, parts) in self.layers.iter().enumerate() {
            let block = if parts.is_windowed { windowed } else { whole };
            (0..parts.heads).for_each(|head| out.extend_from_slice(cache.part(Place { layer, block, head })));
        }
        out
    }

    /// Stores a block in the cache, in layers with a window only if it has a number there; false if it does not fit.
    pub(super) fn take_block(&self, cache: &mut KvCache, whole: u32, windowed: Option<u32>, payload: &[u8]) -> bool {
        if payload.len() != self.block_bytes {
            return false;
        }
        let mut rest = payload;
        for (layer, parts) in self.layers.iter().enumerate() {
            let block = if parts.is_windowed { windowed } else { Some(whole) };
            for head in 0..parts.heads {
                let part;
                (part, rest) = rest.split_at(parts.part_bytes);
                if block.is_some_and(|block| !cache.take_over(Place { layer, block, head }, part)) {
                    return false;
                }
            }
        }
        true
    }

    /// A state.
    pub(super) fn state(&self, states: &StateCache, state: u16) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.state_bytes);
        for (layer, parts) in self.layers.iter().enumerate() {
            (0..parts.units.0).for_each(|unit| states.part(UnitPlace { state, layer, unit }, &mut out));
        }
        out
    }

    /// Stores a state; false if it does not fit.
    pub(super) fn take_state(&self, states: &mut StateCache, state: u16, payload: &[u8]) -> bool {
        if payload.len() != self.state_bytes {
            return false;
        }
        let mut rest = payload;
        for (layer, parts) in self.layers.iter().enumerate() {
            for unit in 0..parts.units.0 {
                let part;
                (part, rest) = rest.split_at(parts.units.1);
                if !states.take_over(UnitPlace { state, layer, unit }, part) {
                    return false;
                }
            }
        }
        true
    }
}
