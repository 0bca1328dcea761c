//! The end of an answer: its reason, its history, and the times of its parts. Pure.
use std::time::Duration;

use common::{chat::FinishReason, latency::RequestTimes, units::Nanoseconds};
use protocol::message::Finished;

/// The end of an answer and its history. Times since the request was accepted.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) reason: FinishReason,
    /// Reported by the replica that finished it.
    pub(super) finished: Finished,
    /// Number of tokens of the whole answer.
    pub(super) tokens: usize,
    /// Those of them that are thoughts.
    pub(super) thought_tokens: usize,
    pub(super) prompt_tokens: usize,
    /// When it was first sent to a head.
    pub(super) dispatched: Duration,
    /// When its first token arrived from there.
    pub(super) first_token: Option<Duration>,
    /// When its last token arrived.
    pub(super) last_token: Duration,
    /// The head that finished it.
    pub(super) head: String,
    /// Number of times it was resumed on a replica.
    pub(super) resumed: u32,
}

impl Default for Ended {
    /// The end of an answer that was never sent to a head.
    fn default() -> Self {
        Self {
            reason: FinishReason::Stop,
            finished: Finished { reason: FinishReason::Stop, ..nothing_further() },
            tokens: 0,
            thought_tokens: 0,
            prompt_tokens: 0,
            dispatched: Duration::ZERO,
            first_token: None,
            last_token: Duration::ZERO,
            head: String::new(),
            resumed: 0,
        }
    }
}

/// Times of an answer up to the end of its latest part: that of the prompt is in the first one.
pub(super) fn joined(earlier: Option<RequestTimes>, latest: RequestTimes) -> RequestTimes {
    let Some(earlier) = earlier else { return latest };
    RequestTimes {
        last_token: Nanoseconds(earlier.last_token.0 + latest.last_token.0),
        sampled_tokens: earlier.sampled_tokens + latest.sampled_tokens,
        drafted_tokens: earlier.drafted_tokens + latest.drafted_tokens,
        accepted_tokens: earlier.accepted_tokens + latest.accepted_tokens,
        ..earlier
    }
}

/// The statistics of an answer whose end was lost.
pub(super) fn nothing_further() -> Finished {
    let times = RequestTimes::default();
    Finished { reason: FinishReason::Length, times, ranks: Vec::new(), sampling_rounds: 0 }
}
