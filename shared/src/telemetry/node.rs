//! A node's report of itself.
use serde::{Deserialize, Serialize};

use crate::{
    ids::{Epoch, MemberIndex, TopologyHash},
    protocol::error::Fault,
    schedule::Table,
    telemetry::{
        bench::{KnownLink, NodeBench},
        health::Health,
        hop::HopSync,
        request::RequestReport,
        sync::{Lateness, LayerSync},
    },
    topology::{Exclusions, Rolling, Topology},
    units::Bytes,
};

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Holds no shard.
    Idle,
    /// Loads a shard that was prepared.
    Loading,
    /// Holds a shard and waits for the commit.
    Prepared,
    /// Committed; opens links to the other ranks.
    Connecting,
    /// Holds a shard of a running topology, nothing to do.
    Ready,
    /// Runs requests.
    Serving,
    /// Finishes what runs, takes nothing new, then ends.
    Draining,
    /// Its topology broke; the reason is in the report. A new assignment cures it.
    Faulted,
    /// Holds no shard and measures itself for a console.
    Benching,
}

impl NodeState {
    /// The name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Loading => "loading",
            Self::Prepared => "prepared",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Faulted => "faulted",
            Self::Benching => "benching",
        }
    }
}

/// Bytes of a shard that were read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    /// Bytes done.
    pub done: Bytes,
    /// Bytes in all.
    pub total: Bytes,
}

/// The KV blocks of a replica, as its head gives them to sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvUse {
    /// Blocks that sequences hold.
    pub held: u32,
    /// Blocks that nobody holds, kept for prompts that begin alike.
    pub kept: u32,
    /// All blocks.
    pub total: u32,
}

/// What a node has measured since its start, for planners: its latest links and its latest bench of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// At most one for each peer.
    pub links: Vec<KnownLink>,
    /// The bench, and when it ended by the node's clock: milliseconds since 1970.
    pub speed: Option<(Box<NodeBench>, u64)>,
}

/// Prefix of `kernels` on a paced node, which waits instead of computing (for benchmarks).
pub const PACED: &str = "paced ";

/// A node's report: sent when asked for and at an interval to those who subscribed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Another number at every start of the daemon.
    pub instance: u64,
    /// Whether something starts the daemon again when it ends to be restarted.
    pub supervised: bool,
    /// Whether it brings its topology back by itself.
    pub recovers: bool,
    /// Its machine's clock: milliseconds since 1970.
    pub unix_ms: u64,
    /// Build of the daemon.
    pub build: String,
    /// Kernel table in use.
    pub kernels: String,
    /// What it is doing.
    pub state: NodeState,
    /// Highest epoch that it has seen.
    pub epoch: Epoch,
    /// The running (or prepared) topology, its hash and this node's rank.
    pub topology: Option<(Topology, TopologyHash, MemberIndex)>,
    /// The topology that the operator requested, if the running one is reduced because members are missing.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub desired: Option<Box<Topology>>,
    /// Why the topology broke.
    pub fault: Option<Fault>,
    /// Progress of a load under way.
    pub load: Option<LoadProgress>,
    /// Bytes of weights and KV cache that the shard holds.
    pub shard: Bytes,
    /// Resident memory of the daemon.
    pub memory_resident: Bytes,
    /// Health of the machine, read once a second.
    pub health: Health,
    /// Requests running and queued here (a head's own count; 0 on other ranks).
    pub requests: u32,
    /// The oldest of these, and the last that are over (heads only).
    pub traces: Vec<RequestReport>,
    /// Tokens sampled since start (a head's own count).
    pub tokens: u64,
    /// KV blocks of the replica (heads only).
    pub kv: Option<KvUse>,
    /// All-reduces by layer since the last report.
    pub layers: Vec<LayerSync>,
    /// Whom it heard of in them and who was late, as this rank saw it.
    pub lateness: Vec<Lateness>,
    /// Hand-overs that it took over since the last report, by who handed over.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub hops: Vec<HopSync>,
    /// Which algorithm the all-reduces of the running topology use, and what they took when it was decided.
    pub collectives: Option<Table>,
    /// Nodes that an operator took out, as far as this node has heard.
    pub exclusions: Exclusions,
    /// The latest rolling restart that it heard of, also when that is over.
    pub rolling: Option<Rolling>,
    /// What it has measured since its start.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub measured: Measured,
}

impl NodeReport {
    /// Whether the node only simulates compute time. Its answers are meaningless.
    pub fn is_paced(&self) -> bool {
        self.kernels.starts_with(PACED)
    }

    /// Memory for the next shard: what is available and what the current shard, which it replaces, holds. `None` if the node reports no
    /// memory.
    pub fn free_for_next_shard(&self) -> Option<Bytes> {
        let memory = self.health.memory?;
        Some(Bytes(memory.available.0.saturating_add(self.shard.0)))
    }

    /// Whether another report says the same, at another time.
    pub fn is_same_but_for_the_time(&self, other: &Self) -> bool {
        self.state == other.state
            && self.tokens == other.tokens
            && self.health == other.health
            && *self == Self { unix_ms: self.unix_ms, ..other.clone() }
    }
}
