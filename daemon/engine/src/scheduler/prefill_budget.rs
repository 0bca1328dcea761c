//! How a step's token budget is shared among prompts. Short prompts run first, whole if possible, as long as the saved
//! budget of the answers pays for that; others run in chunks in the same steps as the answers. Pure.
use common::limits::SLOTS_MAX;
use smallvec::SmallVec;

use crate::step_latency::{Pending, StepLatency};

/// A prompt is short if it takes at most this many steps.
const SHORT_STEPS: usize = 2;

/// A prompt that is being computed.
#[derive(Debug)]
pub(super) struct Prefill {
    /// Order of arrival; smaller is earlier.
    pub(super) number: u64,
    /// Index of its slot.
    pub(super) index: usize,
    /// Tokens not yet assigned to a step.
    pub(super) rest: usize,
    /// Whether it takes at most [`SHORT_STEPS`] steps.
    pub(super) is_short: bool,
    /// Its tokens in this step.
    pub(super) share: usize,
}

/// All prompts of a step, by arrival.
pub(super) type Prompts = SmallVec<[Prefill; SLOTS_MAX as usize]>;

impl Prefill {
    /// Creates the entry of a prompt in a slot with `rest` tokens left to compute of `all` at arrival.
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

/// Shares a step of at most `most` tokens among short prompts in order of arrival while answers wait. Returns the
/// number of tokens; `None` if no step times are known.
pub(super) fn share_ahead(
    prompts: &mut [Prefill],
    latency: &StepLatency,
    pending: Pending,
    most: usize,
) -> Option<usize> {
    let short = prompts.iter().filter(|prompt| prompt.is_short);
    let wanted = short.map(|prompt| prompt.rest).sum::<usize>().min(most);
    let count = latency.prefill_budget_ahead(pending, wanted)?;
    let mut left = count;
    prompts.iter_mut().filter(|prompt| prompt.is_short).for_each(|prompt| prompt.take(left, &mut left));
    Some(count)
}

/// Shares `tokens` tokens of a step among the prompts that `is_meant` selects: half to the earliest, half to the one
/// nearest to its end; the remainder goes to all in order of arrival.
pub(super) fn share_mixed(prompts: &mut [Prefill], tokens: usize, is_meant: impl Fn(&Prefill) -> bool) {
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
