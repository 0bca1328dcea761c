//! The head: takes requests, schedules steps, samples, and tells how each request goes on.
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::Instant,
};

use shared::{
    ids::{Rank, Slot},
    latency::RequestTimes,
    protocol::{
        error::{Fault, FaultKind},
        frame::FrameKind,
        message::{FinishReason, Finished, Generate, TokenEvent, TokenLogprob},
    },
    telemetry::RankTotals,
    tokenizer::Tokenizer,
    units::Nanoseconds,
};

use super::{
    output::Output,
    plan::{Limits, Plan},
    sample::{Answer, Chooser, Chosen, Step, Summary},
    schedule::{Admitted, RequestKey, Scheduler},
    step::{Candidates, EngineError, Stepper},
};
use crate::node::{EngineCommand, Progress};

/// A request from its arrival to its end.
#[derive(Debug)]
struct Request {
    output: Output,
    prompt_length: usize,
    max_tokens: usize,
    received: Instant,
    times: RequestTimes,
    ranks: Vec<RankTotals>,
    sampling_rounds: u32,
}

/// The head of a replica.
pub struct Head<'a> {
    node: String,
    limits: Limits,
    tokenizer: Tokenizer,
    stepper: Stepper,
    scheduler: Scheduler,
    requests: BTreeMap<RequestKey, Request>,
    step: u64,
    sink: &'a dyn Fn(Progress),
    buffers: Buffers,
}

/// What a token needs, kept from token to token: decoding allocates nothing.
#[derive(Debug, Default)]
struct Buffers {
    plan: Plan,
    /// Of the latest step: of each rank, own first, one for each token that wants logits.
    summaries: Vec<Summary>,
    totals: Vec<RankTotals>,
    answers: Vec<Answer>,
    chooser: Chooser,
    payload: Vec<u8>,
}

impl<'a> Head<'a> {
    /// A head without requests. `sink` is told how they go on.
    pub fn new(
        (node, limits): (String, Limits),
        tokenizer: Tokenizer,
        stepper: Stepper,
        sink: &'a dyn Fn(Progress),
    ) -> Self {
        let scheduler = Scheduler::new(limits);
        let (requests, buffers) = (BTreeMap::new(), Buffers::default());
        Self { node, limits, tokenizer, stepper, scheduler, requests, step: 0, sink, buffers }
    }

    /// Gives the rank back, links and all.
    pub fn into_stepper(self) -> Stepper {
        self.stepper
    }

    /// Serves until told to stop.
    ///
    /// # Errors
    /// Anything that ends the topology.
    pub fn serve(&mut self, orders: &Receiver<EngineCommand>) -> Result<(), EngineError> {
        loop {
            self.set_busy();
            let order = if self.scheduler.has_work() {
                orders.try_recv()
            } else {
                orders.recv().map_err(|_| TryRecvError::Disconnected)
            };
            match order {
                Ok(EngineCommand::Submit(key, generate)) => self.submit(key, &generate),
                Ok(EngineCommand::Cancel(key)) => self.cancel(key),
                Ok(EngineCommand::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    let mut plan = std::mem::take(&mut self.buffers.plan);
                    if self.scheduler.next_plan(&mut plan) {
                        self.run(&plan)?;
                    }
                    self.buffers.plan = plan;
                }
            }
        }
    }

    fn set_busy(&mut self) {
        let busy = self.scheduler.has_work();
        if let Some(links) = self.stepper.group.links() {
            links.abort().set_busy(busy);
        }
    }

    fn submit(&mut self, key: RequestKey, generate: &Arc<Generate>) {
        let received = Instant::now();
        let prompt = self.tokenizer.encode(&generate.prompt, true, true);
        let context = self.limits.context_length;
        let in_vocabulary = prompt.iter().all(|id| (*id as usize) < self.limits.vocabulary_length);
        let refusal = match prompt.len() {
            0 => Some(FaultKind::PromptEmpty),
            tokens if tokens > context => {
                Some(FaultKind::PromptTooLong { tokens: tokens as u32, context: context as u32 })
            }
            _ if !in_vocabulary => Some(FaultKind::Internal { reason: "a token id beyond the vocabulary".into() }),
            _ => None,
        };
        if let Some(kind) = refusal {
            return (self.sink)(Progress::Refused(key, Fault::new(&self.node, kind)));
        }
        let max_tokens = (generate.max_tokens as usize).min(context);
        let times = RequestTimes { prompt_tokens: prompt.len() as u32, ..RequestTimes::default() };
        let world = self.world();
        let request = Request {
            output: Output::new(&self.tokenizer, generate.stop.clone()),
            prompt_length: prompt.len(),
            max_tokens,
            received,
            times,
            ranks: vec![RankTotals::default(); world],
            sampling_rounds: 0,
        };
        self.requests.insert(key, request);
        (self.sink)(Progress::Started(key, prompt.clone()));
        self.scheduler.submit(Admitted { key, prompt, max_tokens, sampling: generate.sampling.clone() });
    }

    fn cancel(&mut self, key: RequestKey) {
        if self.requests.contains_key(&key) {
            self.finish(key, FinishReason::Cancelled);
        }
    }

    fn world(&mut self) -> usize {
        self.stepper.group.links().map_or(1, |links| links.stage().len())
    }

    /// One step on all ranks, and the tokens that come of it.
    fn run(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.step += 1;
        let now = Instant::now();
        for opened in &plan.opened {
            if let Some(request) = self.scheduler.key(opened.slot).and_then(|key| self.requests.get_mut(&key)) {
                request.times.dispatched = since(request.received, now);
            }
        }
        let group = &mut self.stepper.group;
        group.begin_step(self.step);
        if !plan.continues {
            group.accounting.idle();
        }
        group.accounting.begin_step(plan.is_prefill, plan.entries.len() as u32);
        if group.links().is_some() {
            self.buffers.payload.clear();
            plan.encode(&mut self.buffers.payload);
            self.tell_all(FrameKind::Plan, 0)?;
        }
        self.stepper.step(plan, &mut self.buffers.summaries)?;
        let count = self.buffers.summaries.len();
        if count == 0 {
            return Ok(());
        }
        self.gather()?;
        self.add_totals(plan);
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits);
        for (place, entry) in wanted.enumerate() {
            let chosen = self.choose((place, count), entry.slot)?;
            self.sampled(entry.slot, &chosen);
        }
        Ok(())
    }

    /// Sends the payload in the buffer to all other ranks.
    fn tell_all(&mut self, kind: FrameKind, sequence: u32) -> Result<(), EngineError> {
        for rank in 1..self.world() {
            self.stepper.group.send(Rank(rank as u16), kind, sequence, &self.buffers.payload)?;
        }
        Ok(())
    }

    /// Adds the summaries of all other ranks to the own ones, and where the time of each rank went.
    fn gather(&mut self) -> Result<(), EngineError> {
        let Self { stepper, buffers, .. } = self;
        let Buffers { summaries, totals, .. } = buffers;
        let count = summaries.len();
        totals.clear();
        totals.push(RankTotals::default());
        let mut broken = None;
        let sequence = stepper.group.next_sequence();
        stepper.group.gather(FrameKind::Candidates, sequence, |_, payload| {
            match Candidates::decode(payload, count, summaries) {
                Ok(rank) => totals.push(rank),
                Err(error) => broken = Some(error),
            }
        })?;
        if let Some(error) = broken {
            return Err(error);
        }
        stepper.group.accounting.close_compute();
        totals[0] = stepper.group.accounting.take_totals();
        Ok(())
    }

    /// The time of a step counts for every request that has a token in it, once.
    fn add_totals(&mut self, plan: &Plan) {
        let slots = plan.entries.iter().map(|entry| entry.slot);
        let begins = slots.clone().zip(std::iter::once(None).chain(slots.map(Some)));
        for (slot, _) in begins.filter(|(slot, before)| Some(*slot) != *before) {
            let Some(request) = self.scheduler.key(slot).and_then(|key| self.requests.get_mut(&key)) else { continue };
            for (sum, rank) in request.ranks.iter_mut().zip(&self.buffers.totals) {
                sum.prefill.add(&rank.prefill);
                sum.decode.add(&rank.decode);
            }
        }
    }

    /// Draws a token from the summaries of all ranks, asking further rounds where they do not suffice. Its summary is at
    /// `place` of the `count` that each rank has.
    fn choose(&mut self, (place, count): (usize, usize), slot: Slot) -> Result<Chosen, EngineError> {
        let broken = || EngineError::Message(FrameKind::Candidates);
        let sequence = self.stepper.sequences.get(slot).ok_or_else(broken)?;
        let position = sequence.tokens.len() as u32 - 1;
        let Buffers { chooser, summaries, .. } = &mut self.buffers;
        let summaries = summaries.iter().skip(place).step_by(count);
        let mut step = chooser.begin(place, &sequence.sampling, position, summaries)?;
        loop {
            let query = match step {
                Step::Done(chosen) => return Ok(chosen),
                Step::Ask(query) => query,
            };
            self.buffers.payload.clear();
            query.encode(&mut self.buffers.payload);
            let number = self.stepper.group.next_sequence();
            self.tell_all(FrameKind::Query, number)?;
            let own = self.stepper.slice(place).ok_or_else(broken)?.answer(&query)?;
            let Buffers { chooser, answers, .. } = &mut self.buffers;
            answers.clear();
            answers.push(own);
            let mut wrong = None;
            self.stepper.group.gather(FrameKind::Answer, number, |_, payload| match Answer::decode(payload) {
                Ok(answer) => answers.push(answer),
                Err(error) => wrong = Some(error),
            })?;
            if let Some(error) = wrong {
                return Err(error.into());
            }
            step = chooser.answer(answers)?;
        }
    }

    /// A token was drawn for a slot: text, events, and the end of the request if this is it.
    fn sampled(&mut self, slot: Slot, chosen: &Chosen) {
        let Some(key) = self.scheduler.key(slot) else { return };
        let Some(request) = self.requests.get_mut(&key) else { return };
        let now = since(request.received, Instant::now());
        request.times.last_token = now;
        request.times.sampled_tokens += 1;
        request.sampling_rounds += chosen.rounds;
        if request.times.sampled_tokens == 1 {
            request.times.first_token = now;
        }
        if self.tokenizer.is_end(chosen.id) {
            return self.finish(key, FinishReason::Stop);
        }
        let (text, stopped) = request.output.push(&self.tokenizer, chosen.id);
        let sampled = request.times.sampled_tokens as usize;
        let reason = match () {
            () if stopped => Some(FinishReason::Stop),
            () if sampled >= request.max_tokens => Some(FinishReason::Length),
            () if request.prompt_length + sampled >= self.limits.context_length => Some(FinishReason::Context),
            () => None,
        };
        let logprob = |(id, logprob): &(u32, f32)| TokenLogprob {
            id: *id,
            text: String::from_utf8_lossy(&self.tokenizer.piece(*id, true)).into_owned(),
            logprob: *logprob,
        };
        let logprobs = chosen.top_logprobs.iter().map(logprob).collect();
        (self.sink)(Progress::Token(key, TokenEvent { id: Some(chosen.id), text, logprobs }));
        match reason {
            Some(reason) => self.finish(key, reason),
            None => self.scheduler.sampled(slot, chosen.id),
        }
    }

    /// The end of a request: the text that was held back, then the figures.
    fn finish(&mut self, key: RequestKey, reason: FinishReason) {
        self.scheduler.end(key);
        let Some(request) = self.requests.remove(&key) else { return };
        let text = request.output.finish();
        if !text.is_empty() {
            (self.sink)(Progress::Token(key, TokenEvent { id: None, text: text.into(), logprobs: Vec::new() }));
        }
        let (times, ranks, sampling_rounds) = (request.times, request.ranks, request.sampling_rounds);
        (self.sink)(Progress::Finished(key, Box::new(Finished { reason, times, ranks, sampling_rounds })));
    }
}

fn since(begin: Instant, end: Instant) -> Nanoseconds {
    Nanoseconds(end.duration_since(begin).as_nanos() as u64)
}
