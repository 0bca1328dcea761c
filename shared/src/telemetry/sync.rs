//! Where the time of a step goes: compute, waiting for which rank, wire. Clocks of two machines are never compared.
use serde::{Deserialize, Serialize};

use crate::{
    ids::{LayerIndex, Rank},
    latency::ratio,
    units::Nanoseconds,
};

/// Which of a layer's two all-reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SyncKind {
    /// After the attention.
    Attention,
    /// After the feed-forward.
    FeedForward,
}

/// When the part of one peer came in one all-reduce, by the reader's clock from its own enter on: 0 for what was there before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The peer.
    pub rank: Rank,
    /// The first byte of its first message was read.
    pub first: Nanoseconds,
    /// Its last message was whole.
    pub whole: Nanoseconds,
}

impl Arrival {
    /// From the first byte to the last: how long its messages were on the way once they had begun to come.
    pub fn way(&self) -> Nanoseconds {
        Nanoseconds(self.whole.0.saturating_sub(self.first.0))
    }
}

/// One all-reduce as one rank saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// The step, as the head counts them.
    pub step: u64,
    /// When this rank began the exchange, since its engine's start, by its own clock: never compared with another's.
    pub enter: Nanoseconds,
    /// When the exchange was over, by the same clock: enter, waiting and wire together. From here on computing counts.
    pub exit: Nanoseconds,
    /// The layer.
    pub layer: LayerIndex,
    /// Which all-reduce of the layer.
    pub kind: SyncKind,
    /// Tokens in the step.
    pub tokens: u32,
    /// Own computing since the previous collective.
    pub compute: Nanoseconds,
    /// Waiting for the slowest other rank beyond own computing.
    pub wait: Nanoseconds,
    /// Own send until the last arrival, without the waiting.
    pub wire: Nanoseconds,
    /// The rank that computed longest; own rank if nobody was waited for.
    pub slowest: Rank,
    /// The rank whose part arrived last; own rank if none arrived after the own send.
    pub last: Rank,
    /// How long that part was the only one missing.
    pub late: Nanoseconds,
    /// The peers that sent something, by rank.
    pub arrivals: Vec<Arrival>,
}

/// Most records that a node sends at once.
pub const RECORDS_MAX: usize = 8192;
/// Most arrivals in all of them together: large stages have fewer records, so that they fit a message whatever the times are.
pub const ARRIVALS_MAX: usize = 1 << 17;

/// What another rank heard of one rank since the last report, in all all-reduces together, and what its lateness cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// The rank that was heard of.
    pub rank: Rank,
    /// How often its part was the last.
    pub count: u32,
    /// How long its part was the only one missing, summed.
    pub time: Nanoseconds,
    /// All-reduces in which it sent something.
    #[serde(default)]
    pub heard: u32,
    /// The first byte of its parts after the other's enter, summed.
    #[serde(default)]
    pub first: Nanoseconds,
    /// From that first byte to the last, summed.
    #[serde(default)]
    pub way: Nanoseconds,
}

/// Sums over the collectives of a phase (prefill or decode) on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTotals {
    /// Steps.
    pub steps: u64,
    /// Tokens that went through the layers.
    pub tokens: u64,
    /// Own computing, sampling included.
    pub compute: Nanoseconds,
    /// Waking the own threads and waiting for the last of them, between and inside products.
    pub threads: Nanoseconds,
    /// Waiting for other ranks' computing.
    pub wait: Nanoseconds,
    /// Time on the wire.
    pub wire: Nanoseconds,
    /// Waiting for another stage of the pipeline to compute; hand-overs on their way are wire.
    pub bubble: Nanoseconds,
    /// Bytes sent to other ranks, headers included.
    pub bytes_sent: u64,
    /// Messages sent to other ranks.
    pub messages_sent: u64,
}

impl PhaseTotals {
    /// Compute, threads, waiting, wire and bubble together.
    pub fn total(&self) -> Nanoseconds {
        Nanoseconds(self.compute.0 + self.threads.0 + self.wait.0 + self.wire.0 + self.bubble.0)
    }

    /// (wait + wire) / (total - bubble): while a stage waits for others to compute, the step's time is theirs. Summed over the ranks of
    /// a pipeline this is all hops and all-reduces over the time of a step.
    pub fn network_fraction(&self) -> f64 {
        ratio((self.wait.0 + self.wire.0) as f64, (self.total().0 - self.bubble.0) as f64)
    }

    /// Adds another phase's sums to these.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.compute.0 += other.compute.0;
        self.threads.0 += other.threads.0;
        self.wait.0 += other.wait.0;
        self.wire.0 += other.wire.0;
        self.bubble.0 += other.bubble.0;
        self.bytes_sent += other.bytes_sent;
        self.messages_sent += other.messages_sent;
    }
}

/// A rank's sums, prefill and decode apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTotals {
    /// Steps that carried prompt tokens.
    pub prefill: PhaseTotals,
    /// Steps of sampled tokens only.
    pub decode: PhaseTotals,
}

impl RankTotals {
    /// Both phases together.
    pub fn both(&self) -> PhaseTotals {
        let mut sum = self.prefill;
        sum.add(&self.decode);
        sum
    }
}

/// A layer's all-reduces since the last report: what a dashboard draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSync {
    /// The layer.
    pub layer: LayerIndex,
    /// Which all-reduce of the layer.
    pub kind: SyncKind,
    /// All-reduces counted.
    pub count: u32,
    /// Median of wait + wire.
    pub p50: Nanoseconds,
    /// 95th percentile of wait + wire.
    pub p95: Nanoseconds,
    /// 99th percentile of wait + wire.
    pub p99: Nanoseconds,
    /// Mean of own computing.
    pub compute: Nanoseconds,
    /// Mean of the waiting.
    pub wait: Nanoseconds,
    /// Mean of the wire.
    pub wire: Nanoseconds,
    /// The rank waited for most often.
    pub slowest: Rank,
}
