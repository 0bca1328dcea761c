//! The head: accepts requests, schedules steps and reports the progress of each request. In a single-stage replica it
//! samples, too; otherwise it runs the next steps while earlier ones are in flight in the later stages.
pub mod transfers;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::{Duration, Instant},
};

use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind},
    ids::Slot,
    latency::RequestTimes,
    limits::SLOTS_MAX,
    units::Nanoseconds,
};
use protocol::{
    bench::BenchLinks,
    frame::FrameKind,
    message::{Finished, TokenEvent, TokenLogprob},
};
use smallvec::SmallVec;
use telemetry::RankTotals;
use tokenizer::Tokenizer;

use super::{
    error::EngineError,
    output::Output,
    plan::{Limits, Plan},
    port::EngineOrder,
    sample::Chosen,
    sampler::Sampler,
    schedule::{RequestKey, Scheduler},
    step::Stepper,
    transfer::Elsewhere,
};
use crate::{collective::Links, port::Progress};

/// Most time spent on accepting new requests between two steps, so that running answers do not wait for them.
const TAKING_IN: Duration = Duration::from_millis(2);

/// A request from arrival to end.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) output: Output,
    pub(super) prompt_length: usize,
    /// Number of answer tokens that came with the request (resumed answers).
    pub(super) resumed: usize,
    /// Most tokens in the answer.
    pub(super) max_tokens: usize,
    pub(super) ignores_end: bool,
    pub(super) received: Instant,
    pub(super) times: RequestTimes,
    pub(super) ranks: Vec<RankTotals>,
    pub(super) sampling_rounds: u32,
}

/// An in-flight step whose tokens have not arrived.
#[derive(Debug)]
struct Flight {
    step: u64,
    /// Requests with a token in the step.
    requests: PerSlot<RequestKey>,
    /// Slots that expect tokens, in the step's order, with their request and the most tokens each may receive.
    wanted: PerSlot<(Slot, RequestKey, u32)>,
}

impl Flight {
    /// Whether these tokens belong to the slots that expect some, in the same order.
    fn fits(&self, tokens: &[(Slot, Chosen)]) -> bool {
        let mut runs = tokens.chunk_by(|a, b| a.0 == b.0);
        let fits = |(slot, _, rows): &(Slot, RequestKey, u32)| {
            runs.next().is_some_and(|run| run[0].0 == *slot && run.len() <= *rows as usize)
        };
        self.wanted.iter().all(fits) && runs.next().is_none()
    }
}

type PerSlot<T> = SmallVec<[T; SLOTS_MAX as usize]>;

/// The head of a replica.
pub struct Head<'a> {
    pub(super) node: String,
    pub(super) limits: Limits,
    /// Whether speculative decoding is on.
    pub(super) drafts: bool,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) stepper: Stepper,
    pub(super) scheduler: Scheduler,
    pub(super) requests: BTreeMap<RequestKey, Request>,
    step: u64,
    pub(super) sink: &'a dyn Fn(Progress),
    /// Remote prefill, if the topology's groups have roles.
    pub(super) elsewhere: Option<Elsewhere>,
    /// Oldest first; at most one step for each slot.
    flights: VecDeque<Flight>,
    sampler: Sampler,
    plan: Plan,
    payload: Vec<u8>,
}

impl<'a> Head<'a> {
    /// Creates a head without requests. `sink` receives their progress.
    pub fn new(
        (node, limits): (String, Limits),
        tokenizer: Arc<Tokenizer>,
        stepper: Stepper,
        sink: &'a dyn Fn(Progress),
    ) -> Self {
        let scheduler = Scheduler::new(limits);
        let scheduler = scheduler.in_turns(usize::from(stepper.place.stages), stepper.place.step_tokens());
        let (requests, flights) = (BTreeMap::new(), VecDeque::with_capacity(limits.slots));
        let (sampler, plan, payload) = (Sampler::default(), Plan::default(), Vec::new());
        let (step, drafts, elsewhere) = (0, true, None);
        Self {
            node,
            limits,
            drafts,
            tokenizer,
            stepper,
            scheduler,
            requests,
            step,
            sink,
            elsewhere,
            flights,
            sampler,
            plan,
            payload,
        }
    }

    /// Enables remote prefill, for a topology whose groups have roles.
    pub fn beside(self, elsewhere: Option<Elsewhere>) -> Self {
        Self { elsewhere, ..self }
    }

    /// Disables speculative decoding and the prefix cache, for benchmarks.
    pub fn plain(self) -> Self {
        let scheduler = self.scheduler.without_sharing();
        Self { drafts: false, scheduler, ..self }
    }

    /// Returns the rank together with its links.
    pub fn into_stepper(self) -> Stepper {
        self.stepper
    }

    /// Serves until a stop order arrives.
    ///
    /// # Errors
    /// Anything that ends the topology.
    pub fn serve(&mut self, orders: &Receiver<EngineOrder>) -> Result<(), EngineError> {
        let mut taking_in = Duration::ZERO;
        loop {
            self.set_busy();
            let order = if taking_in >= TAKING_IN && self.has_work() {
                Err(TryRecvError::Empty)
            } else if self.has_work() {
                orders.try_recv()
            } else {
                self.stepper.group.links().map_or(Ok(()), Links::flush)?;
                orders.recv().map_err(|_| TryRecvError::Disconnected)
            };
            match order {
                Ok(EngineOrder::Begin(key, prepared)) => {
                    let begun = Instant::now();
                    self.begin(key, *prepared);
                    taking_in += begun.elapsed();
                }
                Ok(EngineOrder::Cancel(key)) => self.cancel(key),
                Ok(EngineOrder::Withdrawn(key)) => self.withdrawn(key),
                Ok(EngineOrder::Across(replica, message)) => self.across(replica, &message),
                Ok(EngineOrder::AcrossLost(replica)) => self.across_lost(replica),
                Ok(EngineOrder::BenchLinks(key, wanted)) => self.bench_links(key, &wanted)?,
                Ok(EngineOrder::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    taking_in = Duration::ZERO;
                    self.advance()?;
                }
            }
        }
    }

    /// Whether requests exist, or steps are in flight: later stages finish a step even if its requests were cancelled.
    fn has_work(&self) -> bool {
        self.scheduler.has_work() || !self.flights.is_empty() || self.is_transferring()
    }

    /// Whether a step's tokens are still expected.
    pub(super) fn is_in_flight(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The timing record of a request.
    pub(super) fn times(&mut self, key: RequestKey) -> Option<&mut RequestTimes> {
        self.requests.get_mut(&key).map(|request| &mut request.times)
    }

    /// Arrival time of a request.
    pub(super) fn received(&self, key: RequestKey) -> Option<Instant> {
        self.requests.get(&key).map(|request| request.received)
    }

    /// Runs the next step; if every running sequence waits for a token, processes the oldest in-flight step's tokens.
    fn advance(&mut self) -> Result<(), EngineError> {
        self.attend()?;
        while !self.flights.is_empty() && self.tokens_are_there() {
            self.land()?;
        }
        self.scheduler.take_grammars(self.stepper.grammars.is_ready());
        let mut plan = std::mem::take(&mut self.plan);
        let is_planned = self.scheduler.next_plan(&mut plan);
        self.depart()?;
        let result = if is_planned { self.run(&plan) } else { Ok(()) };
        self.plan = plan;
        if !is_planned && self.flights.is_empty() {
            self.rest()?;
        }
        if is_planned || self.flights.is_empty() { result } else { self.land() }
    }

    fn set_busy(&mut self) {
        if let Some(kv) = self.scheduler.kv_changed() {
            (self.sink)(Progress::Kv(kv));
        }
        let busy = self.has_work();
        if let Some(links) = self.stepper.group.links() {
            links.abort().set_busy(busy);
        }
    }

    fn cancel(&mut self, key: RequestKey) {
        if self.requests.contains_key(&key) {
            self.finish(key, FinishReason::Cancelled);
        }
    }

    /// Benchmarks the all-reduce algorithms of this stage. Requests that arrive meanwhile wait.
    fn bench_links(&mut self, key: RequestKey, wanted: &BenchLinks) -> Result<(), EngineError> {
        // The later stages still finish steps of cancelled requests.
        while self.has_work() {
            self.advance()?;
        }
        if self.stepper.group.omits_exchange() {
            let reason = "all-reduces are disabled by --omit-exchange".into();
            let fault = Fault::new(&self.node, FaultKind::BenchFailed { reason });
            (self.sink)(Progress::Refused(key, fault));
            return Ok(());
        }
        if let Some(links) = self.stepper.group.links() {
            links.abort().set_busy(true);
        }
        let found = self.stepper.group.bench(wanted, &mut self.step)?;
        (self.sink)(Progress::LinksBenched(key, found));
        Ok(())
    }

    /// Number of ranks in the replica.
    pub(super) fn world(&self) -> usize {
        usize::from(self.stepper.place.stages) * self.stepper.place.group.len()
    }

    /// Runs one step on the ranks of this stage. If this is also the last stage, the tokens are available at once.
    fn run(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.step += 1;
        let now = Instant::now();
        for opened in &plan.opened {
            let Some(key) = self.scheduler.key(opened.slot) else { continue };
            (self.sink)(Progress::Dispatched(key));
            if let Some(request) = self.requests.get_mut(&key) {
                // A request with a remote prefill left the queue when the prefill was dispatched.
                if request.times.transfer.tokens == 0 {
                    request.times.dispatched = since(request.received, now);
                    request.times.cached_tokens = opened.cached.min(request.prompt_length as u32);
                }
            }
        }
        let group = &mut self.stepper.group;
        group.begin_step(self.step);
        if !plan.continues {
            group.accounting.idle();
        }
        group.accounting.begin_step(plan.is_prefill, plan.entries.len() as u32);
        self.announce(plan)?;
        if self.stepper.group.links().is_some() {
            self.tell(plan)?;
        }
        let has_tokens = self.sampler.step(&mut self.stepper, plan)?;
        self.scheduler.took(plan, since(now, Instant::now()));
        let flight = self.flight(plan);
        if has_tokens {
            self.landed(&flight);
        } else if !flight.wanted.is_empty() {
            self.flights.push_back(flight);
        }
        Ok(())
    }

    /// Sends a plan to the ranks of this stage and to the leaders of the others.
    fn tell(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.payload.clear();
        plan.encode(&mut self.payload);
        let payload = std::mem::take(&mut self.payload);
        let told = self.tell_all(FrameKind::Plan, &payload);
        self.payload = payload;
        told
    }

    /// Sends a message to the ranks of this stage and to the leaders of the others, which forward it.
    pub(super) fn tell_all(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), EngineError> {
        let Stepper { group, place, .. } = &mut self.stepper;
        group.tell(kind, 0, payload)?;
        for leader in place.later_leaders() {
            group.send(leader, kind, 0, payload)?;
        }
        Ok(())
    }

    fn flight(&self, plan: &Plan) -> Flight {
        let key = |slot: Slot| self.scheduler.key(slot);
        let mut requests: PerSlot<RequestKey> = PerSlot::new();
        let mut latest = None;
        for slot in plan.entries.iter().map(|entry| entry.slot) {
            if latest.replace(slot) != Some(slot) {
                requests.extend(key(slot).filter(|key| !requests.contains(key)));
            }
        }
        let mut wanted: PerSlot<(Slot, RequestKey, u32)> = PerSlot::new();
        for slot in plan.entries.iter().filter(|entry| entry.wants_logits).map(|entry| entry.slot) {
            match wanted.last_mut().filter(|(latest, ..)| *latest == slot) {
                Some((.., rows)) => *rows += 1,
                None => wanted.extend(key(slot).map(|key| (slot, key, 1))),
            }
        }
        Flight { step: self.step, requests, wanted }
    }

    /// Whether the tokens of the oldest in-flight step have arrived.
    fn tokens_are_there(&mut self) -> bool {
        let sampler = self.stepper.place.sampler();
        self.stepper.group.links().is_some_and(|links| links.has_front(sampler))
    }

    /// Receives and processes the tokens of the oldest in-flight step.
    pub(super) fn land(&mut self) -> Result<(), EngineError> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let (ranks, sampler) = (self.world(), self.stepper.place.sampler());
        let Self { stepper: Stepper { group, .. }, sampler: Sampler { drawn, .. }, .. } = self;
        let mut read = Ok(());
        group.take_tokens(sampler, flight.step, |payload| read = drawn.decode(payload, ranks))?;
        read?;
        if !flight.fits(&drawn.tokens) {
            return Err(EngineError::Message(FrameKind::Drawn));
        }
        self.landed(&flight);
        Ok(())
    }

    /// Processes the tokens of a step.
    fn landed(&mut self, flight: &Flight) {
        self.add_totals(flight);
        let sampling = self.sampler.drawn.sampling;
        let mut tokens = std::mem::take(&mut self.sampler.drawn.tokens);
        for (run, (slot, key, rows)) in tokens.chunk_by(|a, b| a.0 == b.0).zip(&flight.wanted) {
            if let Some(request) = self.requests.get_mut(key) {
                request.times.drafted_tokens += rows - 1;
                request.times.accepted_tokens += run.len() as u32 - 1;
            }
            for (_, chosen) in run {
                // The slot may be empty or hold another request by now: this one was cancelled, or finished at a
                // speculative token.
                if self.scheduler.key(*slot) == Some(*key) {
                    self.sampled(*slot, chosen, sampling);
                }
            }
        }
        tokens.clear();
        self.sampler.drawn.tokens = tokens;
    }

    /// Adds the time of a step once to every request that has a token in it.
    fn add_totals(&mut self, flight: &Flight) {
        for key in &flight.requests {
            let Some(request) = self.requests.get_mut(key) else { continue };
            for (sum, rank) in request.ranks.iter_mut().zip(&self.sampler.drawn.totals) {
                sum.prefill.add(&rank.prefill);
                sum.decode.add(&rank.decode);
            }
        }
    }

    /// Handles a token sampled for a slot: text, events, and the end of the request if this is its last token.
    /// `sampling` is the time from the end of the layers until the token was sampled.
    fn sampled(&mut self, slot: Slot, chosen: &Chosen, sampling: Nanoseconds) {
        let Some(key) = self.scheduler.key(slot) else { return };
        if self.is_for_others(key) {
            return;
        }
        let Some(request) = self.requests.get_mut(&key) else { return };
        let now = since(request.received, Instant::now());
        request.times.last_token = now;
        request.times.sampled_tokens += 1;
        request.sampling_rounds += chosen.rounds;
        if request.times.sampled_tokens == 1 {
            request.times.first_token = now;
            request.times.prefilled = Nanoseconds(now.0.saturating_sub(sampling.0).max(1));
        }
        if (self.tokenizer.is_end(chosen.id) && !request.ignores_end) || chosen.id == Chosen::NONE {
            return self.finish(key, FinishReason::Stop);
        }
        if chosen.id == Chosen::BROKEN {
            return self.fail(key);
        }
        let (mut text, stopped) = request.output.push(&self.tokenizer, chosen.id);
        let sampled = request.resumed + request.times.sampled_tokens as usize;
        let reason = match () {
            () if stopped => Some(FinishReason::Stop),
            () if sampled >= request.max_tokens => Some(FinishReason::Length),
            () if request.prompt_length + sampled >= self.limits.context_length => Some(FinishReason::Context),
            () => None,
        };
        if reason.is_some() {
            // All text is out with the last token: if the head is lost now, only the end is lost with it.
            text.push_str(&request.output.finish());
        }
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

    /// Finishes a request: emits the text that was held back, then the statistics.
    pub(super) fn finish(&mut self, key: RequestKey, reason: FinishReason) {
        self.forget_transfer(key);
        self.scheduler.end(key);
        let Some(mut request) = self.requests.remove(&key) else { return };
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
