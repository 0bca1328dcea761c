//! Keys and values that a rank of a decode group receives into its cache: which are expected, and which have arrived.
use std::ops::Range;

use common::limits::KV_BLOCK_LENGTH;
use protocol::frame::FrameHeader;
use topology::{ShardPlan, kv};

use super::{KvPart, TransferId, TransferOrder, TransferStatus};
use crate::{
    collective::Taken,
    model::{KvCache, kv_cache},
};

/// A transfer in progress.
#[derive(Debug)]
struct Incoming {
    transfer: TransferId,
    replica: u16,
    /// The sequence's blocks behind the index of the first of them, and the same in layers with a window.
    tables: [(usize, Vec<u32>); 2],
    /// Indices of the blocks that are received, and of those in layers with a window.
    wanted: [Range<usize>; 2],
    /// Parts (layer, head, block) expected and received.
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
    /// Longest window of the model.
    window: Option<usize>,
    latest: TransferId,
    list: Vec<Incoming>,
}

impl Inbox {
    /// Creates the inbox of a rank with this shard.
    pub(super) fn new(plan: &ShardPlan, window: Option<usize>) -> Self {
        let heads_kv = plan.cuts.iter().map(|cut| cut.heads_kv.clone()).collect();
        Self { layers: plan.layers.clone(), heads_kv, window, latest: TransferId(0), list: Vec::new() }
    }

    /// Whether any transfer is incomplete.
    pub(super) fn is_waiting(&self) -> bool {
        self.list.iter().any(|incoming| !incoming.failed && incoming.received < incoming.expected)
    }

    /// Replicas with incomplete transfers.
    pub(super) fn awaited(&self) -> impl Iterator<Item = u16> {
        self.list.iter().filter(|incoming| incoming.received < incoming.expected).map(|incoming| incoming.replica)
    }

    /// Expects a transfer as ordered; false if the order is invalid.
    pub(super) fn open(&mut self, order: &TransferOrder, cache: &KvCache) -> bool {
        let TransferOrder::Receive { transfer, replica, blocks, windowed, first_block, length } = order else {
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
        self.latest = *transfer;
        let wanted = [wanted, seen];
        let parts = (0..self.layers.len()).map(|layer| {
            let layer = cache.layer(layer);
            let heads = if layer.is_shared { 0 } else { self.heads_kv[layer.kind].len() };
            (heads * wanted[usize::from(layer.is_windowed)].len()) as u64
        });
        let (expected, transfer, replica) = (parts.sum(), *transfer, *replica);
        let tables = [(0, blocks.clone()), windowed];
        let (received, bytes, failed) = (0, 0, false);
        self.list.push(Incoming { transfer, replica, tables, wanted, expected, received, bytes, failed });
        true
    }

    /// Stops expecting a transfer.
    pub(super) fn close(&mut self, transfer: TransferId) {
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

    /// Stores a frame from a replica in the cache.
    pub(super) fn take(&mut self, replica: u16, header: &FrameHeader, payload: &[u8], cache: &mut KvCache) -> Taken {
        let transfer = TransferId(header.step);
        let Some(incoming) = self.list.iter_mut().find(|incoming| incoming.transfer == transfer) else {
            // Parts of a closed transfer are dropped; parts that overtake the head's order wait for it.
            return if transfer > self.latest { Taken::Later } else { Taken::Done };
        };
        let Some((place, parts)) = KvPart::decode(payload) else { return Taken::Broken };
        let KvPart { layer, ref blocks, ref heads_kv } = place;
        if !self.layers.contains(&layer) {
            return Taken::Broken;
        }
        let layer = layer - self.layers.start;
        let (cached, size) = (*cache.layer(layer), cache.part_bytes(layer));
        let own = &self.heads_kv[cached.kind];
        let is_wanted = |range: &Range<usize>, of: &Range<usize>| of.start <= range.start && range.end <= of.end;
        let fits = is_wanted(heads_kv, own)
            && is_wanted(blocks, &incoming.wanted[usize::from(cached.is_windowed)])
            && parts.len() == heads_kv.len() * blocks.len() * size;
        if !fits || incoming.replica != replica {
            return Taken::Broken;
        }
        let (first, table) = &incoming.tables[usize::from(cached.is_windowed)];
        let places = heads_kv.clone().flat_map(|head| blocks.clone().map(move |block| (head, block)));
        for ((head, block), part) in places.zip(parts.chunks_exact(size)) {
            let place = kv_cache::Place { layer, block: table[block - first], head: head - own.start };
            if !cache.take_over(place, part) {
                return Taken::Broken;
            }
            incoming.received += 1;
        }
        incoming.bytes += payload.len() as u64;
        if incoming.received > incoming.expected { Taken::Broken } else { Taken::Done }
    }
}
