//! How many tokens to propose: learned from the acceptance after matches of the same length, and weighed against the
//! time that further rows take.
use super::lookup::{MATCH_MAX, Match};
use crate::step_latency::StepLatency;

/// Initial acceptance rates of speculative tokens after matches of 1, 2 and 3 tokens.
const ACCEPTED_FIRST: [f32; MATCH_MAX] = [0.2, 0.4, 0.7];
/// Weight of one observation in a request's acceptance rate, and in the initial rate of later requests.
const WEIGHT: f32 = 1.0 / 8.0;
const WEIGHT_OF_ALL: f32 = 1.0 / 64.0;
/// Expected gain over cost that is required, because step times are never known exactly.
const MARGIN: f32 = 1.03;
/// Where speculation does not pay, it is retried every `TRIED_EVERY` tokens; each rejection doubles the interval, up to
/// `TRIED_AT_LEAST_EVERY`.
const TRIED_EVERY: u32 = 32;
const TRIED_AT_LEAST_EVERY: u32 = 256;
/// Speculative tokens less likely than this are not evaluated, which bounds the evaluation time per step.
const LIKELY: f32 = 0.02;

/// Initial acceptance rate of a draft model's tokens.
const ACCEPTED_DRAFT: f32 = 0.6;
/// Sources of proposals: matches of each length, and the draft model.
const SOURCES: usize = MATCH_MAX + 1;

/// Where the speculative tokens of a step come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProposalSource {
    /// From the text behind a match of this length, from 1 to [`MATCH_MAX`].
    Lookup(usize),
    /// From the draft model.
    DraftModel,
}

/// How many speculative tokens are best, and what they are expected to yield.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gain {
    /// Number of speculative tokens.
    pub(super) count: usize,
    /// Expected number of accepted ones.
    pub(super) accepted: f32,
    /// Tokens of the whole step per time of the step without them.
    pub(super) rate: f32,
}

/// When a source that does not pay is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Retry {
    /// Tokens since the last proposal.
    idle: u32,
    /// Tokens between retries.
    every: u32,
}

/// Acceptance rates by source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Acceptance {
    shares: [f32; SOURCES],
    /// Of prompt lookup, and of the draft model.
    retries: [Retry; 2],
}

impl ProposalSource {
    fn index(self) -> usize {
        match self {
            Self::Lookup(length) => length - 1,
            Self::DraftModel => MATCH_MAX,
        }
    }

    fn retry(self) -> usize {
        usize::from(self == Self::DraftModel)
    }
}

impl Default for Acceptance {
    fn default() -> Self {
        let mut shares = [ACCEPTED_DRAFT; SOURCES];
        shares[..MATCH_MAX].copy_from_slice(&ACCEPTED_FIRST);
        Self { shares, retries: [Retry { idle: 0, every: TRIED_EVERY }; 2] }
    }
}

impl Acceptance {
    /// Initial state of a new request: the acceptance rates learned so far, retried at once.
    pub(super) fn begin(self) -> Self {
        Self { retries: self.retries.map(|retry| Retry { idle: 0, ..retry }), ..self }
    }

    /// The best number of at most `most` speculative tokens in a step that carries `rows` rows without them. Each costs
    /// `cost`, relative to the time of that step, in addition to its row. 0 if none are expected to pay.
    pub(super) fn best(
        &self,
        source: ProposalSource,
        most: usize,
        rows: usize,
        latency: &StepLatency,
        cost: f32,
    ) -> Gain {
        let share = self.shares[source.index()];
        let others = rows.saturating_sub(1) as f32;
        // Tokens per relative step time, without speculation and then with one more speculative token at a time.
        let mut best = Gain { count: 0, accepted: 0.0, rate: rows as f32 * MARGIN };
        let (mut accepted, mut all_accepted) = (0.0, 1.0);
        for count in 1..=most {
            all_accepted *= share;
            if all_accepted < LIKELY {
                break;
            }
            accepted += all_accepted;
            let time = latency.relative(rows + count, rows) + cost * count as f32;
            let rate = (others + 1.0 + accepted) / time;
            if rate > best.rate {
                best = Gain { count, accepted, rate };
            }
        }
        best
    }

    /// How many of at most `most` speculative tokens to propose after a match, in a step that carries `rows` rows
    /// without them.
    pub(super) fn count(&mut self, found: Match, most: usize, rows: usize, latency: &StepLatency) -> usize {
        let source = ProposalSource::Lookup(found.length);
        let best = self.best(source, most, rows, latency, 0.0);
        self.retried(source, best.count, most)
    }

    /// The number of speculative tokens, of which `best` are best: where none pay, one is tried now and then.
    pub(super) fn retried(&mut self, source: ProposalSource, best: usize, most: usize) -> usize {
        let retry = &mut self.retries[source.retry()];
        retry.idle += 1;
        let count = if best == 0 && retry.idle >= retry.every { most.min(1) } else { best };
        if count > 0 {
            retry.idle = 0;
        }
        count
    }

    /// Records that `accepted` of `drafted` speculative tokens of a source were accepted.
    pub(super) fn observe(&mut self, source: ProposalSource, drafted: usize, accepted: usize) {
        let every = &mut self.retries[source.retry()].every;
        *every = if accepted > 0 { TRIED_EVERY } else { (2 * *every).min(TRIED_AT_LEAST_EVERY) };
        self.learn(source, drafted, accepted, WEIGHT);
    }

    /// Does the same for the initial rates of later requests.
    pub(super) fn observe_for_all(&mut self, source: ProposalSource, drafted: usize, accepted: usize) {
        self.learn(source, drafted, accepted, WEIGHT_OF_ALL);
    }

    fn learn(&mut self, source: ProposalSource, drafted: usize, accepted: usize, weight: f32) {
        let share = &mut self.shares[source.index()];
        (0..accepted).for_each(|_| *share += (1.0 - *share) * weight);
        if accepted < drafted {
            *share -= *share * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use common::units::Nanoseconds;

    use super::*;

    /// A latency model where one row takes 10 ms, each further one `more` microseconds.
    fn latency(more: u64) -> StepLatency {
        let mut latency = StepLatency::default();
        (1..=16)
            .for_each(|rows| latency.observe(rows, false, Nanoseconds(10_000_000 + 1000 * more * (rows as u64 - 1))));
        latency
    }

    #[test]
    fn proposals_follow_acceptance_with_occasional_retries() {
        let latency = latency(1000);
        let found = Match { next: 0, length: 3 };
        let mut acceptance = Acceptance::default();
        let first = acceptance.count(found, 15, 1, &latency);
        assert!((1..10).contains(&first), "{first}");
        (0..20).for_each(|_| acceptance.observe(ProposalSource::Lookup(3), first, first));
        assert!(acceptance.count(found, 15, 1, &latency) >= 12, "all are accepted");
        assert_eq!(acceptance.count(found, 2, 1, &latency), 2);
        (0..40).for_each(|_| acceptance.observe(ProposalSource::Lookup(3), 4, 0));
        let tried = (0..320).filter(|_| acceptance.count(found, 15, 1, &latency) > 0).count();
        assert_eq!(tried, 1, "none is accepted");
        acceptance.observe(ProposalSource::Lookup(3), 1, 1);
        let tried = (0..320).filter(|_| acceptance.count(found, 15, 1, &latency) > 0).count();
        assert_eq!(tried, 10, "one is accepted");
    }

    #[test]
    fn speculation_is_off_if_a_row_costs_a_whole_step() {
        let latency = latency(10_000);
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| acceptance.observe(ProposalSource::Lookup(3), 4, 4));
        assert_eq!(acceptance.count(Match { next: 0, length: 3 }, 15, 1, &latency), 0);
    }
}
