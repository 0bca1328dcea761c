//! Keys, values and states that a rank of a decode group receives: which are expected, and which have arrived.
use std::{
    ops::Range,
    time::{Duration, Instant},
};

use common::limits::KV_BLOCK_LENGTH;
use protocol::frame::FrameHeader;
use topology::{ShardPlan, kv};

use super::{KvPart, TransferId, TransferOrder, TransferStatus};
use crate::{
    collective::Taken,
    model::{KvCache, Memories, StateCache, UnitPlace, kv_cache},
};

/// How long the rest of a cancelled transfer is read and dropped: its sender ends its step first, and could not send
/// anything else on a link that is full.
const DRAIN: Duration = Duration::from_secs(10);

/// A transfer in progress.
#[derive(Debug)]
struct Incoming {
    transfer: TransferId,
    replica: u16,
    /// The sequence's blocks behind the index of the first of them, and the same in layers with a window.
    tables: [(usize, Vec<u32>); 2],
    /// Indices of the blocks that are received, and of those in layers with a window.
    wanted: [Range<usize>; 2],
    /// The state that is received, if the model has states.
    state: u16,
    /// Parts (layer, head, block), or (layer, unit) of the state, expected and received.
    expected: u64,
    received: u64,
    bytes: u64,
    failed: bool,
}

/// Expected transfers of one rank.
#[derive(Debug)]
pub(super) struct Inbox {
    layers: Range<usize>,
    /// KV heads in each kind of layer.
    heads_kv: Vec<Range<usize>>,
    /// Units of the mixer in each kind of layer.
    units: Vec<Range<usize>>,
    /// Longest window of the model.
    window: Option<usize>,
    latest: TransferId,
    list: Vec<Incoming>,
    /// Until when parts of cancelled transfers may arrive.
    drains_until: Option<Instant>,
}

impl Inbox {
    /// Creates the inbox of a rank with this shard.
    pub(super) fn new(plan: &ShardPlan, window: Option<usize>) -> Self {
        let heads_kv = plan.cuts.iter().map(|cut| cut.heads_kv.clone()).collect();
        let units = plan.cuts.iter().map(|cut| cut.heads.clone()).collect();
        let (layers, latest, list) = (plan.layers.clone(), TransferId(0), Vec::new());
        Self { layers, heads_kv, units, window, latest, list, drains_until: None }
    }

    /// Whether the links are to be read: a transfer is incomplete, or was cancelled a moment ago.
    pub(super) fn reads(&self) -> bool {
        self.list.iter().any(|incoming| !incoming.failed && incoming.received < incoming.expected)
            || self.drains_until.is_some_and(|until| Instant::now() < until)
    }

    /// Replicas with incomplete transfers.
    pub(super) fn awaited(&self) -> impl Iterator<Item = u16> {
        self.list.iter().filter(|incoming| incoming.received < incoming.expected).map(|incoming| incoming.replica)
    }

    /// Expects a transfer as ordered; false if the order is invalid.
    pub(super) fn open(&mut self, order: &TransferOrder, cache: &KvCache, states: &StateCache) -> bool {
        let TransferOrder::Receive { transfer, replica, blocks, windowed, state, first_block, length } = order else {
            return false;
        };
        let wanted = *first_block as usize..(*length as usize).div_ceil(KV_BLOCK_LENGTH);
        let first_seen = self.window.map_or(0, |window| kv::first_block(*length as usize, window));
        let seen = wanted.start.max(first_seen)..wanted.end;
        let windowed = (windowed.0 as usize, windowed.1.clone());
        let has_seen = windowed.0 <= seen.start && windowed.0 + windowed.1.len() >= seen.end;
        let is_new = *transfer > self.latest;
        if !is_new || wanted.is_empty() || wanted.end > blocks.len() || self.window.is_some() && !has_seen {
            return false;
        }
        let units = (0..self.layers.len()).map(|layer| states.units(layer) as u64).sum::<u64>();
        let state = state.filter(|state| usize::from(*state) < states.count());
        if units > 0 && state.is_none() {
            return false;
        }
        self.latest = *transfer;
        let wanted = [wanted, seen];
        let parts = (0..self.layers.len()).map(|layer| {
            let layer = cache.layer(layer);
            let heads = if layer.is_shared { 0 } else { self.heads_kv[layer.kind].len() };
            (heads * wanted[usize::from(layer.is_windowed)].len()) as u64
        });
        let (expected, transfer, replica) = (units + parts.sum::<u64>(), *transfer, *replica);
        let state = state.unwrap_or_default();
        let tables = [(0, blocks.clone()), windowed];
        let (received, bytes, failed) = (0, 0, false);
        self.list.push(Incoming { transfer, replica, tables, wanted, state, expected, received, bytes, failed });
        true
    }

    /// Stops expecting a transfer.
    pub(super) fn close(&mut self, transfer: TransferId) {
        let mut closed = self.list.iter().filter(|incoming| incoming.transfer == transfer);
        if closed.any(|incoming| incoming.received < incoming.expected) {
            self.drains_until = Some(Instant::now() + DRAIN);
        }
        self.list.retain(|incoming| incoming.transfer != transfer);
    }

    /// Fails all incomplete transfers from a replica.
    pub(super) fn fail(&mut self, replica: u16) {
        let of_it = self.list.iter_mut().filter(|incoming| incoming.replica == replica);
        of_it.for_each(|incoming| incoming.failed |= incoming.received < incoming.expected);
    }

    /// Status of a transfer.
    pub(super) fn status(&self, transfer: TransferId) -> TransferStatus {
        match self.list.iter().find(|incoming| incoming.transfer == transfer) {
            Some(incoming) if incoming.failed => TransferStatus::Failed,
            Some(incoming) if incoming.received < incoming.expected => TransferStatus::Waiting,
            Some(incoming) => TransferStatus::Arrived { bytes: incoming.bytes },
            None => TransferStatus::Failed,
        }
    }

    /// Stores a frame from a replica in the cache, or in its state.
    pub(super) fn take(
        &mut self,
        replica: u16,
        header: &FrameHeader,
        payload: &[u8],
        memories: &mut Memories<'_>,
    ) -> Taken {
        let (Memories { cache, states }, transfer) = (memories, TransferId(header.step));
        let Some(incoming) = self.list.iter_mut().find(|incoming| incoming.transfer == transfer) else {
            // Parts of a closed transfer are dropped; parts that overtake the head's order wait for it.
            return if transfer > self.latest { Taken::Later } else { Taken::Done };
        };
        let Some((place, parts)) = KvPart::decode(payload) else { return Taken::Broken };
        let KvPart { layer, ref blocks, ref heads_kv } = place;
        if !self.layers.contains(&layer) || incoming.replica != replica {
            return Taken::Broken;
        }
        let layer = layer - self.layers.start;
        if states.units(layer) > 0 {
            let own = &self.units[cache.layer(layer).kind];
            let taken = incoming.take_state(layer, own, blocks, parts, states);
            return incoming.count(taken, payload.len());
        }
        let (cached, size) = (*cache.layer(layer), cache.part_bytes(layer));
        let own = &self.heads_kv[cached.kind];
        let is_wanted = |range: &Range<usize>, of: &Range<usize>| of.start <= range.start && range.end <= of.end;
        let fits = is_wanted(heads_kv, own)
            && is_wanted(blocks, &incoming.wanted[usize::from(cached.is_windowed)])
            && parts.len() == heads_kv.len() * blocks.len() * size;
        // A layer without keys and values has no parts.
        if !fits || size == 0 {
            return Taken::Broken;
        }
        let (first, table) = &incoming.tables[usize::from(cached.is_windowed)];
        let places = heads_kv.clone().flat_map(|head| blocks.clone().map(move |block| (head, block)));
        for ((head, block), part) in places.zip(parts.chunks_exact(size)) {
            let place = kv_cache::Place { layer, block: table[block - first], head: head - own.start };
            if !cache.take_over(place, part) {
                return Taken::Broken;
            }
        }
        incoming.count(Some(heads_kv.len() * blocks.len()), payload.len())
    }
}

impl Incoming {
    /// Stores the parts of these units, of those that the rank has in a layer; returns their number if they are valid.
    fn take_state(
        &self,
        layer: usize,
        own: &Range<usize>,
        units: &Range<usize>,
        parts: &[u8],
        states: &mut StateCache,
    ) -> Option<usize> {
        let size = states.part_bytes(layer);
        let fits = own.start <= units.start && units.end <= own.end && parts.len() == units.len() * size;
        let mut parts = units.clone().zip(parts.chunks_exact(size.max(1))).filter(|_| fits);
        let all = parts
            .all(|(unit, part)| states.take_over(UnitPlace { state: self.state, layer, unit: unit - own.start }, part));
        (fits && all).then_some(units.len())
    }

    /// Counts the parts of a frame; `None`: it is invalid.
    fn count(&mut self, parts: Option<usize>, bytes: usize) -> Taken {
        let Some(parts) = parts else { return Taken::Broken };
        self.received += parts as u64;
        self.bytes += bytes as u64;
        if self.received > self.expected { Taken::Broken } else { Taken::Done }
    }
}
