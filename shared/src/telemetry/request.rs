//! What a head tells of its requests: those that run and wait, and the last that are over. Ages, never times of day: the clocks
//! of two machines are not compared.
use serde::{Deserialize, Serialize};

use crate::{
    latency::RequestTimes,
    protocol::{error::Fault, message::FinishReason},
};

/// Most requests under way that a report tells of, the oldest.
pub const OPEN_MAX: usize = 64;
/// Most requests that are over that a report tells of, the latest.
pub const OVER_MAX: usize = 16;

/// Longest name of whoever asked, in bytes.
pub const BY_BYTES_MAX: usize = 128;

/// Where a request is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestStage {
    /// All slots are taken by others.
    Queued,
    /// Its prompt is computed.
    Prefill,
    /// Tokens are sampled.
    Decoding,
    /// Done, with the times of its stages.
    Finished(FinishReason, Box<RequestTimes>),
    /// Whoever asked went away.
    Abandoned,
    /// Ended by a fault.
    Failed(Box<Fault>),
}

impl RequestStage {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Finished(..) | Self::Abandoned | Self::Failed(_))
    }

    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decoding => "decoding",
            Self::Finished(FinishReason::Cancelled, _) => "cancelled",
            Self::Finished(..) => "finished",
            Self::Abandoned => "abandoned",
            Self::Failed(_) => "failed",
        }
    }
}

/// One request on a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// Its number: counted from 1 since the daemon's start.
    pub number: u64,
    /// Who asked.
    pub by: String,
    /// Where it is.
    pub stage: RequestStage,
    /// Since it came, in milliseconds; of those that are over since they ended.
    pub age_ms: u64,
    /// Tokens of the prompt; 0 until they are counted.
    pub prompt_tokens: u32,
    /// Tokens sampled.
    pub tokens: u32,
    /// Most tokens that were asked for.
    pub max_tokens: u32,
}
