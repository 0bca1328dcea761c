//! Prompts whose keys and values come from elsewhere, as the scheduler tracks them: computed by a prefill group, or read
//! from the disks of the ranks. They are received into the blocks of their slots, and states into saved ones, which later
//! prompts can begin with, too.
use common::{ids::Slot, limits::KV_BLOCK_LENGTH};

use super::{
    Admitted, RequestKey, Scheduler,
    sequence::{AwaitedPrompt, KvSource, Opening, Phase, Running},
};
use crate::block_pool::BlockTable;

impl Scheduler {
    /// Appends a request to the queue whose keys and values come from elsewhere.
    pub fn submit_awaiting(&mut self, request: Admitted, source: KvSource) {
        self.awaited.push((request.key, source));
        self.submit(request);
    }

    /// Takes a request that got its slot and waits for its keys and values; each is returned once.
    pub fn next_awaited(&mut self) -> Option<AwaitedPrompt> {
        self.awaited_prompts.pop()
    }

    /// How many tokens at the beginning of a prompt a sequence that began now would find in memory, in whole blocks.
    pub fn cached(&self, prompt: &[u32]) -> usize {
        if !self.states.is_used() {
            return self.blocks.cached_whole(prompt);
        }
        self.states.longest(prompt, |length| self.blocks.has(prompt, length)).map_or(0, |(_, length)| length)
    }

    /// Where the keys and values of a request come from, if from elsewhere; the outer `None`: it waits until there is
    /// room for its state.
    pub(super) fn source(&self, key: RequestKey) -> Option<Option<KvSource>> {
        let source = self.awaited.iter().find(|(known, _)| *known == key).map(|(_, source)| *source);
        // With nothing running, no step would make room.
        let is_busy = self.slots.iter().any(Option::is_some);
        match self.states.has_room() {
            true => Some(source),
            false if is_busy && source.is_some() => None,
            false => Some(None),
        }
    }

    /// Begins a sequence whose keys and values come from elsewhere; returns how many of its tokens are cached, and its
    /// phase.
    pub(super) fn begin_awaiting(
        &mut self,
        awaited: (RequestKey, KvSource),
        slot: Slot,
        table: &mut BlockTable,
        prompt_length: usize,
        opening: Opening,
    ) -> (usize, Phase) {
        let (key, source) = awaited;
        // A partially matching block is received or computed as a whole.
        let first_block = table.cached / KV_BLOCK_LENGTH;
        let blocks = table.blocks.clone();
        self.blocks.take_copy(table);
        let received = match source {
            KvSource::Group => prompt_length - 1,
            KvSource::Store { tokens } => tokens.min(prompt_length - 1),
        };
        self.blocks.pass(table, received);
        self.blocks.extend(table, received, |_, _| ());
        let windowed = (table.windowed.first as u32, table.windowed.blocks.iter().copied().collect());
        let set_aside = self.states.set_aside();
        let state = set_aside.map(|saved| self.states.number(saved));
        let (cached, first_block) = (first_block * KV_BLOCK_LENGTH, first_block as u32);
        self.awaited_prompts.push(AwaitedPrompt { key, slot, source, blocks, windowed, state, first_block });
        (cached, Phase::Awaiting(Opening { cached, awaited: set_aside, ..opening }))
    }

    /// Resumes a slot with the keys and values, and the state, of its first `tokens` tokens present; with 0, the prompt
    /// is computed here after all: the request gets a slot again, next of all.
    pub fn resume_with_kv(&mut self, slot: Slot, tokens: usize) {
        let Some(place) = self.slots.get_mut(slot.index()) else { return };
        let Some(running) = place.as_mut().filter(|running| matches!(running.phase, Phase::Awaiting(_))) else {
            return;
        };
        if tokens > 0 {
            (running.fed, running.followed, running.table.cached) = (tokens, tokens, tokens);
            // All ranks have them: prompts that wait for this one begin with them.
            self.blocks.publish(&mut running.table, &running.tokens[..tokens]);
            if tokens + 1 == running.prompt_length {
                // The last token is computed like a sampled one.
                (running.prompt_length, running.awaits_mask) = (tokens, false);
            }
            if let Phase::Awaiting(opening) = std::mem::replace(&mut running.phase, Phase::Open) {
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
        let Phase::Awaiting(Opening { sampling, grammar, drafts_max, awaited, .. }) = phase else { return };
        if let Some(awaited) = awaited {
            self.states.settle(awaited, &[]);
        }
        let max_tokens = length - prompt.len();
        self.waiting.push_front(Admitted { key, prompt, max_tokens, sampling, drafts_max, grammar });
    }
}
