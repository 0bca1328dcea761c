//! The head's decisions: who runs in which slot with which KV blocks, and what goes into the next step. Pure.
use std::collections::VecDeque;

use shared::{
    ids::Slot,
    sampling::SamplingParameters,
    topology::{layout::STEP_TOKENS_MAX, spec::KV_BLOCK_LENGTH},
};

use super::plan::{Limits, Opened, Plan, PlanEntry};

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

/// A request whose prompt is to be computed elsewhere: it has its slot and its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Its name.
    pub key: RequestKey,
    /// Its place.
    pub slot: Slot,
    /// Its blocks.
    pub blocks: Vec<u32>,
}

/// Where the prompt of a running sequence is computed.
#[derive(Debug, PartialEq)]
enum Prefill {
    /// Here; the ranks know the sequence.
    Here,
    /// Elsewhere; the ranks do not know the sequence yet.
    Elsewhere(SamplingParameters),
    /// It was, or is to be here after all: the next plan opens the sequence.
    Back(SamplingParameters),
}

#[derive(Debug)]
struct Running {
    key: RequestKey,
    /// Prompt, then sampled tokens.
    tokens: Vec<u32>,
    /// Tokens that went through the layers.
    fed: usize,
    blocks: Vec<u32>,
    prefill: Prefill,
}

impl Running {
    /// Whether its prompt is through: it feeds one sampled token at a time, or waits for the next.
    fn is_answering(&self) -> bool {
        self.fed > 0 && self.fed + 1 >= self.tokens.len()
    }
}

/// Slots, queue and free KV blocks of a replica.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Admitted>,
    slots: Vec<Option<Running>>,
    free: Vec<u32>,
    closed: Vec<Slot>,
    /// Requests whose prompts are to be computed elsewhere.
    elsewhere: Vec<RequestKey>,
    /// Those of them that got their slots since they were asked for.
    departures: Vec<Departure>,
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
        let free = (0..limits.blocks as u32).rev().collect();
        Self {
            limits,
            waiting: VecDeque::new(),
            slots,
            free,
            closed: Vec::new(),
            elsewhere: Vec::new(),
            departures: Vec::new(),
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

    /// Puts a request at the end of the queue whose prompt is to be computed elsewhere.
    pub fn submit_elsewhere(&mut self, request: Admitted) {
        self.elsewhere.push(request.key);
        self.submit(request);
    }

    /// A request that got its slot and waits for its prompt to be computed elsewhere; each is told once.
    pub fn departure(&mut self) -> Option<Departure> {
        self.departures.pop()
    }

    /// The tokens of a slot: prompt, then sampled ones.
    pub fn tokens(&self, slot: Slot) -> &[u32] {
        self.slots.get(slot.index()).and_then(Option::as_ref).map_or(&[], |running| &running.tokens)
    }

    /// Keys and values of so many tokens of a slot are there (none: its prompt is computed here after all): it goes on from there.
    pub fn come_back(&mut self, slot: Slot, tokens: usize) {
        let Some(running) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) else { return };
        if let Prefill::Elsewhere(sampling) = &running.prefill {
            running.prefill = Prefill::Back(sampling.clone());
            running.fed = tokens;
        }
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
        self.elsewhere.retain(|known| *known != key);
        self.departures.retain(|departure| departure.key != key);
        let holds = |place: &Option<Running>| place.as_ref().is_some_and(|running| running.key == key);
        if let Some(index) = self.slots.iter().position(holds)
            && let Some(running) = self.slots[index].take()
        {
            self.free.extend(running.blocks.iter().copied().rev());
            // What no rank knows is not closed.
            self.closed.extend((running.prefill == Prefill::Here).then_some(Slot(index as u16)));
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
                if running.prefill != Prefill::Here || running.fed == running.tokens.len() || (answering && turn == 0) {
                    continue;
                }
                turn -= usize::from(answering);
                plan.is_prefill |= !answering;
                enter(Slot(index as u16), running, self.step_tokens, &mut plan.entries);
            }
        }
        if plan.entries.is_empty() {
            return false;
        }
        // A slot that was closed and is opened again in one plan is closed first on every rank.
        plan.closed.append(&mut self.closed);
        true
    }

    /// Moves waiting requests into free slots while their blocks are free: no sequence can run out of blocks later.
    fn open(&mut self, plan: &mut Plan) {
        self.reopen(plan);
        while let Some(request) = self.waiting.front() {
            let Some(index) = self.slots.iter().position(Option::is_none) else { return };
            let length = (request.prompt.len() + request.max_tokens).min(self.limits.context_length);
            let count = length.div_ceil(KV_BLOCK_LENGTH);
            if count > self.free.len() {
                return;
            }
            let Some(request) = self.waiting.pop_front() else { return };
            let slot = Slot(index as u16);
            let blocks = self.free.split_off(self.free.len() - count);
            let (key, mut tokens) = (request.key, Vec::with_capacity(length));
            tokens.extend_from_slice(&request.prompt);
            let is_elsewhere = self.elsewhere.iter().position(|known| *known == key);
            let prefill = if let Some(place) = is_elsewhere {
                self.elsewhere.swap_remove(place);
                self.departures.push(Departure { key, slot, blocks: blocks.clone() });
                Prefill::Elsewhere(request.sampling)
            } else {
                plan.blocks.extend(blocks.iter().map(|block| (slot, *block)));
                plan.opened.push(Opened { slot, sampling: request.sampling, prompt: request.prompt });
                Prefill::Here
            };
            self.slots[index] = Some(Running { key, tokens, fed: 0, blocks, prefill });
        }
    }

    /// Opens sequences whose prompts were to be computed elsewhere.
    fn reopen(&mut self, plan: &mut Plan) {
        for (index, running) in self.slots.iter_mut().enumerate() {
            let (slot, Some(running)) = (Slot(index as u16), running) else { continue };
            if let Prefill::Back(sampling) = &running.prefill {
                plan.blocks.extend(running.blocks.iter().map(|block| (slot, *block)));
                plan.opened.push(Opened { slot, sampling: sampling.clone(), prompt: running.tokens.clone() });
                running.prefill = Prefill::Here;
            }
        }
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
mod tests {
    use super::{super::plan::Sequences, *};

    const LIMITS: Limits = Limits { slots: 2, blocks: 9, context_length: 256, vocabulary_length: 100 };

    fn request(key: u64, prompt: usize, max_tokens: usize) -> Admitted {
        let sampling = SamplingParameters::default();
        Admitted { key: RequestKey(key), prompt: vec![key as u32; prompt], max_tokens, sampling }
    }

    fn next(scheduler: &mut Scheduler) -> Option<Plan> {
        let mut plan = Plan::default();
        scheduler.next_plan(&mut plan).then_some(plan)
    }

    #[test]
    fn prompts_go_in_chunks_mixed_with_running_answers_and_every_plan_can_be_followed() {
        let mut scheduler = Scheduler::new(LIMITS);
        let mut follower = Sequences::new(LIMITS);
        let mut step = |scheduler: &mut Scheduler| {
            let plan = next(scheduler).expect("there is work");
            follower.apply(&plan).expect("the head's plan can be followed");
            let mut payload = Vec::new();
            plan.encode(&mut payload);
            let mut decoded = Plan { closed: vec![Slot(9)], ..Plan::default() };
            assert_eq!((decoded.decode(&payload), &decoded), (Ok(()), &plan));
            (0..payload.len()).for_each(|end| assert!(decoded.decode(&payload[..end]).is_err(), "cut at {end}"));
            payload.push(0);
            assert!(decoded.decode(&payload).is_err());
            plan
        };
        scheduler.submit(request(1, 3, 5));
        let first = step(&mut scheduler);
        assert_eq!((first.entries.len(), first.is_prefill, first.continues), (3, true, false));
        assert_eq!(first.entries.iter().filter(|entry| entry.wants_logits).count(), 1);
        scheduler.sampled(Slot(0), 7);
        scheduler.submit(request(2, 200, 5));
        let second = step(&mut scheduler);
        assert_eq!(second.entries.len(), STEP_TOKENS_MAX);
        assert_eq!(second.entries[0], PlanEntry { slot: Slot(0), position: 3, token: 7, wants_logits: true });
        scheduler.sampled(Slot(0), 8);
        scheduler.end(RequestKey(1));
        let third = step(&mut scheduler);
        assert_eq!((third.closed.as_slice(), third.entries.len()), (&[Slot(0)][..], 200 - 127));
        assert!(third.continues && third.entries.iter().all(|entry| entry.slot == Slot(1)));
        scheduler.end(RequestKey(2));
        assert!(!scheduler.has_work());
        scheduler.submit(request(3, 3, 5));
        assert!(!step(&mut scheduler).continues, "the time in between was idle");
        scheduler.end(RequestKey(3));
        assert!(next(&mut scheduler).is_none() && !scheduler.has_work());
    }

    #[test]
    fn a_request_waits_for_slots_and_blocks_and_none_are_lost() {
        let mut scheduler = Scheduler::new(LIMITS);
        (1..=3).for_each(|key| scheduler.submit(request(key, 100, 28)));
        for round in 0..3 {
            // Whose prompt is through goes on with a token.
            scheduler.sampled(Slot(0), 7);
            let plan = next(&mut scheduler).expect("there is work");
            let opened: Vec<Slot> = plan.opened.iter().map(|opened| opened.slot).collect();
            assert_eq!(opened.len(), if round == 0 { 2 } else { usize::from(round == 1) }, "round {round}");
            scheduler.end(RequestKey(round + 1));
        }
        assert!(!scheduler.has_work());
        assert_eq!(scheduler.free.len(), LIMITS.blocks);
    }

    #[test]
    fn answers_take_turns_in_a_pipeline_and_a_step_without_tokens_is_none() {
        let limits = Limits { slots: 5, blocks: 10, ..LIMITS };
        let mut scheduler = Scheduler::new(limits).in_turns(2, 64);
        (1..=5).for_each(|key| scheduler.submit(request(key, 2, 5)));
        let slots = |plan: Option<Plan>| {
            plan.map_or(Vec::new(), |plan| plan.entries.iter().map(|entry| entry.slot.0).collect())
        };
        assert_eq!(next(&mut scheduler).map(|plan| plan.entries.len()), Some(10), "prompts go at once");
        assert_eq!(next(&mut scheduler), None, "all wait for their tokens");
        (0..5).for_each(|slot| scheduler.sampled(Slot(slot), 7));
        scheduler.end(RequestKey(2));
        let (first, second) = (next(&mut scheduler), next(&mut scheduler));
        assert_eq!(first.as_ref().map(|plan| plan.closed.clone()), Some(vec![Slot(1)]));
        assert_eq!((slots(first), slots(second)), (vec![0, 2], vec![3, 4]));
        scheduler.end(RequestKey(1));
        assert_eq!(next(&mut scheduler), None, "what ended is told with the next step");
        scheduler.sampled(Slot(2), 8);
        let third = next(&mut scheduler).expect("one goes on");
        assert_eq!((third.closed.as_slice(), third.continues), (&[Slot(0)][..], true));
    }

    #[test]
    fn a_prompt_that_is_computed_elsewhere_holds_its_place_and_goes_on_behind_its_last_but_one_token() {
        let mut scheduler = Scheduler::new(LIMITS);
        let mut follower = Sequences::new(LIMITS);
        scheduler.submit_elsewhere(request(1, 70, 5));
        scheduler.submit(request(2, 2, 5));
        let plan = next(&mut scheduler).expect("the other runs");
        assert_eq!((plan.opened.len(), plan.entries.len(), plan.entries[0].slot), (1, 2, Slot(1)));
        follower.apply(&plan).expect("the head's plan can be followed");
        let departure = scheduler.departure().expect("it has its slot");
        assert_eq!((departure.key, departure.slot, departure.blocks.len()), (RequestKey(1), Slot(0), 3));
        assert_eq!((scheduler.departure(), next(&mut scheduler)), (None, None), "each is told once, and waits");
        scheduler.sampled(Slot(1), 7);
        scheduler.come_back(Slot(0), 69);
        let plan = next(&mut scheduler).expect("both go on");
        let entries: Vec<_> = plan.entries.iter().map(|entry| (entry.slot.0, entry.position)).collect();
        assert_eq!((entries, plan.is_prefill), (vec![(0, 69), (1, 2)], false));
        follower.apply(&plan).expect("the head's plan can be followed");
        assert_eq!(follower.batch().1[0], departure.blocks);
    }

    #[test]
    fn a_prompt_that_was_to_be_computed_elsewhere_is_computed_here_or_ends_without_a_trace() {
        let mut scheduler = Scheduler::new(LIMITS);
        let mut follower = Sequences::new(LIMITS);
        (1..=2).for_each(|key| scheduler.submit_elsewhere(request(key, 40, 5)));
        assert_eq!(next(&mut scheduler), None);
        let slots: Vec<Slot> = std::iter::from_fn(|| scheduler.departure()).map(|departure| departure.slot).collect();
        assert_eq!(slots.len(), 2);
        scheduler.end(RequestKey(1));
        scheduler.come_back(Slot(1), 0);
        let plan = next(&mut scheduler).expect("the other is computed here");
        assert_eq!((plan.closed.len(), plan.opened.len(), plan.entries.len()), (0, 1, 40));
        follower.apply(&plan).expect("the head's plan can be followed");
        scheduler.end(RequestKey(2));
        assert!(!scheduler.has_work());
        assert_eq!(scheduler.free.len(), LIMITS.blocks);
    }

    #[test]
    fn a_plan_outside_the_limits_is_refused() {
        let good = |mutate: &dyn Fn(&mut Plan)| {
            let mut scheduler = Scheduler::new(LIMITS);
            scheduler.submit(request(1, 3, 5));
            let mut plan = next(&mut scheduler).expect("there is work");
            mutate(&mut plan);
            Sequences::new(LIMITS).apply(&plan)
        };
        assert_eq!(good(&|_| {}), Ok(()));
        assert!(good(&|plan| plan.entries[0].slot = Slot(9)).is_err());
        assert!(good(&|plan| plan.entries[0].position = 300).is_err());
        assert!(good(&|plan| plan.entries[1].token = 100).is_err());
        assert!(good(&|plan| plan.blocks[0].1 = 9).is_err());
        assert!(good(&|plan| plan.blocks.clear()).is_err());
        assert!(good(&|plan| plan.opened[0].prompt[1] = 100).is_err());
        assert!(good(&|plan| plan.opened[0].slot = Slot(2)).is_err());
        assert!(good(&|plan| plan.closed.push(Slot(1))).is_err());
        assert!(good(&|plan| plan.entries.clear()).is_err());
    }
}
