//! Steps of the draft model before a step of the target model: each is a plan like that of a step, and the tokens
//! sampled from its logits are fed to the next one.
use std::time::Instant;

use protocol::frame::FrameKind;

use super::{Head, since};
use crate::{error::EngineError, plan::Plan};

impl Head<'_> {
    /// Lets the draft model propose tokens for the next step, if there is one and if it pays.
    pub(super) fn draft(&mut self) -> Result<(), EngineError> {
        if self.worker.draft.is_none() {
            return Ok(());
        }
        let mut plan = std::mem::take(&mut self.plan);
        let mut result = Ok(());
        while result.is_ok() && self.scheduler.next_draft(&mut plan) {
            result = self.run_draft(&plan);
        }
        self.plan = plan;
        result
    }

    /// Runs one step of the draft model on all ranks.
    fn run_draft(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.step += 1;
        let now = Instant::now();
        let group = &mut self.worker.group;
        group.begin_step(self.step);
        if !plan.continues {
            group.timing.idle();
        }
        group.timing.begin_draft(plan.entries.len() as u32);
        if self.worker.group.links().is_some() {
            self.tell(FrameKind::Draft, plan)?;
        }
        let has_tokens = self.sampler.draft(&mut self.worker, plan)?;
        self.scheduler.record_draft_time(plan, since(now, Instant::now()));
        if !has_tokens {
            return Ok(());
        }
        let in_flight = self.in_flight(plan);
        self.add_totals(&in_flight);
        for (slot, chosen) in &self.sampler.sampled.tokens {
            self.scheduler.drafted(*slot, chosen.id);
        }
        Ok(())
    }
}
