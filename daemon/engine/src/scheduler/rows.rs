//! Rows of logits: how many of answers a step may have, speculative ones included, and which of prompts are due.
use common::ids::Slot;
use topology::layout::PIPELINE_ROWS;

use super::Scheduler;
use crate::step_latency::ROWS_MAX;

impl Scheduler {
    /// Most rows of answers, speculative ones included, in a step with prompts of `prompt_tokens` tokens at least. Each
    /// prompt may need a row, and those whose log probabilities are wanted need more.
    pub(super) fn rows_max(&self, prompt_tokens: usize) -> usize {
        let prompts = self.slots.iter().flatten().filter(|running| running.is_prompt()).count();
        if self.states.is_used() && (prompts > 0 || self.turns > 1) {
            // Every sequence with speculative tokens must take part in the next step, which replays their states.
            return 0;
        }
        let most = if self.turns > 1 { PIPELINE_ROWS } else { ROWS_MAX };
        let rows = if prompts > 0 { (ROWS_MAX - prompts.min(ROWS_MAX)).min(most / 2) } else { most };
        rows.min(self.step_tokens.saturating_sub(prompt_tokens))
    }

    /// Records that the log probabilities of `rows` positions of a prompt arrived.
    pub fn scored(&mut self, slot: Slot, rows: usize) {
        if let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) {
            running.unscored = running.unscored.saturating_sub(rows);
        }
    }
}
