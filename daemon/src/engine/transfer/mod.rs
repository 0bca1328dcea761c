//! Prompts that one group computes for another: the keys and values go from rank to rank while they are computed. Each rank does what
//! its head orders (`Order`); heads ask one another through the driver (`asking.rs`, `computing.rs`).
pub mod asking;
pub mod computing;
pub mod head;
mod inbox;
mod outbox;
mod rank;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shared::{
    ids::Slot,
    topology::{ShardPlan, Topology, routes},
};

pub use self::{head::Elsewhere, rank::Transfers};
use self::{
    inbox::Inbox,
    outbox::{Outbox, Way},
};
use crate::collective::AcrossLinks;

/// Names a transfer among those of the decode group that asked for it; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransferId(pub u64);

/// What a head says to the ranks of its group of transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Send what will be computed in a slot.
    Send {
        /// The slot that the next plan opens.
        slot: Slot,
        /// The transfer.
        transfer: TransferId,
        /// The decode group.
        replica: u16,
        /// The first block that is sent.
        first_block: u32,
        /// Positions that are sent, those before the first block included.
        length: u32,
    },
    /// Take what comes into these blocks.
    Receive {
        /// The transfer.
        transfer: TransferId,
        /// The prefill group.
        replica: u16,
        /// The blocks of the sequence.
        blocks: Vec<u32>,
        /// The first block that comes.
        first_block: u32,
        /// Positions that come, those before the first block included.
        length: u32,
    },
    /// It is over: nothing of it is sent or taken any more.
    End {
        /// The transfer.
        transfer: TransferId,
        /// The other group.
        replica: u16,
    },
    /// Say how it stands with a transfer.
    Tell {
        /// The transfer.
        transfer: TransferId,
    },
}

/// How it stands with a transfer on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Something is missing.
    Waiting,
    /// All of this rank's layers and heads are there.
    Arrived {
        /// Bytes that came.
        bytes: u64,
    },
    /// What is missing does not come.
    Failed,
}

/// What a frame of keys and values holds: parts of a KV cache `[head, block]`, each keys and values as they lie there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Counted over the whole model.
    layer: usize,
    /// Counted in the sequence.
    blocks: Range<usize>,
    /// Counted over the whole model.
    heads_kv: Range<usize>,
}

impl Place {
    /// Bytes before the parts.
    const BYTES: usize = 12;

    fn encode(&self, out: &mut Vec<u8>) {
        let short = |value: usize| u16::try_from(value).expect("layers, heads and blocks of a frame are below 65536");
        out.extend(short(self.layer).to_le_bytes());
        out.extend((self.blocks.start as u32).to_le_bytes());
        out.extend(short(self.blocks.len()).to_le_bytes());
        out.extend(short(self.heads_kv.start).to_le_bytes());
        out.extend(short(self.heads_kv.len()).to_le_bytes());
    }

    /// The place, and the parts behind it; `None` if it is cut short.
    fn decode(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (place, parts) = payload.split_first_chunk::<{ Self::BYTES }>()?;
        let short = |at: usize| usize::from(u16::from_le_bytes([place[at], place[at + 1]]));
        let first = u32::from_le_bytes([place[2], place[3], place[4], place[5]]) as usize;
        let (blocks, heads_kv) = (first..first + short(6), short(8)..short(8) + short(10));
        Some((Self { layer: short(0), blocks, heads_kv }, parts))
    }
}

/// What a rank of a group with a role is made of, beside its links to the other groups.
#[derive(Debug)]
pub struct Partners {
    /// What it sends to whom; nothing on a decode group.
    ways: Vec<Way>,
    /// The replicas of the other role.
    pub replicas: Vec<u16>,
    /// Prompts of at least so many tokens are computed by a prefill group.
    pub least: usize,
    /// For measurements: nothing is sent before all is computed.
    pub at_end: bool,
}

impl Partners {
    /// Those of a member of `topology`; `plans` are the shards of each replica.
    pub fn new(topology: &Topology, own: &shared::topology::Place, plans: &[Vec<ShardPlan>]) -> Self {
        let layout = topology.layout;
        let is_other = |replica: &u16| layout.role(*replica) != own.role;
        let replicas: Vec<u16> = (0..layout.replicas).filter(is_other).collect();
        let ways = |replica: &u16| {
            let (replica, begin) = (*replica, layout.members(*replica).start);
            let found = routes(&plans[usize::from(own.replica)], own.rank.index(), &plans[usize::from(replica)]);
            let way = move |route: shared::topology::Route| {
                let member = shared::ids::MemberIndex((begin + route.to) as u16);
                Way { replica, member, route }
            };
            found.into_iter().map(way)
        };
        let sends = own.role == shared::topology::Role::Prefill;
        let ways = if sends { replicas.iter().flat_map(ways).collect() } else { Vec::new() };
        Self { ways, replicas, least: usize::MAX, at_end: false }
    }

    /// The transfers of a rank that holds `plan`.
    pub fn transfers(&self, topology: &Topology, plan: &ShardPlan, links: AcrossLinks) -> Transfers {
        let outbox = Outbox::new(self.ways.clone(), plan.layers.clone(), plan.heads_kv.start, self.at_end);
        Transfers::new(links, outbox, Inbox::new(plan), topology.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_wire_and_is_refused_cut_short() {
        let place = Place { layer: 79, blocks: 70_000..70_008, heads_kv: 6..8 };
        let mut payload = Vec::new();
        place.encode(&mut payload);
        assert_eq!(payload.len(), Place::BYTES);
        assert_eq!((0..Place::BYTES).find(|end| Place::decode(&payload[..*end]).is_some()), None);
        payload.push(7);
        assert_eq!(Place::decode(&payload), Some((place, &[7][..])));
    }
}
