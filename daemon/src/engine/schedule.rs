//! The head's decisions: who runs in which slot with which KV blocks, and what goes into the next step. Pure.
use std::collections::VecDeque;

use shared::{
    ids::Slot,
    sampling::SamplingParameters,
    topology::{layout::STEP_TOKENS_MAX, spec::KV_BLOCK_LENGTH},
};

use super::{
    blocks::{Blocks, Table},
    plan::{Limits, Opened, Plan, PlanEntry},
};

/// Names a request inside an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// A request whose prompt is tokenized and fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// Its name.
    pub key: RequestKey,
    /// Its prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Most tokens to sample, at least one.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParameters,
}

#[derive(Debug)]
struct Running {
    key: RequestKey,
    /// Prompt, then sampled tokens.
    tokens: Vec<u32>,
    /// Tokens of it that came with the request.
    prompt_length: usize,
    /// Tokens that went through the layers.
    fed: usize,
    table: Table,
}

impl Running {
    /// Whether its prompt is through: it feeds one sampled token at a time, or waits for the next.
    fn is_answering(&self) -> bool {
        self.fed >= self.prompt_length
    }
}

/// Slots, queue and free KV blocks of a replica.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Admitted>,
    slots: Vec<Option<Running>>,
    blocks: Blocks,
    closed: Vec<Slot>,
    was_busy: bool,
    /// Turns that running answers take: as many as the pipeline has stages, so that none of them idles.
    turns: usize,
    /// Most tokens of a step.
    step_tokens: usize,
}

impl Scheduler {
    /// Everything free.
    pub fn new(limits: Limits) -> Self {
        let slots = (0..limits.slots).map(|_| None).collect();
        Self {
            limits,
            waiting: VecDeque::new(),
            slots,
            blocks: Blocks::new(limits.blocks),
            closed: Vec::new(),
            was_busy: false,
            turns: 1,
            step_tokens: STEP_TOKENS_MAX,
        }
    }

    /// For a pipeline of so many stages: running answers take turns, each step carries the tokens of a part of them, and at most
    /// `step_tokens`.
    pub fn in_turns(self, turns: usize, step_tokens: usize) -> Self {
        Self { turns: turns.max(1), step_tokens: step_tokens.clamp(1, STEP_TOKENS_MAX), ..self }
    }

    /// Puts a request at the end of the queue.
    pub fn submit(&mut self, request: Admitted) {
        self.waiting.push_back(request);
    }

    /// Whether anything runs or waits.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.slots.iter().any(Option::is_some)
    }

    /// The request in a slot.
    pub fn key(&self, slot: Slot) -> Option<RequestKey> {
        self.slots.get(slot.index())?.as_ref().map(|running| running.key)
    }

    /// Forgets a request, running or waiting; its slot is closed with the next plan.
    pub fn end(&mut self, key: RequestKey) {
        self.waiting.retain(|request| request.key != key);
        let holds = |place: &Option<Running>| place.as_ref().is_some_and(|running| running.key == key);
        if let Some(index) = self.slots.iter().position(holds)
            && let Some(running) = self.slots[index].take()
        {
            self.blocks.release(running.table, &running.tokens[..running.fed]);
            self.closed.push(Slot(index as u16));
        }
        // Without work the head sleeps until the next request: that time is nobody's computing.
        self.was_busy &= self.has_work();
    }

    /// A token was sampled for a slot; it is fed with the next step unless the request is ended before.
    pub fn sampled(&mut self, slot: Slot, token: u32) {
        if let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) {
            running.tokens.push(token);
        }
    }

    /// Writes the next step into `plan`; false when nothing runs. Running answers come first, then prompts in chunks.
    pub fn next_plan(&mut self, plan: &mut Plan) -> bool {
        plan.clear();
        plan.continues = self.was_busy;
        self.open(plan);
        self.was_busy = self.slots.iter().any(Option::is_some);
        if !self.was_busy {
            // Slots that ended stay in `closed` until a step goes out; no rank needs to know before.
            return false;
        }
        let answers = self.slots.iter().flatten().filter(|running| running.is_answering()).count();
        let mut turn = answers.div_ceil(self.turns);
        for answering in [true, false] {
            for (index, running) in self.slots.iter_mut().enumerate() {
                let Some(running) = running.as_mut().filter(|running| running.is_answering() == answering) else {
                    continue;
                };
                // What was fed whole waits for its token.
                if running.fed == running.tokens.len() || (answering && turn == 0) {
                    continue;
                }
                turn -= usize::from(answering);
                plan.is_prefill |= !answering;
                enter(Slot(index as u16), running, self.step_tokens, &mut plan.entries);
                self.blocks.name(&mut running.table, &running.tokens[..running.fed]);
            }
        }
        if plan.entries.is_empty() {
            return false;
        }
        // A slot that was closed and is opened again in one plan is closed first on every rank.
        plan.closed.append(&mut self.closed);
        true
    }

    /// Moves waiting requests into free slots while their blocks are there: no sequence can run out of blocks later.
    fn open(&mut self, plan: &mut Plan) {
        let mut next = 0;
        while next < self.waiting.len() {
            let Some(index) = self.slots.iter().position(Option::is_none) else { return };
            let request = &self.waiting[next];
            if self.is_computed_beside(&request.prompt) {
                next += 1;
                continue;
            }
            let length = (request.prompt.len() + request.max_tokens).min(self.limits.context_length);
            let Some(table) = self.blocks.take(&request.prompt, length) else { return };
            let Some(request) = self.waiting.remove(next) else { return };
            let slot = Slot(index as u16);
            plan.blocks.extend(table.blocks.iter().map(|block| (slot, *block)));
            plan.copies.extend(table.copy);
            let mut tokens = Vec::with_capacity(length);
            tokens.extend_from_slice(&request.prompt);
            let (fed, prompt_length) = (table.cached, tokens.len());
            let Admitted { key, prompt, sampling, .. } = request;
            plan.opened.push(Opened { slot, sampling, cached: fed as u32, prompt });
            self.slots[index] = Some(Running { key, tokens, prompt_length, fed, table });
        }
    }

    /// Whether a prompt that is going through the layers begins as this one does, for at least a block beyond what is there already:
    /// then it is worth waiting for that.
    fn is_computed_beside(&self, prompt: &[u32]) -> bool {
        let going = self.slots.iter().flatten().filter(|running| !running.is_answering());
        let shared = going.map(|running| {
            let pairs = prompt[..prompt.len() - 1].iter().zip(&running.tokens);
            pairs.take_while(|(a, b)| a == b).count() / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH
        });
        shared.max().is_some_and(|shared| shared > 0 && shared > self.blocks.cached_whole(prompt))
    }
}

/// Enters as many tokens of a sequence as the step still holds.
fn enter(slot: Slot, running: &mut Running, most: usize, entries: &mut Vec<PlanEntry>) {
    let room = most - entries.len();
    let count = room.min(running.tokens.len() - running.fed);
    let last = running.tokens.len() - 1;
    let entry = |position: usize| PlanEntry {
        slot,
        position: position as u32,
        token: running.tokens[position],
        wants_logits: position == last,
    };
    entries.extend((running.fed..running.fed + count).map(entry));
    running.fed += count;
}

#[cfg(test)]
mod tests;
