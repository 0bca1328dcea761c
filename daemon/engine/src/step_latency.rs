//! Step-latency model, learned online from executed steps, and the prefill budget that it leaves next to running
//! answers. Pure: times are arguments.
use common::{limits::SLOTS_MAX, units::Nanoseconds};
use topology::layout::STEP_TOKENS_MAX;

/// Most rows of a step that need logits: the next token of an answer, or a speculative token.
pub const ROWS_MAX: usize = SLOTS_MAX as usize;
/// Prefill may stretch the mean time per output token by this factor.
const PROMISED: f32 = 2.0;
/// A step with tokens of long prompts may take this many times as long as the same step without them.
const STRETCH: f32 = 1.75;
/// Unused budget accumulates up to this many decode steps and pays for running short prompts ahead of decoding.
const SAVED_MAX: f32 = 64.0;
/// Longest pause of decoding, in decode steps; always at least [`PAUSE_UNSEEN`], which readers hardly notice.
const PAUSE_MAX: f32 = 5.0;
const PAUSE_UNSEEN: f32 = 250e6;
/// Prompt tokens in a step with answers before anything is measured, and the minimum at any time.
const BESIDE_FIRST: usize = 16;
const BESIDE_MIN: usize = 2;
/// Assumed cost of a row count that was never tried, as a share of the time of one row: low enough that it gets tried.
const ROW_FIRST: f32 = 0.02;
/// Fewest tokens of a step that shows how fast prompts are computed.
const PROMPT_MIN: usize = 16;
/// Steps after which a measurement counts as unknown to callers that can try it again.
const STALE: u32 = 1000;

/// Mean step times by number of rows, in nanoseconds; 0 means unknown.
#[derive(Debug)]
struct MeanTimes<const COUNT: usize> {
    means: [f32; COUNT],
    /// The step in which each row count was last measured.
    seen: [u32; COUNT],
}

impl<const COUNT: usize> MeanTimes<COUNT> {
    fn new() -> Self {
        Self { means: [0.0; COUNT], seen: [0; COUNT] }
    }

    /// Records a measurement. Other work on the machine only makes a step longer, so shorter times weigh more than
    /// longer ones.
    fn observe(&mut self, rows: usize, step: u32, time: f32) {
        let Some(mean) = self.means.get_mut(rows) else { return };
        match *mean {
            0.0 => *mean = time,
            known if time < known => *mean += (time - known) / 2.0,
            known => *mean += (time.min(4.0 * known) - known) / 8.0,
        }
        self.seen[rows] = step;
    }

    fn known(&self, rows: usize, since: u32) -> Option<f32> {
        self.means.get(rows).copied().filter(|mean| *mean > 0.0 && self.seen[rows] >= since)
    }

    /// Estimates the time of `rows` rows from measurements not older than step `since`: measured, interpolated, or
    /// slightly more than the nearest smaller row count.
    fn estimate(&self, rows: usize, since: u32) -> Option<f32> {
        let below = (1..=rows.min(COUNT - 1)).rev().find_map(|rows| Some((rows, self.known(rows, since)?)));
        let above = (rows..COUNT).find_map(|rows| Some((rows, self.known(rows, since)?)));
        let (first, low) = below?;
        let Some((last, high)) = above else { return Some(low * (1.0 + ROW_FIRST * (rows - first) as f32)) };
        let share = (rows - first) as f32 / (last - first).max(1) as f32;
        Some(low + (high - low).max(0.0) * share)
    }

    /// The longest measured time among this and all smaller row counts: a lower bound for `rows` rows.
    fn at_least(&self, rows: usize) -> Option<f32> {
        let known = (1..=rows.min(COUNT - 1)).filter_map(|rows| self.known(rows, 0));
        known.max_by(f32::total_cmp)
    }
}

/// Requests that wait for a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pending {
    /// Running answers, one token each.
    pub answers: usize,
    /// Prompts in slots.
    pub prompts: usize,
}

/// Step-latency model, learned online from executed steps.
#[derive(Debug)]
pub struct StepLatency {
    /// Steps without prompt tokens, by rows.
    answers: MeanTimes<{ ROWS_MAX + 1 }>,
    /// All steps, by rows.
    all: MeanTimes<{ STEP_TOKENS_MAX + 1 }>,
    step: u32,
    /// Accumulated unused prefill budget in nanoseconds; negative if overdrawn.
    slack: f32,
    /// Time since the last step that advanced answers, while some were waiting, in nanoseconds.
    paused: f32,
}

impl Default for StepLatency {
    fn default() -> Self {
        Self { answers: MeanTimes::new(), all: MeanTimes::new(), step: 0, slack: 0.0, paused: 0.0 }
    }
}

impl StepLatency {
    /// Records a step of `rows` rows that took `time`.
    pub fn observe(&mut self, rows: usize, has_prompt: bool, time: Nanoseconds) {
        self.step = self.step.saturating_add(1);
        let time = (time.0 as f32).max(1.0);
        self.all.observe(rows, self.step, time);
        if !has_prompt {
            self.answers.observe(rows, self.step, time);
        }
    }

    /// How long it takes to compute so many tokens of a prompt in steps of at most `most` tokens: like the largest such
    /// step that was measured. `None` if none was.
    pub fn prompt_time(&self, tokens: usize, most: usize) -> Option<Nanoseconds> {
        let largest = most.min(STEP_TOKENS_MAX);
        // Steps of a few tokens read all weights for little.
        let (rows, time) = (PROMPT_MIN..=largest).rev().find_map(|rows| Some((rows, self.all.known(rows, 0)?)))?;
        Some(Nanoseconds((tokens as f64 * f64::from(time) / rows as f64) as u64))
    }

    /// Charges a step of `time`, prompt tokens included, to the budget; `entered` of the waiting answers took part in
    /// it, and `has_prompt` if tokens of prompts did. A step without prompts earns as much as one of the usual time,
    /// however long it took: other programs or the network delayed it. Charged for such delays, short prompts would
    /// wait until all answers end.
    pub fn charge(&mut self, pending: Pending, entered: usize, has_prompt: bool, time: Nanoseconds) {
        if pending.answers == 0 {
            // No answer waits for a token.
            (self.slack, self.paused) = (f32::MAX, 0.0);
            return;
        }
        let Some(base) = self.base(pending) else { return };
        let (most, time) = (SAVED_MAX * base, time.0 as f32);
        if entered == 0 {
            self.slack = (self.slack.min(most) - time).max(-base);
            self.paused += time;
        } else {
            let charged = if has_prompt { time } else { time.min(base) };
            self.slack = (self.slack.min(most) + PROMISED * base - charged).clamp(-base, most);
            self.paused = 0.0;
        }
    }

    /// The reference time of a decode step: its time without prompts or, if several prompts wait, its time if all of
    /// these but one were already answering. A few answers thus do not delay many prompts, whose answers would be
    /// batched together.
    fn base(&self, pending: Pending) -> Option<f32> {
        let answers = pending.answers.max(1);
        let known = self.answers.at_least(answers)?;
        let all = answers + pending.prompts.saturating_sub(1);
        if all == answers {
            return Some(known);
        }
        // A prompt token costs no more than a decode row.
        let known = self.answers.at_least(all).unwrap_or(known);
        Some(self.all.estimate(all, 0).map_or(known, |time| time.max(known)))
    }

    /// How many of `wanted` tokens of short prompts may run ahead of waiting answers: as many as fit into one pause, or
    /// none while the accumulated budget is too small or decoding is paused already. `None` if no times are known.
    pub fn prefill_budget_ahead(&self, pending: Pending, wanted: usize) -> Option<usize> {
        let base = self.base(pending)?;
        // More than the largest saved budget would never be granted.
        let longest = (PAUSE_MAX * base).max(PAUSE_UNSEEN).min(SAVED_MAX * base);
        let time = |tokens: usize| self.all.estimate(tokens, 0).unwrap_or(0.0);
        let count = (1..=wanted).take_while(|tokens| time(*tokens) <= longest).last().unwrap_or(0);
        let most = (longest - self.paused).min(self.slack).min(SAVED_MAX * base);
        Some(if time(count) <= most { count } else { 0 })
    }

    /// Whether decoding `answers` rows in the same step as `prompt` prompt tokens adds less than half of their own step
    /// time.
    pub fn is_cheap_mixed(&self, answers: usize, prompt: usize) -> bool {
        let with = self.all.estimate(prompt + answers, 0).zip(self.all.estimate(prompt, 0));
        let added = with.map(|(with, without)| with - without);
        added.zip(self.answers.at_least(answers)).is_none_or(|(added, own)| added < own / 2.0)
    }

    /// Prompt tokens, at most `most`, that a step may carry together with the answers within the stretch limit.
    pub fn prefill_budget_mixed(&self, pending: Pending, most: usize) -> usize {
        let Some(base) = self.base(pending) else { return BESIDE_FIRST.min(most) };
        let longest = STRETCH * base + self.slack.min(0.0);
        let answers = pending.answers.max(1);
        let fitting =
            (1..=most).take_while(|prompt| self.all.estimate(answers + prompt, 0).is_none_or(|time| time <= longest));
        fitting.last().unwrap_or(0).max(BESIDE_MIN).min(most)
    }

    /// Estimated time of a step of `rows` decode rows, in nanoseconds.
    pub fn answer_time(&self, rows: usize) -> Option<f32> {
        self.answers.estimate(rows, self.step.saturating_sub(STALE))
    }

    /// Time of a step of `rows` decode rows relative to one of `base` rows; 1 if unknown.
    pub fn relative(&self, rows: usize, base: usize) -> f32 {
        let since = self.step.saturating_sub(STALE);
        match (self.answers.estimate(rows, since), self.answers.estimate(base, since)) {
            (Some(rows), Some(base)) => rows / base,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(latency: &mut StepLatency, rows: usize, has_prompt: bool, microseconds: u64) {
        (0..20).for_each(|_| latency.observe(rows, has_prompt, Nanoseconds(1000 * microseconds)));
    }

    /// Waiting answers and prompts.
    fn pending(answers: usize, prompts: usize) -> Pending {
        Pending { answers, prompts }
    }

    #[test]
    fn prefill_share_grows_until_stretch_limit() {
        let time = |rows: usize| 10_000 + 700 * rows as u64;
        let mut latency = StepLatency::default();
        let one = pending(1, 1);
        assert_eq!(
            (latency.prefill_budget_mixed(one, 100), latency.prefill_budget_mixed(one, 3)),
            (BESIDE_FIRST, 3),
            "nothing is measured yet"
        );
        assert_eq!(latency.prefill_budget_ahead(one, 64), None);
        observe(&mut latency, 128, true, time(128));
        observe(&mut latency, 1, false, time(1));
        for _ in 0..10 {
            let prompt = latency.prefill_budget_mixed(one, 127);
            observe(&mut latency, 1 + prompt, true, time(1 + prompt));
        }
        let prompt = latency.prefill_budget_mixed(one, 127);
        let share = time(1 + prompt) as f32 / time(1) as f32;
        assert!((1.6..=STRETCH).contains(&share), "{prompt} tokens make it {share}");
        assert_eq!(
            latency.prefill_budget_mixed(pending(4, 1), 127),
            BESIDE_MIN.max(prompt - 3),
            "four rows are estimated from one"
        );
        assert!(latency.prefill_budget_mixed(pending(1, 9), 127) > 2 * prompt, "nine prompts outweigh one answer");
    }

    #[test]
    fn saved_budget_runs_short_prompts_first_and_is_repaid() {
        let time = |rows: usize| 10_000 + 1000 * rows as u64;
        let mut latency = StepLatency::default();
        let one = pending(1, 1);
        (1..=128).for_each(|rows| observe(&mut latency, rows, rows > 1, time(rows)));
        assert_eq!(latency.prefill_budget_ahead(one, 64), Some(0), "no budget is saved");
        (0..100).for_each(|_| latency.charge(one, 1, false, Nanoseconds(1000 * time(1))));
        assert_eq!(
            (latency.prefill_budget_ahead(one, 64), latency.prefill_budget_mixed(one, 100)),
            (Some(64), 8),
            "a mixed step's share is the same"
        );
        let (mut own, mut all, mut prompts, mut paused) = (0, 0, 0, 0);
        while prompts < 100 {
            let tokens = latency.prefill_budget_ahead(one, 64).expect("all times are known");
            prompts += usize::from(tokens > 0);
            let time = if tokens > 0 { time(tokens) } else { time(1) };
            paused = if tokens > 0 { paused + time } else { 0 };
            assert!(paused as f32 <= PAUSE_UNSEEN / 1000.0, "a pause of {paused}");
            latency.charge(one, usize::from(tokens == 0), tokens > 0, Nanoseconds(1000 * time));
            own += if tokens > 0 { 0 } else { time };
            all += time;
        }
        let most = PROMISED * own as f32 + (SAVED_MAX + PROMISED) * time(1) as f32;
        assert!(all as f32 <= most && all as f32 > 0.9 * most, "all took {all} of at most {most}");
    }

    #[test]
    fn short_prompts_of_small_models_do_not_starve() {
        let mut latency = StepLatency::default();
        let one = pending(1, 1);
        observe(&mut latency, 1, false, 1000);
        observe(&mut latency, 128, true, 100_000);
        (0..200).for_each(|_| latency.charge(one, 1, false, Nanoseconds(1_000_000)));
        assert!(latency.prefill_budget_ahead(one, 128).is_some_and(|count| count > 0));
    }

    #[test]
    fn delayed_answers_do_not_starve_short_prompts() {
        let mut latency = StepLatency::default();
        let one = pending(1, 1);
        observe(&mut latency, 16, true, 60_000);
        observe(&mut latency, 1, false, 10_000);
        // Other programs delay every second step.
        let answer = |latency: &mut StepLatency, step: u64| {
            let time = Nanoseconds(if step.is_multiple_of(2) { 10_000_000 } else { 100_000_000 });
            latency.charge(one, 1, false, time);
            latency.observe(1, false, time);
        };
        (0..200).for_each(|step| answer(&mut latency, step));
        for prompt in 0..20 {
            let waited = (0..1000).find(|step| {
                let is_due = latency.prefill_budget_ahead(one, 16) == Some(16);
                if !is_due {
                    answer(&mut latency, *step);
                }
                is_due
            });
            assert!(waited.is_some_and(|steps| steps <= 10), "prompt {prompt} waited {waited:?} steps");
            latency.charge(one, 0, true, Nanoseconds(60_000_000));
            latency.observe(16, true, Nanoseconds(60_000_000));
        }
    }

    #[test]
    fn answers_join_prompt_step_only_where_cheap() {
        let (mut read, mut compute) = (StepLatency::default(), StepLatency::default());
        for rows in [1, 4, 64, 65, 68] {
            // One machine limited by memory bandwidth, one limited by compute.
            observe(&mut read, rows, rows > 4, 10_000 + 100 * rows as u64);
            observe(&mut compute, rows, rows > 4, 1000 * rows as u64);
        }
        assert!(read.is_cheap_mixed(4, 64) && !compute.is_cheap_mixed(4, 64));
    }

    #[test]
    fn row_cost_is_interpolated_and_outliers_weigh_little() {
        let mut latency = StepLatency::default();
        assert_eq!(latency.relative(4, 1), 1.0);
        observe(&mut latency, 1, false, 10_000);
        assert!((1.0..1.1).contains(&latency.relative(4, 1)), "an untried row count is assumed cheap");
        observe(&mut latency, 5, false, 18_000);
        assert!((latency.relative(3, 1) - 1.4).abs() < 0.01);
        latency.observe(1, false, Nanoseconds(1_000_000_000));
        assert!(latency.relative(5, 1) > 1.2, "{}", latency.relative(5, 1));
        (0..STALE).for_each(|_| latency.observe(1, false, Nanoseconds(10_000_000)));
        assert!(latency.relative(5, 1) < 1.1, "a stale measurement is tried again");
    }
}
