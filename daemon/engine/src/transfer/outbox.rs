//! Keys and values that a rank of a prefill group sends, block by block, as soon as a layer has stored the last
//! position of each, and states behind the last position of the prompt.
use std::ops::Range;

use common::{
    ids::{MemberIndex, Slot},
    limits::KV_BLOCK_LENGTH,
};
use topology::{Route, ShardPlan, kv};

use super::{KvPart, TransferId};
use crate::{
    collective::KvLinks,
    model::{BatchToken, BlockTables, KvCache, KvSink, StateCache, UnitPlace, kv_cache},
};

/// Most blocks in a frame.
const FRAME_BLOCKS: usize = 8;
/// Bytes of parts of a state in a frame, about.
const FRAME_BYTES: usize = 1 << 20;

/// A sequence that is sent while it is computed.
#[derive(Debug)]
struct Outgoing {
    slot: Slot,
    transfer: TransferId,
    replica: u16,
    /// End of the positions to send.
    length: usize,
    /// The first block that later tokens see through a window.
    first_seen: usize,
    /// From the next block to send to the end of the blocks that the current step completes.
    blocks: Range<usize>,
    /// Whether the current step completes the prompt.
    is_whole: bool,
    sequence: u32,
}

/// The route to one rank of a decode group.
#[derive(Clone, Debug)]
pub(super) struct SendRoute {
    pub(super) replica: u16,
    pub(super) member: MemberIndex,
    pub(super) route: Route,
}

impl SendRoute {
    /// Whether parts of a layer for a replica take this route.
    fn carries(&self, replica: u16, layer: usize) -> bool {
        self.replica == replica && self.route.layers.contains(&layer)
    }
}

/// The outgoing transfers of one rank.
#[derive(Debug)]
pub(super) struct Outbox {
    send_routes: Vec<SendRoute>,
    first_layer: usize,
    layers: usize,
    /// This rank's first KV head, and its first unit of the mixer, in each kind of layer.
    firsts: Vec<(usize, usize)>,
    /// Longest window of the model.
    window: Option<usize>,
    /// For benchmarks: sends nothing before the whole prompt is computed.
    at_end: bool,
    list: Vec<Outgoing>,
}

impl Outbox {
    /// Creates the outbox of a rank with this shard.
    pub(super) fn new(send_routes: Vec<SendRoute>, plan: &ShardPlan, at_end: bool) -> Self {
        let (first_layer, layers) = (plan.layers.start, plan.layers.len());
        let firsts = plan.cuts.iter().map(|cut| (cut.heads_kv.start, cut.heads.start)).collect();
        Self { send_routes, first_layer, layers, firsts, window: None, at_end, list: Vec::new() }
    }

    /// Sets the longest window of the model.
    pub(super) fn with_window(self, window: Option<usize>) -> Self {
        Self { window, ..self }
    }

    /// Starts sending the keys and values, and the state, of a slot.
    pub(super) fn open(&mut self, slot: Slot, transfer: TransferId, replica: u16, first_block: usize, length: usize) {
        // Any earlier transfer from this slot is over: the slot has another sequence now.
        self.list.retain(|outgoing| outgoing.slot != slot);
        let blocks = first_block..first_block;
        let first_seen = self.window.map_or(0, |window| kv::first_block(length, window));
        let (is_whole, sequence) = (false, 0);
        self.list.push(Outgoing { slot, transfer, replica, length, first_seen, blocks, is_whole, sequence });
    }

    /// Stops sending a transfer.
    pub(super) fn close(&mut self, transfer: TransferId, replica: u16) {
        self.list.retain(|outgoing| (outgoing.transfer, outgoing.replica) != (transfer, replica));
    }

    /// Determines the blocks that a step completes.
    pub(super) fn begin(&mut self, tokens: &[BatchToken]) {
        for outgoing in &mut self.list {
            let last =
                tokens.iter().filter(|token| token.slot == outgoing.slot).map(|token| token.position as usize).max();
            let Some(last) = last else { continue };
            let is_whole = last + 1 >= outgoing.length;
            outgoing.is_whole = is_whole;
            let end = if is_whole { outgoing.length.div_ceil(KV_BLOCK_LENGTH) } else { (last + 1) / KV_BLOCK_LENGTH };
            if is_whole || !self.at_end {
                outgoing.blocks.end = end.max(outgoing.blocks.start);
            }
        }
    }

    /// Sends a layer's part of what the step completes.
    pub(super) fn stored(
        &mut self,
        layer: usize,
        cache: &KvCache,
        states: &StateCache,
        tables: BlockTables<'_>,
        links: &mut KvLinks,
    ) {
        if !self.at_end {
            self.send(layer, cache, states, tables, links);
        }
    }

    /// Ends a step.
    pub(super) fn end(&mut self, cache: &KvCache, states: &StateCache, tables: BlockTables<'_>, links: &mut KvLinks) {
        if self.at_end {
            (0..self.layers).for_each(|layer| self.send(layer, cache, states, tables, links));
        }
        self.list.iter_mut().for_each(|outgoing| outgoing.blocks.start = outgoing.blocks.end);
        self.list.retain(|outgoing| !outgoing.is_whole);
    }

    fn send(
        &mut self,
        layer: usize,
        cache: &KvCache,
        states: &StateCache,
        tables: BlockTables<'_>,
        links: &mut KvLinks,
    ) {
        if states.units(layer) > 0 {
            self.send_state(layer, cache, states, links);
        } else {
            self.send_blocks(layer, cache, tables, links);
        }
    }

    /// Sends a layer's part of the states behind the prompts that the step completes.
    fn send_state(&mut self, layer: usize, cache: &KvCache, states: &StateCache, links: &mut KvLinks) {
        let (global, kind) = (self.first_layer + layer, cache.layer(layer).kind);
        let first = self.firsts[kind].1;
        let together = (FRAME_BYTES / states.part_bytes(layer).max(1)).clamp(1, usize::from(u16::MAX));
        for outgoing in self.list.iter_mut().filter(|outgoing| outgoing.is_whole) {
            for send_route in self.send_routes.iter().filter(|one| one.carries(outgoing.replica, global)) {
                let units = send_route.route.units[kind].clone();
                for begin in units.clone().step_by(together) {
                    let part = begin..units.end.min(begin + together);
                    let place = KvPart { layer: global, blocks: part.clone(), heads_kv: 0..0 };
                    links.send(send_route.member, outgoing.transfer.0, outgoing.sequence, |out| {
                        place.encode(out);
                        for unit in part {
                            states.part(UnitPlace { state: outgoing.slot.0, layer, unit: unit - first }, out);
                        }
                    });
                    outgoing.sequence += 1;
                }
            }
        }
    }

    /// Sends a layer's part of the blocks that the step completes.
    fn send_blocks(&mut self, layer: usize, cache: &KvCache, tables: BlockTables<'_>, links: &mut KvLinks) {
        let (global, cached) = (self.first_layer + layer, cache.layer(layer));
        if cached.is_shared {
            return;
        }
        let (kind, first_head, tables) = (cached.kind, self.firsts[cached.kind].0, tables.of(cached));
        for outgoing in self.list.iter_mut().filter(|outgoing| !outgoing.blocks.is_empty()) {
            let Some(table) = tables.get(outgoing.slot.index()) else { continue };
            for send_route in self.send_routes.iter().filter(|one| one.carries(outgoing.replica, global)) {
                let first = if cached.is_windowed { outgoing.first_seen } else { 0 };
                let all = outgoing.blocks.start.max(first)..outgoing.blocks.end;
                for begin in all.step_by(FRAME_BLOCKS) {
                    let blocks = begin..outgoing.blocks.end.min(begin + FRAME_BLOCKS);
                    let Some(list) = table.get(blocks.clone()) else { continue };
                    let place = KvPart { layer: global, blocks, heads_kv: send_route.route.heads_kv[kind].clone() };
                    if place.heads_kv.is_empty() {
                        continue;
                    }
                    links.send(send_route.member, outgoing.transfer.0, outgoing.sequence, |out| {
                        place.encode(out);
                        for head in place.heads_kv.clone() {
                            let head = head - first_head;
                            for block in list {
                                out.extend_from_slice(cache.part(kv_cache::Place { layer, block: *block, head }));
                            }
                        }
                    });
                    outgoing.sequence += 1;
                }
            }
        }
    }
}

/// An outbox during a step.
pub(super) struct Sending<'a> {
    pub(super) outbox: &'a mut Outbox,
    pub(super) links: &'a mut KvLinks,
    pub(super) tables: BlockTables<'a>,
}

impl KvSink for Sending<'_> {
    fn stored(&mut self, layer: usize, cache: &KvCache, states: &StateCache) {
        self.outbox.stored(layer, cache, states, self.tables, self.links);
        self.links.pump();
    }
}
