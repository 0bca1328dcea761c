//! The generation that runs or ran last: where it is, its text, its times on the console's clock.
use std::time::Duration;

use shared::{
    latency::ratio,
    protocol::{
        error::Fault,
        message::{Finished, TokenEvent},
    },
    telemetry::PhaseTotals,
};

use crate::state::clean::clean;

/// Most text that is kept, in bytes; what is older is left out.
pub const TEXT_BYTES_MAX: usize = 128 << 10;

/// Where a generation is.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// Nothing was asked for yet.
    Nothing,
    /// Kept here until a topology runs.
    Held,
    /// Sent to the head, which has not taken it yet.
    Queued,
    /// The head took it; no token yet.
    Prefill,
    /// Tokens arrive.
    Decoding,
    /// Told to stop.
    Cancelling,
    /// Done.
    Finished(Box<Finished>),
    /// Given up before it was sent.
    Withdrawn,
    /// Ended by a fault.
    Failed(Fault),
}

/// What a request was sent with beside its prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentWith {
    /// Its seed.
    pub seed: u64,
    /// What it asks for, in one line.
    pub terms: String,
    /// What it runs on.
    pub on: String,
}

/// A generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Where it is.
    pub phase: Phase,
    /// The prompt as it was sent.
    pub prompt: String,
    /// The prompt, safe to draw.
    pub prompt_shown: String,
    /// What was generated, safe to draw.
    pub text: String,
    /// Whether the start of the text was left out.
    pub is_cut: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that arrived.
    pub tokens: u32,
    /// What else it was sent with.
    pub sent_with: Option<SentWith>,
    sent: Duration,
    taken: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Duration,
}

impl Request {
    /// Nothing was asked for.
    pub fn nothing() -> Self {
        Self::new(Phase::Nothing, String::new(), Duration::ZERO)
    }

    /// A prompt in its first phase.
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
        }
    }

    /// Whether it is under way, held ones included.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Held || self.is_sent()
    }

    /// Whether the head has it, or will have it.
    pub fn is_sent(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Prefill | Phase::Decoding | Phase::Cancelling)
    }

    /// Since it was asked for, or sent.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.sent)
    }

    /// It goes to the head now.
    pub fn send(&mut self, now: Duration) {
        self.phase = Phase::Queued;
        self.sent = now;
    }

    /// By this console's clock: when it was sent, when the head took it, when its first and its last token came.
    pub fn moments(&self) -> (Duration, Option<Duration>, Option<Duration>, Duration) {
        (self.sent, self.taken, self.first_token, self.last_token)
    }

    /// The head took it.
    pub fn started(&mut self, now: Duration, prompt_tokens: usize) {
        self.taken = Some(now);
        self.prompt_tokens = prompt_tokens;
        if self.phase == Phase::Queued {
            self.phase = Phase::Prefill;
        }
    }

    /// A token arrived. What arrives after the end of a request is of no interest.
    pub fn token(&mut self, now: Duration, token: &TokenEvent) {
        if !self.is_sent() {
            return;
        }
        if self.phase != Phase::Cancelling {
            self.phase = Phase::Decoding;
        }
        if token.id.is_some() {
            self.tokens += 1;
            self.last_token = now;
            self.first_token.get_or_insert(now);
        }
        self.text.push_str(&clean(&token.text));
        if self.text.len() > TEXT_BYTES_MAX {
            // A quarter at once, so that this is rare.
            let from = self.text.ceil_char_boundary(self.text.len() - TEXT_BYTES_MAX / 4 * 3);
            self.text.drain(..from);
            self.is_cut = true;
        }
    }

    /// Time to first token in milliseconds: the head's if it is done, else the console's.
    pub fn ttft_ms(&self) -> Option<f64> {
        match &self.phase {
            Phase::Finished(finished) if finished.times.sampled_tokens > 0 => Some(finished.times.ttft_ms()),
            _ => self.first_token.map(|first| milliseconds(first.saturating_sub(self.sent))),
        }
    }

    /// Time per output token in milliseconds, from two tokens on.
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

    /// Waiting and wire by all of the time, over all ranks of a finished request.
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
