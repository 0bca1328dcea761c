//! Hand-overs between the stages of a pipeline: hidden states for the next stage, tokens for the head.
use serde::{Deserialize, Serialize};

use crate::{
    ids::Rank,
    latency::ratio,
    units::{Bytes, Nanoseconds},
};

/// One hand-over as the rank saw it that took it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopRecord {
    /// The step, as the head counts them.
    pub step: u64,
    /// Who handed over, by rank in the replica.
    pub from: Rank,
    /// Whether the step carried prompt tokens.
    pub is_prefill: bool,
    /// Tokens in the step.
    pub tokens: u32,
    /// Bytes of the message, its header included.
    pub bytes: u32,
    /// From the moment in which it was given to the sender's system until its last byte arrived; `None` while the two clocks have
    /// not been compared yet.
    pub hop: Option<Nanoseconds>,
    /// Waiting for it, but for the hop: the stage before still computed.
    pub blocked: Nanoseconds,
    /// Own computing since the collective or hand-over before.
    pub compute: Nanoseconds,
    /// What the latest hand-over to the next stage took here: the system takes no more while that stage has not read.
    pub sending: Nanoseconds,
}

/// The hand-overs from one rank since the last report, as the rank saw them that took them over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSync {
    /// Who handed over, by rank in the replica.
    pub from: Rank,
    /// Hand-overs.
    pub count: u32,
    /// Those whose hop is known.
    pub timed: u32,
    /// Median of the hop.
    pub p50: Nanoseconds,
    /// 95th percentile of it.
    pub p95: Nanoseconds,
    /// 99th percentile of it.
    pub p99: Nanoseconds,
    /// Mean of it.
    pub hop: Nanoseconds,
    /// Mean of the waiting for the stage before.
    pub blocked: Nanoseconds,
    /// Mean of the own computing.
    pub compute: Nanoseconds,
    /// Mean of giving the system what goes to the next stage.
    pub sending: Nanoseconds,
    /// All bytes.
    pub bytes: Bytes,
}

/// Latest hand-overs that one report sums up at most: what was before them is not of late.
pub const LATEST: usize = 64;
/// Hand-overs that are needed before a stage or a hop is called slow.
pub const HOPS_MIN: u32 = 32;
/// A stage is slow that computes so many times as long for its weights as the others do.
pub const SLOW_STAGE: f64 = 1.12;
/// A hop is slow that takes so many times as long as its bytes need on a link of 1 Gb/s with this latency.
const SLOW_HOP: f64 = 2.0;
const LATENCY_NS: f64 = 100_000.0;
const NS_PER_BYTE: f64 = 8.0;

/// What one stage of a pipeline says of its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTime {
    /// Its latest hand-overs.
    pub sync: HopSync,
    /// What its computing reads: weights, and the KV cache.
    pub shard: Bytes,
}

/// The stage that computes longer for its weights than the others do, and how many times as long; `None` where all are alike, or too little
/// is known.
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
    /// How many times as long the hop takes as its bytes need on a good link, if that is too long.
    pub fn slow_hop(&self) -> Option<f64> {
        let bytes = ratio(self.bytes.0 as f64, f64::from(self.count));
        let factor = self.p50.0 as f64 / (LATENCY_NS + NS_PER_BYTE * bytes);
        (self.timed >= HOPS_MIN && factor >= SLOW_HOP).then_some(factor)
    }

    /// Share of a stage's time, without its waiting for others, that its hand-overs were on the way: over all stages of a pipeline
    /// the sum of the hops over the step's time.
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
    fn a_stage_is_slow_for_its_weights_and_not_for_having_more_of_them() {
        assert_eq!(slow_stage(&[stage(5_000_000, 100), stage(10_000_000, 200)]), None);
        assert_eq!(slow_stage(&[stage(5_000_000, 100), stage(12_500_000, 200)]), Some((1, 1.25)));
        assert_eq!(slow_stage(&[stage(50, 10), stage(50, 10), stage(64, 10), stage(51, 10)]).map(|it| it.0), Some(2));
        assert_eq!(slow_stage(&[stage(50, 10)]), None, "there is none beside it");
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
