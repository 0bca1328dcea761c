//! The steps of the draft model before a step, as the scheduler composes them: all running answers that it pays for
//! propose in one batch, each step one token more.
use common::{ids::Slot, units::Nanoseconds};

use super::{
    Scheduler,
    sequence::{Phase, Running},
};
use crate::{
    plan::Plan,
    speculation::{DraftSum, DraftText},
    step_latency::ROWS_MAX,
};

/// Most tokens of a draft step: so many of a prompt are computed before each step of running answers.
const CATCH_UP_MAX: usize = 128;

impl Scheduler {
    /// Writes the next step of the draft model into `plan`; false if the next step is one of the target model.
    pub fn next_draft(&mut self, plan: &mut Plan) -> bool {
        plan.clear();
        let has_begun = self.speculation.set_drafting(true);
        if !has_begun && !self.choose_drafts() {
            self.speculation.set_drafting(false);
            return false;
        }
        plan.continues = has_begun || self.was_busy;
        let mut room = CATCH_UP_MAX.min(self.step_tokens);
        for (index, running) in self.slots.iter_mut().enumerate() {
            let Some(running) = running.as_mut().filter(|running| running.is_ready()) else { continue };
            room -= running.drafts.feed(Slot(index as u16), &running.tokens, room, &mut plan.entries);
        }
        self.speculation.set_drafting(!plan.entries.is_empty());
        !plan.entries.is_empty()
    }

    /// Chooses how many tokens the draft model proposes for each answer of the next step. Returns whether it proposes
    /// any.
    fn choose_drafts(&mut self) -> bool {
        let has_prompts = self.slots.iter().flatten().any(Running::is_prompt);
        if !self.speculation.has_draft_model() || has_prompts || self.turns > 1 {
            return false;
        }
        let rows = self.slots.iter().flatten().filter(|running| running.is_ready()).count();
        let mut room = ROWS_MAX.min(self.step_tokens).saturating_sub(rows);
        let mut sum = DraftSum::default();
        for running in self.slots.iter_mut().flatten().filter(|running| running.is_ready()) {
            if running.drafts.is_proposed() {
                continue;
            }
            let most = running.draft_room(room, rows);
            let left = running.length.saturating_sub(running.tokens.len());
            let text = DraftText { tokens: &running.tokens, blocks: &running.table.blocks, left };
            room -= self.speculation.choose(&mut running.drafts, text, most, &self.latency, &mut sum);
        }
        self.speculation.pays(&sum, rows, &self.latency)
    }

    /// Takes a token that the draft model proposes for a slot.
    pub fn drafted(&mut self, slot: Slot, token: u32) {
        let vocabulary = self.limits.vocabulary_length;
        if let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) {
            self.speculation.drafted(&mut running.drafts, token, vocabulary);
        }
    }

    /// Records the time of a draft step.
    pub fn record_draft_time(&mut self, plan: &Plan, time: Nanoseconds) {
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits).count();
        // A step that catches up has more than the latest tokens.
        let is_prompt = plan.entries.len() > 2 * wanted;
        let rows = if is_prompt { plan.entries.len() } else { wanted };
        self.speculation.record_draft_time(rows, is_prompt, time);
    }
}

impl Running {
    /// Whether the next step can compute its latest token.
    fn is_ready(&self) -> bool {
        self.is_answering() && self.fed < self.tokens.len() && matches!(self.phase, Phase::Open)
    }
}
