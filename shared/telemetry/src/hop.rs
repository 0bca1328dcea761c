//! Hand-overs between the stages of a pipeline: hidden states for the next stage, tokens for the head.
use common::{
    ids::Rank,
    latency::ratio,
    units::{Bytes, Nanoseconds},
};
use serde::{Deserialize, Serialize};

/// One hand-over as seen by the receiving rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopRecord {
    /// The step, in the head's numbering.
    pub step: u64,
    /// The sending rank, numbered in the replica.
    pub from: Rank,
    /// Whether the step carried prompt tokens.
    pub is_prefill: bool,
    /// Tokens in the step.
    pub tokens: u32,
    /// Bytes of the message, its header included.
    pub bytes: u32,
    /// From passing it to the sender's kernel until its last byte arrived; `None` while the two clocks have not been
    /// compared.
    pub hop: Option<Nanoseconds>,
    /// Time waited for it, without the hop: the previous stage was still computing.
    pub blocked: Nanoseconds,
    /// Own compute time since the previous collective or hand-over.
    pub compute: Nanoseconds,
    /// Time to pass the latest hand-over to the next stage's socket: the kernel blocks while that stage has not read.
    pub sending: Nanoseconds,
}

/// The hand-overs from one rank since the last report, as seen by the receiving rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSync {
    /// The sending rank, numbered in the replica.
    pub from: Rank,
    /// Number of hand-overs.
    pub count: u32,
    /// Number of hand-overs whose hop latency is known.
    pub timed: u32,
    /// Median hop latency.
    pub p50: Nanoseconds,
    /// 95th percentile of the hop latency.
    pub p95: Nanoseconds,
    /// 99th percentile of the hop latency.
    pub p99: Nanoseconds,
    /// Mean hop latency.
    pub hop: Nanoseconds,
    /// Mean time waiting for the previous stage.
    pub blocked: Nanoseconds,
    /// Mean own compute time.
    pub compute: Nanoseconds,
    /// Mean time to pass a hand-over to the next stage's socket.
    pub sending: Nanoseconds,
    /// Total bytes.
    pub bytes: Bytes,
}

/// Most hand-overs that one report summarises, the latest ones.
pub const LATEST: usize = 64;
/// Fewest hand-overs from which a stage or a hop can be called slow.
pub const HOPS_MIN: u32 = 32;
/// A stage is slow if it computes this many times as long, relative to its weights, as the others.
pub const SLOW_STAGE: f64 = 1.12;
/// A hop is slow if it takes this many times as long as its bytes need on a 1 Gb/s link with this latency.
const SLOW_HOP: f64 = 2.0;
const LATENCY_NS: f64 = 100_000.0;
const NS_PER_BYTE: f64 = 8.0;

/// Timing of one stage of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTime {
    /// Its latest hand-overs.
    pub sync: HopSync,
    /// Bytes that its compute reads: weights and KV cache.
    pub shard: Bytes,
}

/// The stage that computes longer, relative to its weights, than the others, and the factor; `None` if the stages are
/// alike or there is too little data.
pub fn slow_stage(stages: &[StageTime]) -> Option<(usize, f64)> {
    if stages.len() < 2 || stages.iter().any(|stage| stage.sync.count < HOPS_MIN || stage.shard.0 == 0) {
        return None;
    }
    let times: Vec<f64> = stages.iter().map(|stage| ratio(stage.sync.compute.0 as f64, stage.shard.0 as f64)).collect();
    let slowest = (0..times.len()).max_by(|one, two| times[*one].total_cmp(&times[*two]))?;
    let mut others: Vec<f64> = (0..times.len()).filter(|stage| *stage != slowest).map(|stage| times[stage]).collect();
    others.sort_by(f64::total_cmp);
    let factor = ratio(times[slowest], others[others.len() / 2]);
    (factor >= SLOW_STAGE).then_some((slowest, factor))
}

impl HopSync {
    /// Ratio of the hop latency to the time that its bytes need on a good link, if the hop is slow.
    pub fn slow_hop(&self) -> Option<f64> {
        let bytes = ratio(self.bytes.0 as f64, f64::from(self.count));
        let factor = self.p50.0 as f64 / (LATENCY_NS + NS_PER_BYTE * bytes);
        (self.timed >= HOPS_MIN && factor >= SLOW_HOP).then_some(factor)
    }

    /// Share of a stage's time, without waiting for others, that its hand-overs were in transit: over all stages of a
    /// pipeline, the sum of the hops divided by the step's time.
    pub fn network_fraction(&self) -> f64 {
        ratio(self.hop.0 as f64, self.hop.0 as f64 + self.compute.0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(compute: u64, shard: u64) -> StageTime {
        let sync = HopSync { count: 64, compute: Nanoseconds(compute), ..HopSync::default() };
        StageTime { sync, shard: Bytes(shard) }
    }

    #[test]
    fn stage_is_judged_relative_to_its_weights() {
        assert_eq!(slow_stage(&[stage(5_000_000, 100), stage(10_000_000, 200)]), None);
        assert_eq!(slow_stage(&[stage(5_000_000, 100), stage(12_500_000, 200)]), Some((1, 1.25)));
        assert_eq!(slow_stage(&[stage(50, 10), stage(50, 10), stage(64, 10), stage(51, 10)]).map(|it| it.0), Some(2));
        assert_eq!(slow_stage(&[stage(50, 10)]), None, "there is no other stage");
        let few = StageTime { sync: HopSync { count: HOPS_MIN - 1, ..stage(90, 10).sync }, ..stage(90, 10) };
        assert_eq!(slow_stage(&[stage(50, 10), few]), None, "too little is known");
        assert_eq!(slow_stage(&[stage(50, 10), stage(90, 0)]), None);
    }

    #[test]
    fn a_hop_is_slow_for_its_bytes() {
        let hop = |p50: u64, bytes: u64| HopSync {
            count: 64,
            timed: 64,
            p50: Nanoseconds(p50),
            bytes: Bytes(64 * bytes),
            ..HopSync::default()
        };
        assert_eq!(hop(160_000, 8192).slow_hop(), None, "as a link of 1 Gb/s takes");
        assert!(hop(760_000, 8192).slow_hop().is_some_and(|factor| factor > 4.0), "as one of 100 Mb/s takes");
        assert_eq!(HopSync { timed: 3, ..hop(760_000, 8192) }.slow_hop(), None);
    }
}
