//! The head's scheduler: assigns slots and KV blocks to requests and composes each step. Pure.
use std::collections::VecDeque;

use common::{
    ids::Slot,
    limits::KV_BLOCK_LENGTH,
    planted::{Planted, is_planted},
    units::Nanoseconds,
};
use smallvec::SmallVec;
use telemetry::KvUse;
use topology::layout::STEP_TOKENS_MAX;

use super::{
    block_pool::BlockPool,
    plan::{Limits, Opened, Plan, PlanEntry},
    speculation::Speculation,
    step_latency::{Pending, ROWS_MAX, StepLatency},
};
use prefill_budget::{Prefill, Prompts};
pub use sequence::{Admitted, AwaitedPrompt, KvSource};
use sequence::{Opening, Phase, Running};
use states::SavedStates;

mod awaited;
mod drafting;
mod prefill_budget;
mod rows;
mod sequence;
mod states;

/// Identifies a request inside an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// Slots, queue and KV blocks of a replica.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Admitted>,
    slots: Vec<Option<Running>>,
    blocks: BlockPool,
    /// States with which sequences can begin.
    states: SavedStates,
    /// Usage as last reported to the node.
    reported_kv: KvUse,
    closed: Vec<Slot>,
    /// Requests whose keys and values come from elsewhere.
    awaited: Vec<(RequestKey, KvSource)>,
    /// Those of them that got their slots since the last call of [`Scheduler::next_awaited`].
    awaited_prompts: Vec<AwaitedPrompt>,
    was_busy: bool,
    /// Step-latency model.
    latency: StepLatency,
    /// Decode rows in the latest plan.
    answers_entered: usize,
    /// Requests that waited for it.
    pending: Pending,
    speculation: Speculation,
    /// Number of sequences opened so far.
    opened: u64,
    /// Number of parts that running answers are split into, one for each stage of the pipeline, so that no stage idles.
    turns: usize,
    /// Where the next part of them begins, so that each gets its turn.
    next_turn: usize,
    /// Most tokens in a step.
    step_tokens: usize,
    /// Whether constrained sequences can begin without delaying others.
    masks_ready: bool,
    /// Whether each prompt is computed in one step, because its tokens attend to later ones.
    has_whole_texts: bool,
}

impl Scheduler {
    /// Creates a scheduler with everything free.
    pub fn new(limits: Limits) -> Self {
        let slots = (0..limits.slots).map(|_| None).collect();
        Self {
            limits,
            waiting: VecDeque::new(),
            slots,
            blocks: BlockPool::with_window(limits.blocks, limits.window),
            states: SavedStates::new(limits.states),
            reported_kv: KvUse::default(),
            closed: Vec::new(),
            awaited: Vec::new(),
            awaited_prompts: Vec::new(),
            was_busy: false,
            latency: StepLatency::default(),
            answers_entered: 0,
            pending: Pending::default(),
            speculation: Speculation::default(),
            opened: 0,
            turns: 1,
            next_turn: 0,
            step_tokens: STEP_TOKENS_MAX,
            masks_ready: true,
            has_whole_texts: false,
        }
    }

    /// Configures a pipeline of `turns` stages: running answers alternate, so that each step carries the tokens of one
    /// part of them, and at most `step_tokens` tokens.
    pub fn with_stages(self, turns: usize, step_tokens: usize) -> Self {
        Self { turns: turns.max(1), step_tokens: step_tokens.clamp(1, STEP_TOKENS_MAX), ..self }
    }

    /// Computes each prompt in one step, for models whose tokens attend to later ones.
    pub fn with_whole_texts(self, has_whole_texts: bool) -> Self {
        Self { has_whole_texts, ..self }
    }

    /// Turns the prefix cache off.
    pub fn without_sharing(self) -> Self {
        Self { blocks: BlockPool::with_window(self.limits.blocks, self.limits.window).without_sharing(), ..self }
    }

    /// Configures speculative decoding.
    pub fn with_speculation(self, speculation: Speculation) -> Self {
        Self { speculation, ..self }
    }

    /// Appends a request to the queue.
    pub fn submit(&mut self, request: Admitted) {
        self.waiting.push_back(request);
    }

    /// Sets whether constrained sequences may begin at any time (the vocabulary is read) or only while no other
    /// sequence runs.
    pub fn set_masks_ready(&mut self, takes: bool) {
        self.masks_ready = takes;
    }

    /// Lets constrained sequences compute that were opened and whose masks are compiled. Until then they are held
    /// back, unless no other sequence can run: a step that needs a mask waits until it is compiled.
    pub fn release_compiled(&mut self, mut is_compiled: impl FnMut(Slot) -> bool) {
        for (index, running) in self.slots.iter_mut().enumerate() {
            let Some(running) = running.as_mut().filter(|running| running.awaits_mask) else { continue };
            running.awaits_mask = !(matches!(running.phase, Phase::Open) && is_compiled(Slot(index as u16)));
        }
    }

    /// Lets constrained sequences compute at once if no other sequence can run; returns whether there are any.
    fn release_waiting(&mut self) -> bool {
        let mut running = self.slots.iter().flatten();
        let only_waiting = running.all(|running| running.awaits_mask || matches!(running.phase, Phase::Awaiting(_)));
        let held = self.slots.iter_mut().flatten().filter(|running| running.awaits_mask);
        only_waiting && held.map(|running| running.awaits_mask = false).count() > 0
    }

    /// The tokens of a slot: prompt, then sampled tokens.
    pub fn tokens(&self, slot: Slot) -> &[u32] {
        self.slots.get(slot.index()).and_then(Option::as_ref).map_or(&[], |running| &running.tokens)
    }

    /// Usage of the KV blocks, if it changed since the last call.
    pub fn kv_changed(&mut self) -> Option<KvUse> {
        let now = self.blocks.kv_use();
        (self.reported_kv != now).then(|| {
            self.reported_kv = now;
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
        if is_planted(Planted::CancelIgnored) {
            return;
        }
        self.waiting.retain(|request| request.key != key);
        self.awaited.retain(|(known, _)| *known != key);
        self.awaited_prompts.retain(|awaited| awaited.key != key);
        let mut slots = self.slots.iter();
        if let Some(index) = slots.position(|slot| slot.as_ref().is_some_and(|running| running.key == key))
            && let Some(running) = self.slots[index].take()
        {
            let is_open = matches!(running.phase, Phase::Open);
            if let Phase::Awaiting(Opening { awaited: Some(awaited), .. }) = running.phase {
                self.states.settle(awaited, &[]);
            }
            if self.states.is_used() && self.blocks.shares() && is_open && running.followed > 0 {
                self.states.save(Slot(index as u16), &running.tokens[..running.followed]);
            }
            if !is_planted(Planted::BlocksLeak) {
                self.blocks.release(running.table, &running.tokens[..running.fed]);
            }
            // Only a sequence that the ranks have opened is closed there.
            self.closed.extend(is_open.then_some(Slot(index as u16)));
        }
        // Without work the head sleeps until the next request: that time counts as idle.
        self.was_busy &= self.has_work();
    }

    /// Records a token sampled for a slot; it is fed with the next step unless the request ends before. If it equals
    /// the speculative token fed at its position, it has been fed already, and the token after it is expected next.
    pub fn sampled(&mut self, slot: Slot, token: u32) {
        let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) else { return };
        running.tokens.push(token);
        if self.speculation.accept(&mut running.drafts, token) {
            running.fed += 1;
        }
    }

    /// Writes the next step into `plan`; false if there is none to send. Changes that the ranks must receive (openings,
    /// closings, copies of blocks) stay with the sequences until a step carries them: an unsent plan loses nothing.
    pub fn next_plan(&mut self, plan: &mut Plan) -> bool {
        plan.clear();
        plan.continues = self.was_busy;
        // What only the previous step saw is free before anything of this one is allocated.
        for running in self.slots.iter_mut().flatten() {
            self.blocks.pass(&mut running.table, running.fed);
        }
        plan.prepares = self.admit();
        self.was_busy = self.slots.iter().any(Option::is_some);
        if !self.was_busy {
            // Closed slots stay in `closed` until a step is sent; no rank needs them earlier.
            return false;
        }
        self.fill(plan);
        if plan.entries.is_empty() && self.release_waiting() {
            self.fill(plan);
        }
        if plan.entries.is_empty() {
            return false;
        }
        // If one plan closes and reopens a slot, every rank closes it first.
        plan.closed.append(&mut self.closed);
        self.open(plan);
        self.states.take_copies(&mut plan.states);
        true
    }

    /// Adds the answers whose turn it is, with speculative tokens, to a step that gets `prompt_tokens` prompt tokens at
    /// least.
    fn add_answers(&mut self, plan: &mut Plan, prompt_tokens: usize) {
        let answers = self.slots.iter().flatten().filter(|running| running.is_answering());
        let mut turn = answers.clone().count().div_ceil(self.turns);
        let mut rows = answers.filter(|running| running.fed < running.tokens.len()).count().min(turn);
        let rows_max = self.rows_max(prompt_tokens);
        let begin = if self.turns > 1 { self.next_turn } else { 0 };
        for index in (begin..self.slots.len()).chain(0..begin) {
            let Some(running) = self.slots[index].as_mut().filter(|one| one.is_answering()) else { continue };
            // A fully fed sequence waits for its token.
            if running.fed == running.tokens.len() || turn == 0 {
                continue;
            }
            turn -= 1;
            self.next_turn = index + 1;
            let room = running.draft_room(rows_max.saturating_sub(rows), rows);
            self.speculation.propose(&mut running.drafts, &running.tokens, room, &self.latency);
            rows += running.drafts.tokens().len();
            let slot = Slot(index as u16);
            extend(&mut self.blocks, slot, running, 1 + running.drafts.tokens().len(), plan);
            add_entries(slot, running, 1, &mut plan.entries);
            if !running.drafts.tokens().is_empty() {
                // Its state follows with its next step.
                running.followed = running.fed - 1;
            }
            for (position, token) in (running.fed..).zip(running.drafts.tokens()) {
                let position = position as u32;
                plan.entries.push(PlanEntry { slot, position, token: *token, wants_logits: true });
            }
            self.blocks.publish(&mut running.table, &running.tokens[..running.fed]);
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
    fn fill(&mut self, plan: &mut Plan) {
        let mut prompts = self.prompts();
        let answers = || self.slots.iter().flatten().filter(|running| running.is_answering());
        let ready = answers().filter(|running| running.fed < running.tokens.len()).count();
        let turn = answers().count().div_ceil(self.turns);
        let is_alone = turn == 0;
        self.pending = Pending { answers: ready.min(turn), prompts: prompts.len() };
        let has_short = prompts.iter().any(|prompt| prompt.is_short);
        let ahead = if has_short && !is_alone {
            prefill_budget::share_ahead(&mut prompts, &self.latency, self.pending, self.step_tokens)
        } else {
            None
        };
        let count = ahead.unwrap_or(0);
        let fits = count + self.pending.answers <= self.step_tokens;
        if count == 0 || (fits && self.latency.is_cheap_mixed(self.pending.answers, count)) {
            self.add_answers(plan, count);
            self.pending.answers = plan.entries.len();
        }
        self.answers_entered = plan.entries.len();
        if count == 0 {
            let most = self.step_tokens.saturating_sub(plan.entries.len());
            let mixed = if is_alone { most } else { self.latency.prefill_budget_mixed(self.pending, most) };
            // Short prompts wait until enough is saved: half of the share of the other prompts is set aside for that.
            let waits = ahead.is_some();
            prefill_budget::share_mixed(&mut prompts, if waits { mixed / 2 } else { mixed }, |prompt| {
                !(waits && prompt.is_short)
            });
        }
        self.add_prompts(&prompts, plan);
    }

    /// Adds the prompts' shares to the plan.
    fn add_prompts(&mut self, prompts: &[Prefill], plan: &mut Plan) {
        let taken = plan.entries.iter().filter(|entry| entry.wants_logits).count();
        let mut rows = ROWS_MAX.saturating_sub(taken + prompts.len());
        for prompt in prompts.iter().filter(|prompt| prompt.share > 0 || self.has_whole_texts) {
            let Some(running) = self.slots[prompt.index].as_mut() else { continue };
            plan.is_prefill = true;
            let slot = Slot(prompt.index as u16);
            if running.boundary == Some(running.fed) {
                self.states.save(slot, &running.tokens[..running.fed]);
            }
            // A step ends where the state is saved.
            let rest = running.boundary.and_then(|boundary| boundary.checked_sub(running.fed)).filter(|rest| *rest > 0);
            let mut share = prompt.share.min(rest.unwrap_or(usize::MAX));
            if self.has_whole_texts {
                share = running.prompt_length - running.fed;
                if share > self.step_tokens - plan.entries.len() {
                    continue;
                }
            }
            if running.scores_prompt {
                // One row of each prompt is set aside.
                share = share.min(1 + rows);
                rows -= share - 1;
                running.unscored = share;
            }
            extend(&mut self.blocks, slot, running, share, plan);
            add_entries(slot, running, share, &mut plan.entries);
            self.blocks.publish(&mut running.table, &running.tokens[..running.fed]);
        }
    }

    /// How long it takes to compute so many tokens of a prompt, if steps of that kind were measured.
    pub fn prompt_time(&self, tokens: usize) -> Option<Nanoseconds> {
        self.latency.prompt_time(tokens, self.step_tokens)
    }

    /// Records the time of a plan's step.
    pub fn record_time(&mut self, plan: &Plan, time: Nanoseconds) {
        self.latency.charge(self.pending, self.answers_entered, plan.is_prefill, time);
        // A step with logits at many positions has little evidence about others.
        let is_scored =
            plan.is_prefill && plan.entries.windows(2).any(|two| two[0].slot == two[1].slot && two[0].wants_logits);
        if !is_scored {
            self.latency.observe(plan.entries.len(), plan.is_prefill, time);
        }
    }

    /// Moves waiting requests into free slots if all their blocks are available: no sequence can run out of blocks
    /// later. Returns whether a request waits for the vocabulary.
    fn admit(&mut self) -> bool {
        let (mut next, mut prepares) = (0, false);
        while next < self.waiting.len() {
            let Some(index) = self.slots.iter().position(Option::is_none) else { break };
            let request = &self.waiting[next];
            let is_early = request.grammar.is_some() && !self.masks_ready && self.slots.iter().any(Option::is_some);
            prepares |= is_early;
            let waits = !request.sampling.needs_whole_prompt() && self.is_computed_by_another(&request.prompt);
            if is_early || waits {
                next += 1;
                continue;
            }
            let length = (request.prompt.len() + request.max_tokens).min(self.limits.context_length);
            let (scores_prompt, is_whole) = (request.sampling.scores_prompt, request.sampling.needs_whole_prompt());
            let begins = self.states.longest(&request.prompt, |length| self.blocks.has(&request.prompt, length));
            let begins = begins.filter(|_| !is_whole);
            let is_limited = self.states.is_used() || is_whole;
            let known = if is_limited { begins.map_or(0, |(_, length)| length) } else { usize::MAX };
            let Some(source) = self.source(request.key) else {
                next += 1;
                continue;
            };
            let Some(mut table) = self.blocks.take(&request.prompt, length, known) else { break };
            let Some(request) = self.waiting.remove(next) else { break };
            let slot = Slot(index as u16);
            let mut tokens = Vec::with_capacity(length);
            tokens.extend_from_slice(&request.prompt);
            let prompt_length = tokens.len();
            let Admitted { key, sampling, drafts_max, grammar, .. } = request;
            self.awaited.retain(|(known, _)| *known != key);
            let awaits_mask = grammar.is_some();
            let is_constrained = grammar.as_ref().is_some_and(|constraint| !constraint.is_lazy());
            let drafts = self.speculation.begin(drafts_max, is_constrained);
            let boundary = self.states.boundary(prompt_length).filter(|_| self.blocks.shares());
            let opening = Opening { sampling, grammar, cached: table.cached, drafts_max, awaited: None };
            let (fed, phase) = if let Some(source) = source {
                // If nothing arrives, the prompt begins with this state after all.
                begins.iter().for_each(|begin| self.states.touch(begin.0));
                self.begin_awaiting((key, source), slot, &mut table, prompt_length, opening)
            } else {
                begins.iter().for_each(|begin| self.states.restore(begin.0, slot));
                (table.cached, Phase::Opening(opening))
            };
            self.opened += 1;
            self.slots[index] = Some(Running {
                key,
                tokens,
                prompt_length,
                phase,
                awaits_mask,
                fed,
                followed: fed,
                table,
                number: self.opened,
                length,
                drafts,
                boundary,
                scores_prompt,
                unscored: 0,
            });
        }
        prepares
    }

    /// Opens sequences with a step that is sent, in the order in which they got their blocks: a copy may depend on an
    /// earlier one.
    fn open(&mut self, plan: &mut Plan) {
        let opening = self.slots.iter().enumerate().filter_map(|(index, running)| {
            let running = running.as_ref().filter(|running| matches!(running.phase, Phase::Opening(_)))?;
            Some((running.number, index))
        });
        let mut opening: SmallVec<[(u64, usize); 8]> = opening.collect();
        opening.sort_unstable();
        for (_, index) in opening {
            let (slot, Some(running)) = (Slot(index as u16), &mut self.slots[index]) else { continue };
            let phase = std::mem::replace(&mut running.phase, Phase::Open);
            let Phase::Opening(Opening { sampling, grammar, cached, .. }) = phase else { continue };
            plan.blocks.extend(running.table.blocks.iter().map(|block| (slot, *block)));
            plan.windowed.extend(running.table.windowed.places().map(|place| (slot, place.0, place.1)));
            plan.copies.extend(self.blocks.take_copy(&mut running.table));
            plan.opened.push(Opened { slot, sampling, cached: cached as u32, prompt: running.tokens.clone(), grammar });
        }
    }

    /// Whether a prompt that is being computed shares at least one block more with this one than the cache already has:
    /// then it is worth waiting for.
    fn is_computed_by_another(&self, prompt: &[u32]) -> bool {
        let going = self.slots.iter().flatten();
        // A state is saved only at few places.
        let waits = self.blocks.shares() && !self.states.is_used();
        let going = going.filter(|running| waits && !running.is_answering());
        let shared = going.filter_map(|running| {
            let pairs = prompt[..prompt.len() - 1].iter().zip(&running.tokens);
            let shared = pairs.take_while(|(a, b)| a == b).count() / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH;
            // What it has computed is cached already, or fell out of its window and is gone.
            (running.fed < shared).then_some(shared)
        });
        shared.max().is_some_and(|shared| shared > 0 && shared > self.blocks.cached_whole(prompt))
    }
}

/// Allocates the blocks in layers with a window for the next `count` tokens of a sequence. The plan that opens a
/// sequence has all its blocks.
fn extend(blocks: &mut BlockPool, slot: Slot, running: &mut Running, count: usize, plan: &mut Plan) {
    let is_open = matches!(running.phase, Phase::Open);
    let end = running.fed + count;
    blocks.extend(&mut running.table, end, |index, block| {
        if is_open {
            plan.windowed.push((slot, index, block));
        }
    });
}

/// Adds the next `count` tokens of a sequence.
fn add_entries(slot: Slot, running: &mut Running, count: usize, entries: &mut Vec<PlanEntry>) {
    let last = running.tokens.len() - 1;
    entries.extend((running.fed..running.fed + count).map(|position| PlanEntry {
        slot,
        position: position as u32,
        token: running.tokens[position],
        wants_logits: position == last || running.scores_prompt,
    }));
    running.fed += count;
    running.followed = running.fed;
}

#[cfg(test)]
mod tests;
