//! Where the time of a step is spent: compute, waiting for a rank, wire. The clocks of two machines are never compared.
use common::{
    ids::{LayerIndex, Rank},
    latency::ratio,
    units::Nanoseconds,
};
use serde::{Deserialize, Serialize};

/// Which of a layer's two all-reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SyncKind {
    /// After the attention.
    Attention,
    /// After the feed-forward.
    FeedForward,
}

/// When the part of one peer arrived in an all-reduce, by the receiver's clock since its own enter: 0 for parts that
/// arrived before. Earlier pauses of the receiver in the same all-reduce (stopped, starved of CPU) are subtracted.
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
    /// From the first byte to the last: the transfer time once its messages began to arrive.
    pub fn way(&self) -> Nanoseconds {
        Nanoseconds(self.whole.0.saturating_sub(self.first.0))
    }
}

/// One all-reduce as seen by one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// The step, in the head's numbering.
    pub step: u64,
    /// When this rank began the exchange, since its engine's start by its own clock; never compared with another clock.
    pub enter: Nanoseconds,
    /// When the exchange ended, by the same clock: the sum of enter, wait and wire. Compute time starts here.
    pub exit: Nanoseconds,
    /// The layer.
    pub layer: LayerIndex,
    /// Which all-reduce of the layer.
    pub kind: SyncKind,
    /// Tokens in the step.
    pub tokens: u32,
    /// Own compute time since the previous collective.
    pub compute: Nanoseconds,
    /// Time waited for the slowest other rank beyond the own compute time.
    pub wait: Nanoseconds,
    /// From the own send to the last arrival, without the wait.
    pub wire: Nanoseconds,
    /// The rank that computed longest; the own rank if there was no wait.
    pub slowest: Rank,
    /// The rank whose part arrived last; the own rank if none arrived after the own send.
    pub last: Rank,
    /// How long that part was the only one missing.
    pub late: Nanoseconds,
    /// The peers that sent a part, by rank.
    pub arrivals: Vec<Arrival>,
}

/// Most records that a node sends at once.
pub const RECORDS_MAX: usize = 8192;
/// Most arrivals in all of them together: with larger stages a message holds fewer records, so that it fits the limit
/// for any times.
pub const ARRIVALS_MAX: usize = 1 << 17;

/// Another rank's observations of one rank since the last report, over all all-reduces, and the cost of its lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// The observed rank.
    pub rank: Rank,
    /// How often its part was the last.
    pub count: u32,
    /// How long its part was the only one missing, summed.
    pub time: Nanoseconds,
    /// All-reduces in which it sent a part.
    #[serde(default)]
    pub heard: u32,
    /// From the observer's enter to the first byte of its parts, summed.
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
    /// Tokens processed by the layers.
    pub tokens: u64,
    /// Own compute time, sampling included.
    pub compute: Nanoseconds,
    /// Time to wake the own threads and to wait for the last of them, between and inside products.
    pub threads: Nanoseconds,
    /// Time waiting for other ranks' compute.
    pub wait: Nanoseconds,
    /// Time on the wire.
    pub wire: Nanoseconds,
    /// Time waiting for another stage of the pipeline to compute; hand-overs in transit count as wire.
    pub bubble: Nanoseconds,
    /// Bytes sent to other ranks, headers included.
    pub bytes_sent: u64,
    /// Messages sent to other ranks.
    pub messages_sent: u64,
}

impl PhaseTotals {
    /// Sum of compute, threads, wait, wire and bubble.
    pub fn total(&self) -> Nanoseconds {
        Nanoseconds(self.compute.0 + self.threads.0 + self.wait.0 + self.wire.0 + self.bubble.0)
    }

    /// (wait + wire) / (total - bubble): while a stage waits for the compute of others, the step's time belongs to
    /// them. Summed over the ranks of a pipeline, this is the time of all hops and all-reduces relative to a step.
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

/// A rank's sums, prefill and decode separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTotals {
    /// Steps that carried prompt tokens.
    pub prefill: PhaseTotals,
    /// Steps of sampled tokens only.
    pub decode: PhaseTotals,
}

impl RankTotals {
    /// The sum of both phases.
    pub fn both(&self) -> PhaseTotals {
        let mut sum = self.prefill;
        sum.add(&self.decode);
        sum
    }
}

/// A layer's all-reduces since the last report, as a dashboard shows them.
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
    /// Mean of the own compute time.
    pub compute: Nanoseconds,
    /// Mean of the waiting.
    pub wait: Nanoseconds,
    /// Mean of the wire.
    pub wire: Nanoseconds,
    /// The rank that was most often the slowest.
    pub slowest: Rank,
}
