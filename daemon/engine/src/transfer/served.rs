//! Prompts that the head of a prefill group computes for decode groups, from the request until all keys and values are
//! being sent. Pure except for time.
use std::time::Instant;

use common::{ids::Slot, sampling::SamplingParameters, units::Nanoseconds};
use protocol::across::{Across, Ask};

use super::{TransferId, TransferOrder};
use crate::{
    RequestKey,
    plan::Limits,
    scheduler::{Admitted, Scheduler},
};

/// Most prompts that are being computed or queued.
const COMPUTING_MAX: usize = 64;

#[derive(Debug)]
struct Prompt {
    key: RequestKey,
    replica: u16,
    transfer: TransferId,
    first_block: u32,
    length: u32,
    prompt: Instant,
    begun: Option<Instant>,
}

/// The prompts of other groups.
#[derive(Debug, Default)]
pub struct ServedPrefills {
    list: Vec<Prompt>,
    latest: u64,
}

impl ServedPrefills {
    /// Queues a prompt; false if there are too many or it exceeds the limits.
    pub fn take(&mut self, scheduler: &mut Scheduler, limits: &Limits, replica: u16, ask: &Ask) -> bool {
        let is_known = ask.tokens.iter().all(|id| (*id as usize) < limits.vocabulary_length);
        let fits = (1..=limits.context_length).contains(&ask.tokens.len());
        if self.list.len() >= COMPUTING_MAX || !is_known || !fits {
            return false;
        }
        // Keys of this group's own requests count up from 1, these count down from the highest.
        let key = RequestKey(u64::MAX - self.latest);
        self.latest += 1;
        let (transfer, first_block, length) = (TransferId(ask.transfer), ask.first_block, ask.tokens.len() as u32);
        self.list.push(Prompt { key, replica, transfer, first_block, length, prompt: Instant::now(), begun: None });
        let sampling = SamplingParameters { temperature: 0.0, ..SamplingParameters::default() };
        let prompt = ask.tokens.clone();
        scheduler.submit(Admitted { key, prompt, max_tokens: 1, sampling, drafts_max: 0, grammar: None });
        true
    }

    /// The order that the ranks must receive before the plan that opens a slot for a prompt.
    pub fn begin(&mut self, key: RequestKey, slot: Slot) -> Option<TransferOrder> {
        let prompt = self.list.iter_mut().find(|prompt| prompt.key == key)?;
        prompt.begun = Some(Instant::now());
        let Prompt { transfer, replica, first_block, length, .. } = *prompt;
        Some(TransferOrder::Send { slot, transfer, replica, first_block, length })
    }

    /// Ends a computed prompt: returns the group and the message for it.
    pub fn end(&mut self, scheduler: &mut Scheduler, key: RequestKey) -> Option<(u16, Across)> {
        let index = self.list.iter().position(|prompt| prompt.key == key)?;
        let prompt = self.list.remove(index);
        scheduler.end(key);
        let begun = prompt.begun.unwrap_or(prompt.prompt);
        let between = |one: Instant, two: Instant| Nanoseconds(two.duration_since(one).as_nanos() as u64);
        let (queued, compute) = (between(prompt.prompt, begun), between(begun, Instant::now()));
        Some((prompt.replica, Across::Done { transfer: prompt.transfer.0, queued, compute }))
    }

    /// Cancels a prompt of a group or, without a transfer, all prompts of a lost group; returns the orders for the
    /// ranks.
    pub fn cancel(&mut self, scheduler: &mut Scheduler, replica: u16, transfer: Option<u64>) -> Vec<TransferOrder> {
        let is_it = |prompt: &Prompt| {
            prompt.replica == replica && transfer.is_none_or(|transfer| prompt.transfer == TransferId(transfer))
        };
        let mut orders = Vec::new();
        self.list.retain(|prompt| {
            if is_it(prompt) {
                scheduler.end(prompt.key);
                orders.push(TransferOrder::End { transfer: prompt.transfer, replica });
            }
            !is_it(prompt)
        });
        orders
    }
}
