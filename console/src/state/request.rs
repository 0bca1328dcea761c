//! The current or last generation: its phase, its text, and its times on the console's clock.
use std::{collections::VecDeque, time::Duration};

use common::{fault::Fault, latency::ratio};
use protocol::message::{Finished, TokenEvent};
use telemetry::PhaseTotals;

use crate::state::clean::clean;

/// Maximum text kept, in bytes; older text is dropped.
pub const TEXT_BYTES_MAX: usize = 128 << 10;
/// Most times between tokens that are kept.
const GAPS_MAX: usize = 1024;

/// The phase of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// No generation was requested yet.
    Nothing,
    /// Held by this console until a topology runs.
    Held,
    /// Sent to the head, which has not started it yet.
    Queued,
    /// Started by the head; no token yet.
    Prefill,
    /// Tokens arrive.
    Decoding,
    /// Cancellation requested.
    Cancelling,
    /// Finished.
    Finished(Box<Finished>),
    /// Withdrawn before it was sent.
    Withdrawn,
    /// Ended by a fault.
    Failed(Fault),
}

/// The parameters that a request was sent with, besides its prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentWith {
    /// Its seed.
    pub seed: u64,
    /// Its sampling parameters, in one line.
    pub terms: String,
    /// The topology that it runs on.
    pub on: String,
}

/// A generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The phase.
    pub phase: Phase,
    /// The prompt as sent.
    pub prompt: String,
    /// The prompt, sanitised for display.
    pub prompt_shown: String,
    /// The generated text, sanitised for display.
    pub text: String,
    /// Whether the start of the text was dropped.
    pub is_cut: bool,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of tokens received.
    pub tokens: u32,
    /// The parameters that it was sent with.
    pub sent_with: Option<SentWith>,
    sent: Duration,
    taken: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Duration,
    /// Times between the latest tokens, oldest first.
    gaps: VecDeque<Duration>,
}

impl Request {
    /// Times between the latest tokens, oldest first.
    pub fn gaps(&self) -> &VecDeque<Duration> {
        &self.gaps
    }

    /// The state before the first generation.
    pub fn nothing() -> Self {
        Self::new(Phase::Nothing, String::new(), Duration::ZERO)
    }

    /// A request in its first phase.
    pub fn new(phase: Phase, prompt: String, now: Duration) -> Self {
        Self {
            phase,
            prompt_shown: clean(&prompt),
            prompt,
            text: String::new(),
            is_cut: false,
            prompt_tokens: 0,
            tokens: 0,
            sent_with: None,
            sent: now,
            taken: None,
            first_token: None,
            last_token: now,
            gaps: VecDeque::new(),
        }
    }

    /// Whether it is unfinished, including held requests.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Held || self.is_sent()
    }

    /// Whether it was sent to the head and is unfinished.
    pub fn is_sent(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Prefill | Phase::Decoding | Phase::Cancelling)
    }

    /// Time since it was requested, or sent.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.sent)
    }

    /// Marks it as sent to the head.
    pub fn send(&mut self, now: Duration) {
        self.phase = Phase::Queued;
        self.sent = now;
    }

    /// By this console's clock: when it was sent, when the head started it, and when its first and last token arrived.
    pub fn moments(&self) -> (Duration, Option<Duration>, Option<Duration>, Duration) {
        (self.sent, self.taken, self.first_token, self.last_token)
    }

    /// The head has started it.
    pub fn started(&mut self, now: Duration, prompt_tokens: usize) {
        self.taken = Some(now);
        self.prompt_tokens = prompt_tokens;
        if self.phase == Phase::Queued {
            self.phase = Phase::Prefill;
        }
    }

    /// A token has arrived. Tokens after the end of a request are ignored.
    pub fn token(&mut self, now: Duration, token: &TokenEvent) {
        if !self.is_sent() {
            return;
        }
        if self.phase != Phase::Cancelling {
            self.phase = Phase::Decoding;
        }
        if token.id.is_some() {
            self.tokens += 1;
            if self.first_token.is_some() {
                if self.gaps.len() == GAPS_MAX {
                    self.gaps.pop_front();
                }
                self.gaps.push_back(now.saturating_sub(self.last_token));
            }
            self.last_token = now;
            self.first_token.get_or_insert(now);
        }
        self.text.push_str(&clean(&token.text));
        if self.text.len() > TEXT_BYTES_MAX {
            // Drop a quarter at once, so that this is rare.
            let from = self.text.ceil_char_boundary(self.text.len() - TEXT_BYTES_MAX / 4 * 3);
            self.text.drain(..from);
            self.is_cut = true;
        }
    }

    /// Time to first token in milliseconds: the head's once it is finished, before that the console's.
    pub fn ttft_ms(&self) -> Option<f64> {
        match &self.phase {
            Phase::Finished(finished) if finished.times.sampled_tokens > 0 => Some(finished.times.ttft_ms()),
            _ => self.first_token.map(|first| milliseconds(first.saturating_sub(self.sent))),
        }
    }

    /// Time per output token in milliseconds; needs at least two tokens.
    pub fn tpot_ms(&self) -> Option<f64> {
        let tpot = match &self.phase {
            Phase::Finished(finished) => finished.times.tpot_ms(),
            _ => {
                let span = self.last_token.saturating_sub(self.first_token?);
                ratio(milliseconds(span), f64::from(self.tokens.saturating_sub(1)))
            }
        };
        (tpot > 0.0).then_some(tpot)
    }

    /// (peer wait + transfer) / total time over all ranks of a finished request.
    pub fn network_fraction(&self) -> Option<f64> {
        let Phase::Finished(finished) = &self.phase else { return None };
        let mut sum = PhaseTotals::default();
        finished.ranks.iter().for_each(|rank| sum.add(&rank.both()));
        (sum.total().0 > 0).then(|| sum.network_fraction())
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
