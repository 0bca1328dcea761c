//! What steps take by the tokens they carry, learned from those that ran, and what that leaves for prompts beside running answers.
//! Times come as arguments: pure.
use shared::{
    topology::{layout::STEP_TOKENS_MAX, spec::SLOTS_MAX},
    units::Nanoseconds,
};

/// Most rows of a step whose logits are wanted: an answer's token, or a draft of one.
pub const ROWS_MAX: usize = SLOTS_MAX as usize;
/// Prompts may stretch the time per token of answers so much, on average.
const PROMISED: f32 = 2.0;
/// Steps with tokens of long prompts may take this much of the same steps without them.
const STRETCH: f32 = 1.75;
/// What answers did not need of what is promised is kept, up to this many of their steps: short prompts then go first.
const SAVED_MAX: f32 = 64.0;
/// Longest that answers wait in one piece, in steps of theirs; no shorter than what hardly a reader notices, in nanoseconds.
const PAUSE_MAX: f32 = 5.0;
const PAUSE_UNSEEN: f32 = 250e6;
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

/// Who waits for a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    /// Answers, a token each.
    pub answers: usize,
    /// Prompts in slots.
    pub prompts: usize,
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
    /// Time of the steps since the last one with answers in it, while some waited, in nanoseconds.
    paused: f32,
}

impl Default for Costs {
    fn default() -> Self {
        Self { answers: Times::new(), all: Times::new(), step: 0, saved: 0.0, paused: 0.0 }
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

    /// A step took so long, prompt tokens included, that `entered` of the answers that waited were in.
    pub fn settle(&mut self, open: Open, entered: usize, time: Nanoseconds) {
        if open.answers == 0 {
            // Nobody waits for a token.
            (self.saved, self.paused) = (f32::MAX, 0.0);
            return;
        }
        let Some(base) = self.base(open) else { return };
        let (most, time) = (SAVED_MAX * base, time.0 as f32);
        if entered == 0 {
            self.saved = (self.saved.min(most) - time).max(-base);
            self.paused += time;
        } else {
            self.saved = (self.saved.min(most) + PROMISED * base - time).clamp(-base, most);
            self.paused = 0.0;
        }
    }

    /// What a step of the answers may be measured by: as long as it took without prompts, or where several prompts wait, as long as
    /// it would with all of these but one answered. So few answers do not hold up many prompts, whose answers would be computed together.
    fn base(&self, open: Open) -> Option<f32> {
        let answers = open.answers.max(1);
        let known = self.answers.at_least(answers)?;
        let all = answers + open.prompts.saturating_sub(1);
        if all == answers {
            return Some(known);
        }
        // A token of a prompt takes no more than one of an answer.
        let known = self.answers.at_least(all).unwrap_or(known);
        Some(self.all.estimate(all, 0).map_or(known, |time| time.max(known)))
    }

    /// Tokens of short prompts, of so many wanted, that go first although answers wait: all that a pause has room for, or none while
    /// too little is saved or answers have been waiting. `None` where nothing is known.
    pub fn first(&self, open: Open, wanted: usize) -> Option<usize> {
        let base = self.base(open)?;
        let longest = (PAUSE_MAX * base).max(PAUSE_UNSEEN);
        let time = |tokens: usize| self.all.estimate(tokens, 0).unwrap_or(0.0);
        let count = (1..=wanted).take_while(|tokens| time(*tokens) <= longest).last().unwrap_or(0);
        let most = (longest - self.paused).min(self.saved).min(SAVED_MAX * base);
        Some(if time(count) <= most { count } else { 0 })
    }

    /// Whether so many answers' tokens take less beside these prompt tokens than half of a step of their own.
    pub fn is_cheap_beside(&self, answers: usize, prompt: usize) -> bool {
        let with = self.all.estimate(prompt + answers, 0).zip(self.all.estimate(prompt, 0));
        let added = with.map(|(with, without)| with - without);
        added.zip(self.answers.at_least(answers)).is_none_or(|(added, own)| added < own / 2.0)
    }

    /// Prompt tokens, at most `most`, that a step may carry beside the answers, so that these stay within the promise.
    pub fn beside(&self, open: Open, most: usize) -> usize {
        let Some(base) = self.base(open) else { return BESIDE_FIRST.min(most) };
        let longest = STRETCH * base + self.saved.min(0.0);
        let answers = open.answers.max(1);
        let fits = |prompt: &usize| self.all.estimate(answers + prompt, 0).is_none_or(|time| time <= longest);
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

    /// Answers and prompts that wait.
    fn open(answers: usize, prompts: usize) -> Open {
        Open { answers, prompts }
    }

    #[test]
    fn prompts_beside_answers_get_what_is_known_to_fit_and_more_is_tried_until_it_does_not() {
        let time = |rows: usize| 10_000 + 700 * rows as u64;
        let mut costs = Costs::default();
        let one = open(1, 1);
        assert_eq!((costs.beside(one, 100), costs.beside(one, 3)), (BESIDE_FIRST, 3), "nothing is known");
        assert_eq!(costs.first(one, 64), None);
        observe(&mut costs, 128, true, time(128));
        observe(&mut costs, 1, false, time(1));
        for _ in 0..10 {
            let prompt = costs.beside(one, 127);
            observe(&mut costs, 1 + prompt, true, time(1 + prompt));
        }
        let prompt = costs.beside(one, 127);
        let share = time(1 + prompt) as f32 / time(1) as f32;
        assert!((1.6..=STRETCH).contains(&share), "{prompt} tokens make it {share}");
        assert_eq!(
            costs.beside(open(4, 1), 127),
            BESIDE_MIN.max(prompt - 3),
            "of four nothing is known but that of one"
        );
        assert!(costs.beside(open(1, 9), 127) > 2 * prompt, "nine prompts are worth more than one answer");
    }

    #[test]
    fn what_answers_did_not_need_lets_short_prompts_go_first_and_is_paid_back() {
        let time = |rows: usize| 10_000 + 1000 * rows as u64;
        let mut costs = Costs::default();
        let one = open(1, 1);
        (1..=128).for_each(|rows| observe(&mut costs, rows, rows > 1, time(rows)));
        assert_eq!(costs.first(one, 64), Some(0), "nothing is saved");
        (0..100).for_each(|_| costs.settle(one, 1, Nanoseconds(1000 * time(1))));
        assert_eq!((costs.first(one, 64), costs.beside(one, 100)), (Some(64), 8), "a step's own share is the same");
        let (mut own, mut all, mut prompts, mut paused) = (0, 0, 0, 0);
        while prompts < 100 {
            let tokens = costs.first(one, 64).expect("all is known");
            prompts += usize::from(tokens > 0);
            let time = if tokens > 0 { time(tokens) } else { time(1) };
            paused = if tokens > 0 { paused + time } else { 0 };
            assert!(paused as f32 <= PAUSE_UNSEEN / 1000.0, "a pause of {paused}");
            costs.settle(one, usize::from(tokens == 0), Nanoseconds(1000 * time));
            own += if tokens > 0 { 0 } else { time };
            all += time;
        }
        let most = PROMISED * own as f32 + (SAVED_MAX + PROMISED) * time(1) as f32;
        assert!(all as f32 <= most && all as f32 > 0.9 * most, "all took {all} of at most {most}");
    }

    #[test]
    fn answers_go_beside_a_prompt_only_where_they_cost_little_there() {
        let (mut read, mut compute) = (Costs::default(), Costs::default());
        for rows in [1, 4, 64, 65, 68] {
            // A machine whose weights come slowly from memory, and one that computes.
            observe(&mut read, rows, rows > 4, 10_000 + 100 * rows as u64);
            observe(&mut compute, rows, rows > 4, 1000 * rows as u64);
        }
        assert!(read.is_cheap_beside(4, 64) && !compute.is_cheap_beside(4, 64));
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
