//! Keys and values that a rank of a decode group receives into its cache: which are expected, and which have arrived.
use std::ops::Range;

use common::limits::KV_BLOCK_LENGTH;
use protocol::frame::FrameHeader;
use topology::ShardPlan;

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
    /// The sequence's blocks.
    blocks: Vec<u32>,
    /// Indices of the blocks that are received.
    wanted: Range<usize>,
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
    heads_kv: Range<usize>,
    latest: TransferId,
    list: Vec<Incoming>,
}

impl Inbox {
    /// Creates the inbox of a rank with this shard.
    pub(super) fn new(plan: &ShardPlan) -> Self {
        Self { layers: plan.layers.clone(), heads_kv: plan.heads_kv(), latest: TransferId(0), list: Vec::new() }
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
    pub(super) fn open(&mut self, order: &TransferOrder) -> bool {
        let TransferOrder::Receive { transfer, replica, blocks, first_block, length } = order else { return false };
        let wanted = *first_block as usize..(*length as usize).div_ceil(KV_BLOCK_LENGTH);
        if *transfer <= self.latest || wanted.is_empty() || wanted.end > blocks.len() {
            return false;
        }
        self.latest = *transfer;
        let expected = (self.layers.len() * self.heads_kv.len() * wanted.len()) as u64;
        let (transfer, replica, blocks) = (*transfer, *replica, blocks.clone());
        self.list.push(Incoming { transfer, replica, blocks, wanted, expected, received: 0, bytes: 0, failed: false });
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
        let size = cache.part_bytes();
        let KvPart { layer, ref blocks, ref heads_kv } = place;
        let is_wanted = |range: &Range<usize>, of: &Range<usize>| of.start <= range.start && range.end <= of.end;
        let fits = self.layers.contains(&layer)
            && is_wanted(heads_kv, &self.heads_kv)
            && is_wanted(blocks, &incoming.wanted)
            && parts.len() == heads_kv.len() * blocks.len() * size;
        if !fits || incoming.replica != replica {
            return Taken::Broken;
        }
        let layer = layer - self.layers.start;
        let places = heads_kv.clone().flat_map(|head| blocks.clone().map(move |block| (head, block)));
        for ((head, block), part) in places.zip(parts.chunks_exact(size)) {
            let place = kv_cache::Place { layer, block: incoming.blocks[block], head: head - self.heads_kv.start };
            if !cache.take_over(place, part) {
                return Taken::Broken;
            }
            incoming.received += 1;
        }
        incoming.bytes += payload.len() as u64;
        if incoming.received > incoming.expected { Taken::Broken } else { Taken::Done }
    }
}
