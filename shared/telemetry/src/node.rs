//! A node's report on itself.
use collectives::Table;
use common::{
    fault::Fault,
    ids::{Epoch, MemberIndex, TopologyHash},
    units::Bytes,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use topology::{Exclusions, Rolling, Topology};

use crate::{
    bench::{KnownLink, NodeBench},
    health::Health,
    hop::HopSync,
    kv_store::StoreUse,
    request::RequestReport,
    sync::{Lateness, LayerSync},
};

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Holds no shard.
    Idle,
    /// Loads a prepared shard.
    Loading,
    /// Holds a shard and waits for the commit.
    Prepared,
    /// The assignment is committed; links to the other ranks are being opened.
    Connecting,
    /// Holds a shard of a running topology and is idle.
    Ready,
    /// Is running requests.
    Serving,
    /// Finishes running requests, accepts no new ones, then exits.
    Draining,
    /// Its topology failed; the reason is in the report. A new assignment clears the fault.
    Faulted,
    /// Holds no shard and runs a benchmark.
    Benching,
}

impl NodeState {
    /// Whether the node is a member of a running topology that accepts requests.
    pub fn serves(self) -> bool {
        matches!(self, Self::Ready | Self::Serving)
    }

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

/// Progress of loading a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    /// Bytes read so far.
    pub done: Bytes,
    /// Bytes in all.
    pub total: Bytes,
}

/// The KV blocks of a replica, as its head allocates them to sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvUse {
    /// Blocks in use by sequences.
    pub held: u32,
    /// Cached blocks without a sequence, kept as prefix cache.
    pub kept: u32,
    /// All blocks.
    pub total: u32,
}

/// Memory of a node, with the current shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardMemory {
    /// Available memory of the machine.
    pub available: Bytes,
    /// Resident memory of the daemon.
    pub resident: Bytes,
    /// Bytes of weights, KV cache and states in the shard.
    pub shard: Bytes,
    /// The store of keys and values, which stays when the shard is unloaded.
    pub store: Option<StoreUse>,
}

impl ShardMemory {
    /// Memory for the next shard, which replaces the current one.
    pub fn for_next_shard(self) -> Bytes {
        let Self { available, resident, shard, store } = self;
        let kept = store.filter(|store| store.in_memory).map_or(0, |store| store.bytes.0);
        // The kernel allocates the pages of KV cache and states when they are first written. Until then they count as
        // available, and unloading the shard does not free them.
        let freed = shard.0.min(resident.0.saturating_sub(kept));
        Bytes(available.0.saturating_add(freed))
    }
}

/// Measurements of a node since its start, for planners: its latest links and its latest benchmark of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// At most one per peer.
    pub links: Vec<KnownLink>,
    /// The benchmark, and its end by the node's clock: milliseconds since 1970.
    pub speed: Option<(Box<NodeBench>, u64)>,
}

/// Prefix of `kernels` on a paced node, which waits instead of computing (for benchmarks).
pub const PACED: &str = "paced ";

/// A node's report: sent on request, and at an interval to subscribers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Random number chosen at each start of the daemon.
    pub instance: u64,
    /// Whether a supervisor restarts the daemon after it exits for a restart.
    pub supervised: bool,
    /// Whether it recovers its topology automatically.
    pub recovers: bool,
    /// Its machine's clock: milliseconds since 1970.
    pub unix_ms: u64,
    /// Build of the daemon.
    pub build: String,
    /// Kernel table in use.
    pub kernels: String,
    /// Current state.
    pub state: NodeState,
    /// Highest epoch seen.
    pub epoch: Epoch,
    /// The running (or prepared) topology, its hash and this node's rank.
    pub topology: Option<(Topology, TopologyHash, MemberIndex)>,
    /// The topology that the operator requested, if the running one is reduced because members are missing.
    #[serde(default, with = "common::version::since_5")]
    pub desired: Option<Box<Topology>>,
    /// Why the topology failed.
    pub fault: Option<Fault>,
    /// Progress of a load under way.
    pub load: Option<LoadProgress>,
    /// Bytes of weights and KV cache in the shard.
    pub shard: Bytes,
    /// Resident memory of the daemon.
    pub memory_resident: Bytes,
    /// Health of the machine, read once a second.
    pub health: Health,
    /// Requests running and queued here (a head's own count; 0 on other ranks).
    pub requests: u32,
    /// The oldest of these, and the latest that have ended (heads only).
    pub traces: Vec<RequestReport>,
    /// Tokens sampled since start (a head's own count).
    pub tokens: u64,
    /// KV blocks of the replica (heads only).
    pub kv: Option<KvUse>,
    /// All-reduces by layer since the last report.
    pub layers: Vec<LayerSync>,
    /// Observations of its peers' arrivals in these all-reduces.
    pub lateness: Vec<Lateness>,
    /// Hand-overs that it received since the last report, by sender.
    #[serde(default, with = "common::version::since_5")]
    pub hops: Vec<HopSync>,
    /// The algorithms for all-reduces of the running topology, and the times on which the choice is based.
    pub collectives: Option<Table>,
    /// Excluded nodes, as far as this node has been informed.
    pub exclusions: Exclusions,
    /// The latest rolling restart that it has been informed of, including a completed one.
    pub rolling: Option<Rolling>,
    /// Its measurements since its start.
    #[serde(default, with = "common::version::since_5")]
    pub measured: Measured,
    /// Addresses of other nodes of the cluster that it has been informed of.
    #[serde(default, with = "common::version::since_12")]
    pub neighbours: Vec<String>,
    /// The topology that was last unloaded here.
    #[serde(default, with = "common::version::since_12")]
    pub unloaded: Option<(Epoch, TopologyHash)>,
    /// The topology that it does not run yet, and that recovery is to bring back.
    #[serde(default, with = "common::version::since_12")]
    pub expected: Option<Box<Topology>>,
    /// Its store of keys and values.
    #[serde(default, with = "common::version::since_14")]
    pub store: Option<StoreUse>,
    /// Maximum memory of a shard by its settings; `None`: the free memory.
    #[serde(default, with = "common::version::since_16")]
    pub memory_max: Option<Bytes>,
}

impl NodeReport {
    /// Whether the node only simulates compute time. Its answers are meaningless.
    pub fn is_paced(&self) -> bool {
        self.kernels.starts_with(PACED)
    }

    /// Whether the node serves this topology, without a fault. Topologies are compared, not epochs: a failed assignment
    /// may have raised the epoch of some nodes.
    pub fn serves(&self, topology: &Topology) -> bool {
        let holds = self.topology.as_ref().is_some_and(|(held, ..)| held == topology);
        holds && self.fault.is_none() && self.state.serves()
    }

    /// Checks what readers of a report rely on: its topologies are valid, and the node is a member of its own.
    ///
    /// # Errors
    /// The first part that is invalid.
    pub fn check(&self) -> Result<(), String> {
        let held = self.topology.iter().map(|(topology, ..)| topology);
        let others = [&self.desired, &self.expected].into_iter().flatten().map(|topology| &**topology);
        held.chain(others).try_for_each(Topology::check).map_err(|error| error.to_string())?;
        if let Some((topology, _, member)) = &self.topology
            && member.index() >= topology.members.len()
        {
            return Err(format!("member {} of a topology of {} nodes", member.0, topology.members.len()));
        }
        self.exclusions.check().map_err(|error| error.to_string())?;
        self.rolling.as_ref().map_or(Ok(()), Rolling::check)
    }

    /// The report as a JSON object, for `console status --json` and `GET /cluster`. All-reduces, requests and measurements
    /// have commands and paths of their own.
    pub fn object(&self) -> Map<String, Value> {
        let topology = self.topology.as_ref().map(|(topology, hash, rank)| {
            let nodes: Vec<&str> = topology.members.iter().map(|member| member.name.as_str()).collect();
            json!({"layout": topology.layout.to_string(), "hash": hash.to_string(), "rank": rank.0, "model": topology.model,
                "nodes": nodes, "context": topology.context_length, "kv": topology.kv, "exchange": topology.exchange,
                "collective": topology.collective})
        });
        let warnings: Vec<String> = self.health.warnings().iter().map(ToString::to_string).collect();
        let values = json!({
            "name": self.name, "state": self.state.name(), "epoch": self.epoch.0, "topology": topology,
            "desired": self.desired.as_ref().map(|desired| desired.layout.to_string()),
            "fault": self.fault.as_ref().map(ToString::to_string),
            "load": self.load.map(|load| json!({"done": load.done.0, "total": load.total.0})),
            "shard_bytes": self.shard.0, "memory_resident": self.memory_resident.0,
            "memory_max": self.memory_max.map(|most| most.0),
            "health": self.health, "warnings": warnings, "findings": self.health.findings(),
            "collectives": self.collectives, "supervised": self.supervised, "exclusions": self.exclusions,
            "requests": self.requests, "tokens": self.tokens, "kernels": self.kernels, "paced": self.is_paced(),
            "build": self.build,
        });
        match values {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    }

    /// The readings of its machine and the memory limit of its settings, one line for each with a value.
    pub fn readings(&self) -> Vec<String> {
        let mut lines = self.health.readings();
        if let Some(most) = self.memory_max {
            let memory = lines.iter().position(|line| line.starts_with("memory "));
            let limit = format!("{:<12} {most} (memory_max_mib)", "shard limit");
            lines.insert(memory.map_or(lines.len(), |place| place + 1), limit);
        }
        lines
    }

    /// How much of this free memory a shard may take: the node refuses a shard above its limit.
    pub fn within_limit(&self, free: Bytes) -> Bytes {
        self.memory_max.map_or(free, |most| most.min(free))
    }

    /// Memory for another shard while the current one stays: the available memory, at most the limit. `None` if the
    /// node reports no memory.
    pub fn free_next_to_shard(&self) -> Option<Bytes> {
        Some(self.within_limit(self.health.memory?.available))
    }

    /// Memory for the next shard: the available memory plus what the current shard occupies, at most the limit. `None`
    /// if the node reports no memory.
    pub fn free_for_next_shard(&self) -> Option<Bytes> {
        Some(self.within_limit(self.free_without_shard()?))
    }

    /// The available memory plus what the current shard occupies. `None` if the node reports no memory.
    pub fn free_without_shard(&self) -> Option<Bytes> {
        let Self { shard, store, memory_resident: resident, .. } = *self;
        let available = self.health.memory?.available;
        Some(ShardMemory { available, resident, shard, store }.for_next_shard())
    }

    /// Whether another report is equal except for its time.
    pub fn is_same_but_for_the_time(&self, other: &Self) -> bool {
        self.state == other.state
            && self.tokens == other.tokens
            && self.health == other.health
            && *self == Self { unix_ms: self.unix_ms, ..other.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    #[track_caller]
    fn check(memory: ShardMemory, expected: u64) {
        let free = memory.for_next_shard();
        assert_eq!(free, Bytes(expected * MB), "{memory:?}");
    }

    #[test]
    fn only_the_resident_part_of_a_shard_is_freed() {
        let [available, shard] = [6800, 5000].map(|megabytes| Bytes(megabytes * MB));
        let memory = ShardMemory { available, shard, ..ShardMemory::default() };
        check(ShardMemory { resident: Bytes(1200 * MB), ..memory }, 8000);
        check(ShardMemory { resident: Bytes(5100 * MB), ..memory }, 11_800);
        check(ShardMemory { resident: Bytes(100 * MB), shard: Bytes(0), ..memory }, 6800);
        check(memory, 6800);
    }

    #[test]
    fn stored_keys_and_values_in_memory_are_not_freed() {
        let [available, resident, shard] = [6800, 1200, 5000].map(|megabytes| Bytes(megabytes * MB));
        let memory = ShardMemory { available, resident, shard, store: None };
        let store = StoreUse { in_memory: true, bytes: Bytes(300 * MB), ..StoreUse::default() };
        check(ShardMemory { store: Some(store), ..memory }, 7700);
        check(ShardMemory { store: Some(StoreUse { in_memory: false, ..store }), ..memory }, 8000);
        check(ShardMemory { store: Some(StoreUse { bytes: Bytes(u64::MAX), ..store }), ..memory }, 6800);
    }
}
