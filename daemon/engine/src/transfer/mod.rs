//! Disaggregated prefill: one group computes prompts for another, and keys, values and states go from rank to rank while
//! they are computed. Each rank executes its head's orders (`TransferOrder`); heads talk to each other through the driver
//! (`asking.rs`, `computing.rs`).
mod inbox;
mod outbox;
mod rank;
mod remote_prefill;
pub mod requested;
pub mod served;

use std::ops::Range;

use common::ids::Slot;
use serde::{Deserialize, Serialize};
use topology::{ShardPlan, Topology, routes};

use self::{
    inbox::Inbox,
    outbox::{Outbox, SendRoute},
};
pub use self::{rank::Transfers, remote_prefill::RemotePrefill};
use crate::{collective::KvLinks, kv_store::StoreOrder};

/// Identifies a transfer among those of the decode group that requested it; increasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransferId(pub u64);

/// A head's order about transfers to the ranks of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferOrder {
    /// Send the keys and values that will be computed in a slot.
    Send {
        /// The slot that the next plan opens.
        slot: Slot,
        /// The transfer.
        transfer: TransferId,
        /// The decode group.
        replica: u16,
        /// First block to send.
        first_block: u32,
        /// End position of the sent range; positions before the first block count but are not sent.
        length: u32,
    },
    /// Receive keys and values into these blocks.
    Receive {
        /// The transfer.
        transfer: TransferId,
        /// The prefill group.
        replica: u16,
        /// The blocks of the sequence.
        blocks: Vec<u32>,
        /// Its blocks in layers with a window, and the index of the first of them.
        windowed: (u32, Vec<u32>),
        /// Number of the state to receive into; `None` in a model without states.
        state: Option<u16>,
        /// First block to receive.
        first_block: u32,
        /// End position of the received range; positions before the first block count but are not received.
        length: u32,
    },
    /// End a transfer: send and receive nothing more of it.
    End {
        /// The transfer.
        transfer: TransferId,
        /// The other group.
        replica: u16,
    },
    /// Report the status of a transfer.
    Tell {
        /// The transfer.
        transfer: TransferId,
    },
    /// About keys and values on the disks of the ranks.
    Store(StoreOrder),
}

/// Status of a transfer on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferStatus {
    /// Some parts are missing.
    Waiting,
    /// All of this rank's layers and heads have arrived.
    Arrived {
        /// Bytes received.
        bytes: u64,
    },
    /// The missing parts will not arrive.
    Failed,
}

/// What a frame has parts of: `[head, block]`, each keys and values in the layout of the cache; in a layer with a state
/// `[unit]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KvPart {
    /// Index in the whole model.
    layer: usize,
    /// Indices in the sequence; in a layer with a state units of its mixer, as indices in the whole model.
    blocks: Range<usize>,
    /// Indices in the whole model; none in a layer with a state.
    heads_kv: Range<usize>,
}

impl KvPart {
    /// Encoded length in bytes, before the parts.
    const BYTES: usize = 12;

    fn encode(&self, out: &mut Vec<u8>) {
        let short = |value: usize| u16::try_from(value).expect("layers, heads and blocks of a frame are below 65536");
        out.extend(short(self.layer).to_le_bytes());
        out.extend((self.blocks.start as u32).to_le_bytes());
        out.extend(short(self.blocks.len()).to_le_bytes());
        out.extend(short(self.heads_kv.start).to_le_bytes());
        out.extend(short(self.heads_kv.len()).to_le_bytes());
    }

    /// Decodes the place and returns the parts after it; `None` if the payload is truncated.
    fn decode(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (place, parts) = payload.split_first_chunk::<{ Self::BYTES }>()?;
        let short = |at: usize| usize::from(u16::from_le_bytes([place[at], place[at + 1]]));
        let first = u32::from_le_bytes([place[2], place[3], place[4], place[5]]) as usize;
        let (blocks, heads_kv) = (first..first + short(6), short(8)..short(8) + short(10));
        Some((Self { layer: short(0), blocks, heads_kv }, parts))
    }
}

/// What a rank of a group with a role needs besides its links to the other groups.
#[derive(Debug)]
pub struct Partners {
    /// Ranks that it sends to, with the parts for each; empty in a decode group.
    send_routes: Vec<SendRoute>,
    /// The replicas with the other role.
    pub replicas: Vec<u16>,
    /// A prompt is computed by a prefill group if it has at least this many tokens without the last one.
    pub least: usize,
    /// For benchmarks: sends nothing before the whole prompt is computed.
    pub at_end: bool,
    /// Longest window of the model.
    window: Option<usize>,
}

impl Partners {
    /// Creates those of a member of `topology` for a model whose longest window is `window`; `plans` are the shards of
    /// each replica.
    pub fn new(topology: &Topology, own: &topology::Place, plans: &[Vec<ShardPlan>], window: Option<usize>) -> Self {
        let layout = topology.layout;
        let replicas: Vec<u16> = (0..layout.replicas).filter(|replica| layout.role(*replica) != own.role).collect();
        let send_routes = |replica: &u16| {
            let (replica, begin) = (*replica, layout.members(*replica).start);
            let found = routes(&plans[usize::from(own.replica)], own.rank.index(), &plans[usize::from(replica)]);
            found.into_iter().map(move |route| {
                let member = common::ids::MemberIndex((begin + route.to) as u16);
                SendRoute { replica, member, route }
            })
        };
        let sends = own.role == topology::Role::Prefill;
        let send_routes = if sends { replicas.iter().flat_map(send_routes).collect() } else { Vec::new() };
        Self { send_routes, replicas, least: usize::MAX, at_end: false, window }
    }

    /// The KV transfers of a rank with the shard `plan`.
    pub fn transfers(&self, topology: &Topology, plan: &ShardPlan, links: KvLinks) -> Transfers {
        let outbox = Outbox::new(self.send_routes.clone(), plan, self.at_end);
        Transfers::new(links, outbox.with_window(self.window), Inbox::new(plan, self.window), topology.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_survives_encoding_and_is_refused_if_truncated() {
        let place = KvPart { layer: 79, blocks: 70_000..70_008, heads_kv: 6..8 };
        let mut payload = Vec::new();
        place.encode(&mut payload);
        assert_eq!(payload.len(), KvPart::BYTES);
        assert_eq!((0..KvPart::BYTES).find(|end| KvPart::decode(&payload[..*end]).is_some()), None);
        payload.push(7);
        assert_eq!(KvPart::decode(&payload), Some((place, &[7][..])));
    }
}
