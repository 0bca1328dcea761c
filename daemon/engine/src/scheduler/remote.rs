//! Prompts that a prefill group computes, as the scheduler of the decode group tracks them: their keys and values are
//! received into the blocks of their slots, and their states into saved ones, which later prompts can begin with, too.
use common::{ids::Slot, limits::KV_BLOCK_LENGTH};

use super::{
    Admitted, RemotePrompt, RequestKey, Scheduler,
    sequence::{Opening, Phase, Running},
};
use crate::block_pool::BlockTable;

impl Scheduler {
    /// Appends a request to the queue whose prompt is to be computed by a prefill group.
    pub fn submit_remote(&mut self, request: Admitted) {
        self.remote_prefill.push(request.key);
        self.submit(request);
    }

    /// Takes a request that got its slot and waits for its remote prefill; each is returned once.
    pub fn next_remote_prompt(&mut self) -> Option<RemotePrompt> {
        self.remote_prompts.pop()
    }

    /// Whether the prompt of a request is computed by a prefill group; `None`: once there is room for its state.
    pub(super) fn is_remote(&self, key: RequestKey) -> Option<bool> {
        // With nothing running, no step would make room.
        let is_busy = self.slots.iter().any(Option::is_some);
        match (self.remote_prefill.contains(&key), self.states.has_room()) {
            (true, false) if is_busy => None,
            (is_asked, has_room) => Some(is_asked && has_room),
        }
    }

    /// Begins a sequence whose prompt is computed by a prefill group; returns how many of its tokens are cached, and its
    /// phase.
    pub(super) fn begin_remote(
        &mut self,
        key: RequestKey,
        slot: Slot,
        table: &mut BlockTable,
        prompt_length: usize,
        opening: Opening,
    ) -> (usize, Phase) {
        // A partially matching block is transferred or computed as a whole.
        let first_block = table.cached / KV_BLOCK_LENGTH;
        let blocks = table.blocks.clone();
        table.copy = None;
        let sent = prompt_length - 1;
        self.blocks.pass(table, sent);
        self.blocks.extend(table, sent, |_, _| ());
        let windowed = (table.windowed.first as u32, table.windowed.blocks.iter().copied().collect());
        let awaited = self.states.set_aside();
        let state = awaited.map(|saved| self.states.number(saved));
        let (cached, first_block) = (first_block * KV_BLOCK_LENGTH, first_block as u32);
        self.remote_prompts.push(RemotePrompt { key, slot, blocks, windowed, state, first_block });
        (cached, Phase::RemotePrefill(Opening { cached, awaited, ..opening }))
    }

    /// Resumes a slot with the keys and values, and the state, of its first `tokens` tokens present; with 0, the prompt
    /// is computed here after all: the request gets a slot again, next of all.
    pub fn resume_with_kv(&mut self, slot: Slot, tokens: usize) {
        let Some(place) = self.slots.get_mut(slot.index()) else { return };
        let Some(running) = place.as_mut().filter(|running| matches!(running.phase, Phase::RemotePrefill(_))) else {
            return;
        };
        if tokens > 0 {
            (running.fed, running.followed, running.prompt_length) = (tokens, tokens, tokens);
            running.awaits_mask = false;
            if let Phase::RemotePrefill(opening) = std::mem::replace(&mut running.phase, Phase::Open) {
                if let Some(awaited) = opening.awaited {
                    self.states.settle(awaited, &running.tokens[..tokens]);
                    self.states.restore(awaited, slot);
                }
                running.phase = Phase::Opening(Opening { cached: tokens, ..opening });
            }
            return;
        }
        let Some(Running { key, tokens: prompt, phase, fed, table, length, .. }) = place.take() else { return };
        self.blocks.release(table, &prompt[..fed]);
        let Phase::RemotePrefill(Opening { sampling, grammar, drafts_max, awaited, .. }) = phase else { return };
        if let Some(awaited) = awaited {
            self.states.settle(awaited, &[]);
        }
        let max_tokens = length - prompt.len();
        self.waiting.push_front(Admitted { key, prompt, max_tokens, sampling, drafts_max, grammar });
    }
}
