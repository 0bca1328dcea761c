//! The head's scheduler: assigns slots and KV blocks to requests and composes each step. Pure.
use std::collections::VecDeque;

use common::{ids::Slot, limits::KV_BLOCK_LENGTH, units::Nanoseconds};
use smallvec::SmallVec;
use telemetry::KvUse;
use topology::layout::STEP_TOKENS_MAX;

use super::{
    blocks::Blocks,
    costs::{Costs, Open, ROWS_MAX},
    drafts::{Acceptance, Match},
    plan::{Limits, Opened, Plan, PlanEntry},
};
pub use sequence::{Admitted, Departure};
use sequence::{Drafts, Opening, Phase, Running};
use share::{Prefill, Prompts};

mod sequence;
mod share;

/// Identifies a request inside an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// Slots, queue and KV blocks of a replica.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Admitted>,
    slots: Vec<Option<Running>>,
    blocks: Blocks,
    /// Usage as last reported to the node.
    told: KvUse,
    closed: Vec<Slot>,
    /// Requests whose prompts are to be computed by a prefill group.
    elsewhere: Vec<RequestKey>,
    /// Those of them that got their slots since the last call of [`Scheduler::departure`].
    departures: Vec<Departure>,
    was_busy: bool,
    /// Step-latency model.
    costs: Costs,
    /// Decode rows in the latest plan.
    answers_entered: usize,
    /// Requests that waited for it.
    waited: Open,
    /// Initial acceptance rates of new requests.
    acceptance: Acceptance,
    /// Number of sequences opened so far.
    opened: u64,
    /// Number of parts that running answers are split into, one for each stage of the pipeline, so that no stage idles.
    turns: usize,
    /// Most tokens in a step.
    step_tokens: usize,
    /// Whether constrained sequences can begin without delaying others.
    takes_grammars: bool,
}

impl Scheduler {
    /// Creates a scheduler with everything free.
    pub fn new(limits: Limits) -> Self {
        let slots = (0..limits.slots).map(|_| None).collect();
        Self {
            limits,
            waiting: VecDeque::new(),
            slots,
            blocks: Blocks::new(limits.blocks),
            told: KvUse::default(),
            closed: Vec::new(),
            elsewhere: Vec::new(),
            departures: Vec::new(),
            was_busy: false,
            costs: Costs::default(),
            answers_entered: 0,
            waited: Open::default(),
            acceptance: Acceptance::default(),
            opened: 0,
            turns: 1,
            step_tokens: STEP_TOKENS_MAX,
            takes_grammars: true,
        }
    }

    /// Configures a pipeline of `turns` stages: running answers alternate, so that each step carries the tokens of one
    /// part of them, and at most `step_tokens` tokens.
    pub fn in_turns(self, turns: usize, step_tokens: usize) -> Self {
        Self { turns: turns.max(1), step_tokens: step_tokens.clamp(1, STEP_TOKENS_MAX), ..self }
    }

    /// Turns the prefix cache off.
    pub fn without_sharing(self) -> Self {
        Self { blocks: Blocks::without_sharing(self.limits.blocks), ..self }
    }

    /// Appends a request to the queue.
    pub fn submit(&mut self, request: Admitted) {
        self.waiting.push_back(request);
    }

    /// Appends a request to the queue whose prompt is to be computed by a prefill group.
    pub fn submit_elsewhere(&mut self, request: Admitted) {
        self.elsewhere.push(request.key);
        self.submit(request);
    }

    /// Sets whether constrained sequences may begin at any time (the vocabulary is read) or only while no other
    /// sequence runs.
    pub fn take_grammars(&mut self, takes: bool) {
        self.takes_grammars = takes;
    }

    /// Takes a request that got its slot and waits for its remote prefill; each is returned once.
    pub fn departure(&mut self) -> Option<Departure> {
        self.departures.pop()
    }

    /// The tokens of a slot: prompt, then sampled tokens.
    pub fn tokens(&self, slot: Slot) -> &[u32] {
        self.slots.get(slot.index()).and_then(Option::as_ref).map_or(&[], |running| &running.tokens)
    }

    /// Resumes a slot with the keys and values of its first `tokens` tokens present; with 0, the prompt is computed
    /// here after all.
    pub fn come_back(&mut self, slot: Slot, tokens: usize) {
        let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) else { return };
        match std::mem::replace(&mut running.phase, Phase::Open) {
            Phase::Elsewhere(opening) => {
                if tokens > 0 {
                    (running.fed, running.prompt_length) = (tokens, tokens);
                }
                running.phase = Phase::Opening(Opening { cached: running.fed, ..opening });
            }
            other => running.phase = other,
        }
    }

    /// Usage of the KV blocks, if it changed since the last call.
    pub fn kv_changed(&mut self) -> Option<KvUse> {
        let now = self.blocks.kv_use();
        (self.told != now).then(|| {
            self.told = now;
            now
        })
    }

    /// Whether any request runs or waits.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.slots.iter().any(Option::is_some)
    }

    /// The request in a slot.
    pub fn key(&self, slot: Slot) -> Option<RequestKey> {
        self.slots.get(slot.index())?.as_ref().map(|running| running.key)
    }

    /// Removes a request, running or waiting; its slot is closed with the next plan.
    pub fn end(&mut self, key: RequestKey) {
        self.waiting.retain(|request| request.key != key);
        self.elsewhere.retain(|known| *known != key);
        self.departures.retain(|departure| departure.key != key);
        let holds = |place: &Option<Running>| place.as_ref().is_some_and(|running| running.key == key);
        if let Some(index) = self.slots.iter().position(holds)
            && let Some(running) = self.slots[index].take()
        {
            // The block to be copied for it has no content until a step that copies it was sent.
            let whole = running.fed / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH;
            let computed = if running.table.copy.is_some() { whole } else { running.fed };
            self.blocks.release(running.table, &running.tokens[..computed]);
            // Only a sequence that the ranks have opened is closed there.
            self.closed.extend(matches!(running.phase, Phase::Open).then_some(Slot(index as u16)));
        }
        // Without work the head sleeps until the next request: that time counts as idle.
        self.was_busy &= self.has_work();
    }

    /// Records a token sampled for a slot; it is fed with the next step unless the request ends before. If it equals
    /// the speculative token fed at its position, it has been fed already, and the token after it is expected next.
    pub fn sampled(&mut self, slot: Slot, token: u32) {
        let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) else { return };
        running.tokens.push(token);
        if running.drafts.get(running.accepted) == Some(&token) {
            running.accepted += 1;
            running.fed += 1;
        } else if !running.drafts.is_empty() {
            let (length, drafted, accepted) = (running.found.length, running.drafts.len(), running.accepted);
            running.acceptance.observe(length, drafted, accepted);
            self.acceptance.observe_for_all(length, drafted, accepted);
            running.drafts.clear();
        }
    }

    /// Writes the next step into `plan`; false if there is none to send. Changes that the ranks must receive (openings,
    /// closings, copies of blocks) stay with the sequences until a step carries them: an unsent plan loses nothing.
    pub fn next_plan(&mut self, plan: &mut Plan) -> bool {
        plan.clear();
        plan.continues = self.was_busy;
        plan.prepares = self.admit();
        self.was_busy = self.slots.iter().any(Option::is_some);
        if !self.was_busy {
            // Closed slots stay in `closed` until a step is sent; no rank needs them earlier.
            return false;
        }
        self.enter_all(plan);
        if plan.entries.is_empty() {
            return false;
        }
        // If one plan closes and reopens a slot, every rank closes it first.
        plan.closed.append(&mut self.closed);
        self.open(plan);
        true
    }

    /// Adds the answers whose turn it is; in a single stage without prompts, with speculative tokens.
    fn enter_answers(&mut self, plan: &mut Plan) {
        let answers = self.slots.iter().flatten().filter(|running| running.is_answering());
        let mut turn = answers.clone().count().div_ceil(self.turns);
        let mut rows = answers.filter(|running| running.fed < running.tokens.len()).count().min(turn);
        let has_prompts = self.slots.iter().flatten().any(Running::is_prompt);
        let rows_max = if has_prompts || self.turns > 1 { 0 } else { ROWS_MAX.min(self.step_tokens) };
        for (index, running) in self.slots.iter_mut().enumerate() {
            let Some(running) = running.as_mut().filter(|running| running.is_answering()) else { continue };
            // A fully fed sequence waits for its token.
            if running.fed == running.tokens.len() || turn == 0 {
                continue;
            }
            turn -= 1;
            running.draft(rows_max.saturating_sub(rows), rows, &self.costs);
            rows += running.drafts.len();
            let slot = Slot(index as u16);
            enter(slot, running, 1, &mut plan.entries);
            let draft = |(position, token): (usize, &u32)| PlanEntry {
                slot,
                position: position as u32,
                token: *token,
                wants_logits: true,
            };
            plan.entries.extend((running.fed..).zip(&running.drafts).map(draft));
            self.blocks.name(&mut running.table, &running.tokens[..running.fed]);
        }
    }

    /// Prompts that are computed here, by arrival.
    fn prompts(&self) -> Prompts {
        let prompt = |(index, running): (usize, &Option<Running>)| {
            let running = running.as_ref().filter(|running| running.is_prompt())?;
            let (rest, all) = (running.prompt_length - running.fed, running.prompt_length - running.table.cached);
            Some(Prefill::new(running.number, index, rest, all, self.step_tokens))
        };
        let mut prompts: Prompts = self.slots.iter().enumerate().filter_map(prompt).collect();
        prompts.sort_unstable_by_key(|prompt| prompt.number);
        prompts
    }

    /// Adds prompts and answers. While budget is saved, short prompts run first, and answers wait unless adding them to
    /// that step is cheap. Long prompts run in chunks in the same steps as answers.
    fn enter_all(&mut self, plan: &mut Plan) {
        let mut prompts = self.prompts();
        let answers = || self.slots.iter().flatten().filter(|running| running.is_answering());
        let ready = answers().filter(|running| running.fed < running.tokens.len()).count();
        let turn = answers().count().div_ceil(self.turns);
        let is_alone = turn == 0;
        self.waited = Open { answers: ready.min(turn), prompts: prompts.len() };
        let has_short = prompts.iter().any(|prompt| prompt.is_short);
        let first = if has_short && !is_alone {
            share::first(&mut prompts, &self.costs, self.waited, self.step_tokens)
        } else {
            None
        };
        let count = first.unwrap_or(0);
        let fits = count + self.waited.answers <= self.step_tokens;
        if count == 0 || (fits && self.costs.is_cheap_beside(self.waited.answers, count)) {
            self.enter_answers(plan);
            self.waited.answers = plan.entries.len();
        }
        self.answers_entered = plan.entries.len();
        if count == 0 {
            let most = self.step_tokens.saturating_sub(plan.entries.len());
            let beside = if is_alone { most } else { self.costs.beside(self.waited, most) };
            // Short prompts wait until enough is saved: half of the share of the other prompts is set aside for that.
            let waits = first.is_some();
            share::beside(&mut prompts, if waits { beside / 2 } else { beside }, |prompt| !(waits && prompt.is_short));
        }
        self.enter_prompts(&prompts, plan);
    }

    /// Adds the prompts' shares to the plan.
    fn enter_prompts(&mut self, prompts: &[Prefill], plan: &mut Plan) {
        for prompt in prompts.iter().filter(|prompt| prompt.share > 0) {
            let Some(running) = self.slots[prompt.index].as_mut() else { continue };
            plan.is_prefill = true;
            enter(Slot(prompt.index as u16), running, prompt.share, &mut plan.entries);
            self.blocks.name(&mut running.table, &running.tokens[..running.fed]);
        }
    }

    /// Records the time of a plan's step.
    pub fn took(&mut self, plan: &Plan, time: Nanoseconds) {
        self.costs.settle(self.waited, self.answers_entered, time);
        self.costs.observe(plan.entries.len(), plan.is_prefill, time);
    }

    /// Moves waiting requests into free slots if all their blocks are available: no sequence can run out of blocks
    /// later. Returns whether a request waits for the vocabulary.
    fn admit(&mut self) -> bool {
        let (mut next, mut prepares) = (0, false);
        while next < self.waiting.len() {
            let Some(index) = self.slots.iter().position(Option::is_none) else { break };
            let request = &self.waiting[next];
            let is_early = request.grammar.is_some() && !self.takes_grammars && self.slots.iter().any(Option::is_some);
            prepares |= is_early;
            if is_early || self.is_computed_beside(&request.prompt) {
                next += 1;
                continue;
            }
            let length = (request.prompt.len() + request.max_tokens).min(self.limits.context_length);
            let Some(mut table) = self.blocks.take(&request.prompt, length) else { break };
            let Some(request) = self.waiting.remove(next) else { break };
            let slot = Slot(index as u16);
            let mut tokens = Vec::with_capacity(length);
            tokens.extend_from_slice(&request.prompt);
            let (prompt_length, acceptance) = (tokens.len(), self.acceptance.begin());
            let Admitted { key, sampling, drafts_max, grammar, .. } = request;
            let opening = |cached: usize| Opening { sampling, grammar, cached };
            let (fed, phase) = if let Some(place) = self.elsewhere.iter().position(|known| *known == key) {
                self.elsewhere.swap_remove(place);
                // A partially matching block is transferred or computed as a whole.
                let first_block = table.cached / KV_BLOCK_LENGTH;
                let blocks = table.blocks.clone();
                table.copy = None;
                self.departures.push(Departure { key, slot, blocks, first_block: first_block as u32 });
                let whole = first_block * KV_BLOCK_LENGTH;
                (whole, Phase::Elsewhere(opening(whole)))
            } else {
                (table.cached, Phase::Opening(opening(table.cached)))
            };
            self.opened += 1;
            self.slots[index] = Some(Running {
                key,
                tokens,
                prompt_length,
                phase,
                fed,
                table,
                number: self.opened,
                length,
                drafts_max,
                drafts: Drafts::new(),
                found: Match { next: 0, length: 1 },
                accepted: 0,
                acceptance,
            });
        }
        prepares
    }

    /// Opens sequences with a step that is sent, in the order in which they got their blocks: a copy may depend on an
    /// earlier one.
    fn open(&mut self, plan: &mut Plan) {
        let number = |(index, running): (usize, &Option<Running>)| {
            let running = running.as_ref().filter(|running| matches!(running.phase, Phase::Opening(_)))?;
            Some((running.number, index))
        };
        let mut opening: SmallVec<[(u64, usize); 8]> = self.slots.iter().enumerate().filter_map(number).collect();
        opening.sort_unstable();
        for (_, index) in opening {
            let (slot, Some(running)) = (Slot(index as u16), &mut self.slots[index]) else { continue };
            let phase = std::mem::replace(&mut running.phase, Phase::Open);
            let Phase::Opening(Opening { sampling, grammar, cached }) = phase else { continue };
            plan.blocks.extend(running.table.blocks.iter().map(|block| (slot, *block)));
            plan.copies.extend(running.table.copy.take());
            plan.opened.push(Opened { slot, sampling, cached: cached as u32, prompt: running.tokens.clone(), grammar });
        }
    }

    /// Whether a prompt that is being computed shares at least one block more with this one than the cache already has:
    /// then it is worth waiting for.
    fn is_computed_beside(&self, prompt: &[u32]) -> bool {
        let is_worth_it = |running: &&Running| self.blocks.shares() && !running.is_answering();
        let going = self.slots.iter().flatten().filter(is_worth_it);
        let shared = going.map(|running| {
            let pairs = prompt[..prompt.len() - 1].iter().zip(&running.tokens);
            pairs.take_while(|(a, b)| a == b).count() / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH
        });
        shared.max().is_some_and(|shared| shared > 0 && shared > self.blocks.cached_whole(prompt))
    }
}

/// Adds the next `count` tokens of a sequence.
fn enter(slot: Slot, running: &mut Running, count: usize, entries: &mut Vec<PlanEntry>) {
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
mod follow_tests;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod tests;
