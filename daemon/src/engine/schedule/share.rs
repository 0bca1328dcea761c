//! How a step is shared among the prompts that go through the layers. Short ones go first, whole where they can, as long as what answers
//! did not need is enough for that; others go in chunks beside the answers. Pure.
use shared::topology::spec::SLOTS_MAX;
use smallvec::SmallVec;

use super::super::costs::{Costs, Open};

/// Most steps of a prompt that is short.
const SHORT_STEPS: usize = 2;

/// A prompt that goes through the layers.
#[derive(Debug)]
pub(super) struct Prefill {
    /// Smaller came earlier.
    pub(super) number: u64,
    /// Its slot.
    pub(super) index: usize,
    /// Tokens that have no share yet.
    pub(super) rest: usize,
    /// It is through after few steps.
    pub(super) is_short: bool,
    /// Tokens of it in the step.
    pub(super) share: usize,
}

/// All of a step, by arrival.
pub(super) type Prompts = SmallVec<[Prefill; SLOTS_MAX as usize]>;

impl Prefill {
    /// A prompt in a slot, with so many tokens that are still to be computed of `all` that were when it came.
    pub(super) fn new(number: u64, index: usize, rest: usize, all: usize, step_tokens: usize) -> Self {
        Self { number, index, rest, is_short: all <= SHORT_STEPS * step_tokens, share: 0 }
    }

    fn take(&mut self, most: usize, left: &mut usize) {
        let share = self.rest.min(most).min(*left);
        self.rest -= share;
        self.share += share;
        *left -= share;
    }
}

/// Shares a step of at most `most` tokens among short prompts by arrival, for which answers wait. How many tokens it carries then;
/// `None` where nothing is known of times.
pub(super) fn first(prompts: &mut [Prefill], costs: &Costs, open: Open, most: usize) -> Option<usize> {
    let short = prompts.iter().filter(|prompt| prompt.is_short);
    let wanted = short.map(|prompt| prompt.rest).sum::<usize>().min(most);
    let count = costs.first(open, wanted)?;
    let mut left = count;
    prompts.iter_mut().filter(|prompt| prompt.is_short).for_each(|prompt| prompt.take(left, &mut left));
    Some(count)
}

/// Shares so many tokens of a step among those prompts that `is_meant` names: half for that which came first, half for that which is
/// nearest to its end; what they leave goes by arrival.
pub(super) fn beside(prompts: &mut [Prefill], tokens: usize, is_meant: impl Fn(&Prefill) -> bool) {
    let (mut left, half) = (tokens, tokens.div_ceil(2));
    let is_open = |prompt: &&mut Prefill| prompt.rest > 0 && is_meant(prompt);
    if let Some(first) = prompts.iter_mut().find(is_open) {
        first.take(half, &mut left);
    }
    if let Some(nearest) = prompts.iter_mut().filter(is_open).min_by_key(|prompt| prompt.rest) {
        nearest.take(left, &mut left);
    }
    prompts.iter_mut().filter(is_open).for_each(|prompt| prompt.take(left, &mut left));
}
