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

/// Acceptance rates by length of the match.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Acceptance {
    shares: [f32; MATCH_MAX],
    /// Tokens since the last proposal.
    idle: u32,
    /// Tokens between retries.
    every: u32,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { shares: ACCEPTED_FIRST, idle: 0, every: TRIED_EVERY }
    }
}

impl Acceptance {
    /// Initial state of a new request: the acceptance rates learned so far, retried at once.
    pub(super) fn begin(self) -> Self {
        Self { idle: 0, ..self }
    }

    /// How many of at most `most` speculative tokens to propose after a match, in a step that carries `rows` rows
    /// without them.
    pub(super) fn count(&mut self, found: Match, most: usize, rows: usize, latency: &StepLatency) -> usize {
        let share = self.shares[found.length - 1];
        let others = rows.saturating_sub(1) as f32;
        // Tokens per relative step time, without speculation and then with one more speculative token at a time.
        let (mut best, mut rate) = (0, rows as f32 * MARGIN);
        let (mut expected, mut all_accepted) = (1.0, 1.0);
        for count in 1..=most {
            all_accepted *= share;
            if all_accepted < LIKELY {
                break;
            }
            expected += all_accepted;
            let found = (others + expected) / latency.relative(rows + count, rows);
            if found > rate {
                (best, rate) = (count, found);
            }
        }
        self.idle += 1;
        if best == 0 && self.idle >= self.every {
            best = most.min(1);
        }
        if best > 0 {
            self.idle = 0;
        }
        best
    }

    /// Records that `accepted` of `drafted` speculative tokens after a match of `length` tokens were accepted.
    pub(super) fn observe(&mut self, length: usize, drafted: usize, accepted: usize) {
        self.every = if accepted > 0 { TRIED_EVERY } else { (2 * self.every).min(TRIED_AT_LEAST_EVERY) };
        self.learn(length, drafted, accepted, WEIGHT);
    }

    /// Does the same for the initial rates of later requests.
    pub(super) fn observe_for_all(&mut self, length: usize, drafted: usize, accepted: usize) {
        self.learn(length, drafted, accepted, WEIGHT_OF_ALL);
    }

    fn learn(&mut self, length: usize, drafted: usize, accepted: usize, weight: f32) {
        let share = &mut self.shares[length - 1];
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
        (0..20).for_each(|_| acceptance.observe(3, first, first));
        assert!(acceptance.count(found, 15, 1, &latency) >= 12, "all are accepted");
        assert_eq!(acceptance.count(found, 2, 1, &latency), 2);
        (0..40).for_each(|_| acceptance.observe(3, 4, 0));
        let tried = (0..320).filter(|_| acceptance.count(found, 15, 1, &latency) > 0).count();
        assert_eq!(tried, 1, "none is accepted");
        acceptance.observe(3, 1, 1);
        let tried = (0..320).filter(|_| acceptance.count(found, 15, 1, &latency) > 0).count();
        assert_eq!(tried, 10, "one is accepted");
    }

    #[test]
    fn speculation_is_off_if_a_row_costs_a_whole_step() {
        let latency = latency(10_000);
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| acceptance.observe(3, 4, 4));
        assert_eq!(acceptance.count(Match { next: 0, length: 3 }, 15, 1, &latency), 0);
    }
}
