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

impl HopSync {
    /// Share of a stage's time, without its waiting for others, that its hand-overs were on the way: over all stages of a pipeline
    /// the sum of the hops over the step's time.
    pub fn network_fraction(&self) -> f64 {
        ratio(self.hop.0 as f64, (self.hop.0 + self.compute.0) as f64)
    }
}
