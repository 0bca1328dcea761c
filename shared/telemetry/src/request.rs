//! A head's report on its requests: those running or queued, and the latest ones that ended. Ages instead of times of
//! day, because the clocks of two machines are not compared.
use common::{chat::FinishReason, fault::Fault, latency::RequestTimes};
use serde::{Deserialize, Serialize};

/// Most unfinished requests in a report, the oldest ones.
pub const OPEN_MAX: usize = 64;
/// Most finished requests in a report, the latest ones.
pub const OVER_MAX: usize = 16;

/// Longest name of a requester in bytes.
pub const BY_BYTES_MAX: usize = 128;

/// The stage of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestStage {
    /// All slots are taken.
    Queued,
    /// Its prompt is being computed.
    Prefill,
    /// Tokens are being sampled.
    Decoding,
    /// Finished, with the times of its stages.
    Finished(FinishReason, Box<RequestTimes>),
    /// The requester disconnected.
    Abandoned,
    /// Ended by a fault.
    Failed(Box<Fault>),
}

impl RequestStage {
    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Finished(..) | Self::Abandoned | Self::Failed(_))
    }

    /// The stage in a word.
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
    /// The requester.
    pub by: String,
    /// Its stage.
    pub stage: RequestStage,
    /// Milliseconds since it arrived; for a request that ended, since its end.
    pub age_ms: u64,
    /// Tokens of the prompt; 0 until they are counted.
    pub prompt_tokens: u32,
    /// Tokens sampled.
    pub tokens: u32,
    /// Most tokens requested.
    pub max_tokens: u32,
}
