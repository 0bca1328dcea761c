//! What steps take by the tokens they carry, learned from those that ran, and what that leaves for prompts beside running answers.
//! Times come as arguments: pure.
use shared::{
    topology::{layout::STEP_TOKENS_MAX, spec::SLOTS_MAX},
    units::Nanoseconds,
};

/// Most rows of a step whose logits are wanted: an answer's token, or a draft of one.
pub const ROWS_MAX: usize = SLOTS_MAX as usize;
/// Steps with prompt tokens may take this much of the same steps without them, on average; twice is what is promised.
const STRETCH: f32 = 1.75;
/// What answers did not need of that is kept, up to this many of their steps: a short prompt then goes through at once.
const SAVED_MAX: f32 = 24.0;
/// Most that a single step may take of the same without prompt tokens: what a reader sees as a pause.
const PAUSE_MAX: f32 = 5.0;
/// Prompt tokens beside answers before anything is known, and the fewest at any time.
const BESIDE_FIRST: usize = 16;
const BESIDE_MIN: usize = 2;
/// A row that was never tried adds this share of one row's time, as far as is known: so that it is tried.
const ROW_FIRST: f32 = 0.02;
/// Steps after which a time counts as unknown to those who can try it again.
const STALE: u32 = 1000;

/// Mean times by rows, in nanoseconds; 0 is unknown.
#[derive(Debug)]
struct Times<const COUNT: usize> {
    means: [f32; COUNT],
    /// The step that each was seen in last.
    seen: [u32; COUNT],
}

impl<const COUNT: usize> Times<COUNT> {
    fn new() -> Self {
        Self { means: [0.0; COUNT], seen: [0; COUNT] }
    }

    /// A machine's other work only makes a step longer: a shorter time says more than a longer one.
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

    /// What so many rows take: known since a step, or between their neighbours, or a little more than fewer rows.
    fn estimate(&self, rows: usize, since: u32) -> Option<f32> {
        let below = (1..=rows.min(COUNT - 1)).rev().find_map(|rows| Some((rows, self.known(rows, since)?)));
        let above = (rows..COUNT).find_map(|rows| Some((rows, self.known(rows, since)?)));
        let (first, low) = below?;
        let Some((last, high)) = above else { return Some(low * (1.0 + ROW_FIRST * (rows - first) as f32)) };
        let share = (rows - first) as f32 / (last - first).max(1) as f32;
        Some(low + (high - low).max(0.0) * share)
    }

    /// The most that fewer rows, or as many, are known to take: never more than these take.
    fn at_least(&self, rows: usize) -> Option<f32> {
        let known = (1..=rows.min(COUNT - 1)).filter_map(|rows| self.known(rows, 0));
        known.max_by(f32::total_cmp)
    }
}

/// What was learned.
#[derive(Debug)]
pub struct Costs {
    /// Steps without prompt tokens.
    answers: Times<{ ROWS_MAX + 1 }>,
    /// All steps.
    all: Times<{ STEP_TOKENS_MAX + 1 }>,
    step: u32,
    /// What prompts may take beyond a step's own share, in nanoseconds; below 0 it was overdrawn.
    saved: f32,
}

impl Default for Costs {
    fn default() -> Self {
        Self { answers: Times::new(), all: Times::new(), step: 0, saved: 0.0 }
    }
}

impl Costs {
    /// A step of so many rows took so long.
    pub fn observe(&mut self, rows: usize, has_prompt: bool, time: Nanoseconds) {
        self.step = self.step.saturating_add(1);
        let time = (time.0 as f32).max(1.0);
        self.all.observe(rows, self.step, time);
        if !has_prompt {
            self.answers.observe(rows, self.step, time);
        }
    }

    /// A step with so many rows of answers took so long, prompt tokens included.
    pub fn settle(&mut self, answers: usize, time: Nanoseconds) {
        if answers == 0 {
            // Nobody waits for a token.
            self.saved = f32::MAX;
        } else if let Some(base) = self.answers.at_least(answers) {
            let most = SAVED_MAX * base;
            self.saved = (self.saved.min(most) + STRETCH * base - time.0 as f32).clamp(-base, most);
        }
    }

    /// Prompt tokens, at most `most`, that a step may carry beside so many rows of answers, so that these stay within the promise:
    /// of this step alone, or with what was saved.
    pub fn beside(&self, answers: usize, most: usize, spends: bool) -> usize {
        let answers = answers.max(1);
        let Some(base) = self.answers.at_least(answers) else { return BESIDE_FIRST.min(most) };
        let saved = if spends { self.saved.clamp(0.0, SAVED_MAX * base) } else { self.saved.min(0.0) };
        let fits = |prompt: &usize| {
            let time = self.all.estimate(answers + prompt, 0);
            time.is_none_or(|time| time <= (STRETCH * base + saved).min(PAUSE_MAX * base))
        };
        (1..=most).take_while(fits).last().unwrap_or(0).max(BESIDE_MIN).min(most)
    }

    /// What a step of so many rows of answers takes, relative to one of `base` rows; 1 where nothing is known.
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

    fn observe(costs: &mut Costs, rows: usize, has_prompt: bool, microseconds: u64) {
        (0..20).for_each(|_| costs.observe(rows, has_prompt, Nanoseconds(1000 * microseconds)));
    }

    #[test]
    fn prompts_beside_answers_get_what_is_known_to_fit_and_more_is_tried_until_it_does_not() {
        let time = |rows: usize| 10_000 + 700 * rows as u64;
        let mut costs = Costs::default();
        assert_eq!((costs.beside(1, 100, false), costs.beside(1, 3, false)), (BESIDE_FIRST, 3), "nothing is known");
        observe(&mut costs, 128, true, time(128));
        observe(&mut costs, 1, false, time(1));
        for _ in 0..10 {
            let prompt = costs.beside(1, 127, false);
            observe(&mut costs, 1 + prompt, true, time(1 + prompt));
        }
        let prompt = costs.beside(1, 127, false);
        let share = time(1 + prompt) as f32 / time(1) as f32;
        assert!((1.6..=STRETCH).contains(&share), "{prompt} tokens make it {share}");
        assert_eq!(costs.beside(4, 127, false), BESIDE_MIN.max(prompt - 3), "of four nothing is known but that of one");
    }

    #[test]
    fn what_answers_did_not_need_lets_short_prompts_through_and_is_paid_back() {
        let time = |rows: usize| 10_000 + 1000 * rows as u64;
        let mut costs = Costs::default();
        (1..=64).for_each(|rows| observe(&mut costs, rows, rows > 1, time(rows)));
        let plain = costs.beside(1, 100, false);
        assert_eq!((plain, costs.beside(1, 100, true)), (8, 8), "nothing is saved");
        (0..100).for_each(|_| costs.settle(1, Nanoseconds(1000 * time(1))));
        assert_eq!(
            (costs.beside(1, 100, false), costs.beside(1, 100, true)),
            (8, 44),
            "a step's own share is the same"
        );
        let (mut all, mut steps) = (0, 0);
        while costs.beside(1, 100, true) > plain {
            let rows = 1 + costs.beside(1, 100, true);
            costs.settle(1, Nanoseconds(1000 * time(rows)));
            all += time(rows);
            steps += 1;
        }
        let most = (STRETCH * (steps as f32 + 1.0) + SAVED_MAX) * time(1) as f32;
        assert!(steps > 5 && all as f32 <= most, "{steps} steps took {all}");
    }

    #[test]
    fn rows_cost_what_was_measured_in_between_and_a_single_slow_step_changes_little() {
        let mut costs = Costs::default();
        assert_eq!(costs.relative(4, 1), 1.0);
        observe(&mut costs, 1, false, 10_000);
        assert!((1.0..1.1).contains(&costs.relative(4, 1)), "an untried row is taken for cheap");
        observe(&mut costs, 5, false, 18_000);
        assert!((costs.relative(3, 1) - 1.4).abs() < 0.01);
        costs.observe(1, false, Nanoseconds(1_000_000_000));
        assert!(costs.relative(5, 1) > 1.2, "{}", costs.relative(5, 1));
        (0..STALE).for_each(|_| costs.observe(1, false, Nanoseconds(10_000_000)));
        assert!(costs.relative(5, 1) < 1.1, "what was not seen for long is tried again");
    }
}
