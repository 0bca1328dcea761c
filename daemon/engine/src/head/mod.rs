//! The head: accepts requests, schedules steps and reports the progress of each request. In a single-stage replica it
//! samples, too; otherwise it runs the next steps while earlier ones are in flight in the later stages.
pub mod admission;
mod drafting;
mod loads;
mod prompts;
mod transfers;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::{Receiver, TryRecvError},
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
use protocol::{bench::BenchLinks, frame::FrameKind, message::Finished};
use smallvec::SmallVec;
use telemetry::RankTotals;

use super::{
    error::EngineError,
    kv_store::requested::RequestedLoads,
    plan::{Limits, Plan},
    port::{EngineEvent, EngineOrder, ReplicaEvent, RequestEvent, SampledToken},
    sample::Chosen,
    sampler::Sampler,
    scheduler::{RequestKey, Scheduler},
    speculation::Speculation,
    transfer::RemotePrefill,
    worker::Worker,
};
use crate::collective::Links;

/// Most time spent on accepting new requests between two steps, so that running answers do not wait for them.
const ADMISSION_TIME: Duration = Duration::from_millis(2);

/// A request from arrival to end.
#[derive(Debug)]
pub(super) struct Request {
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
    /// Whether the embedding of its prompt is reported instead of an answer.
    pub(super) embeds: bool,
    /// Whether the log probabilities of its prompt's tokens are reported.
    pub(super) scores_prompt: bool,
    /// Whether the beginning of its prompt is read from the disks.
    pub(super) is_loaded: bool,
    /// Positions of its prompt whose log probabilities are still expected.
    pub(super) unscored: usize,
}

/// An in-flight step whose tokens have not arrived.
#[derive(Debug)]
struct InFlightStep {
    step: u64,
    /// Requests with a token in the step.
    requests: PerSlot<RequestKey>,
    /// Slots that expect tokens, in the step's order, with their request and the most tokens each may receive.
    wanted: PerSlot<(Slot, RequestKey, u32)>,
}

impl InFlightStep {
    /// Whether these tokens belong to the slots that expect some, in the same order.
    fn matches(&self, tokens: &[(Slot, Chosen)]) -> bool {
        let mut runs = tokens.chunk_by(|a, b| a.0 == b.0);
        let all_match = self
            .wanted
            .iter()
            .all(|(slot, _, rows)| runs.next().is_some_and(|run| run[0].0 == *slot && run.len() <= *rows as usize));
        all_match && runs.next().is_none()
    }
}

type PerSlot<T> = SmallVec<[T; SLOTS_MAX as usize]>;

/// The head of a replica.
pub struct Head<'a> {
    pub(super) node: String,
    pub(super) limits: Limits,
    /// Tokens that end an answer.
    end_tokens: Vec<u32>,
    pub(super) worker: Worker,
    pub(super) scheduler: Scheduler,
    pub(super) requests: BTreeMap<RequestKey, Request>,
    step: u64,
    pub(super) sink: &'a dyn Fn(EngineEvent),
    /// Remote prefill; off unless the topology's groups have roles.
    pub(super) remote_prefill: RemotePrefill,
    /// Keys and values that the ranks read from their disks.
    pub(super) loads: RequestedLoads,
    /// Oldest first; at most one step for each slot.
    in_flight_steps: VecDeque<InFlightStep>,
    sampler: Sampler,
    plan: Plan,
    payload: Vec<u8>,
}

impl<'a> Head<'a> {
    /// Creates a head without requests. `sink` receives their progress.
    pub fn new(
        node: String,
        limits: Limits,
        end_tokens: Vec<u32>,
        worker: Worker,
        sink: &'a dyn Fn(EngineEvent),
    ) -> Self {
        let scheduler = Scheduler::new(limits);
        let scheduler = scheduler.with_stages(usize::from(worker.place.stages), worker.place.step_tokens());
        let scheduler = scheduler.with_whole_texts(!worker.model.shard().spec.generates());
        let scheduler = scheduler.with_speculation(Speculation::with_draft_model(worker.draft_kind()));
        let (requests, in_flight_steps) = (BTreeMap::new(), VecDeque::with_capacity(limits.slots));
        let (sampler, plan, payload) = (Sampler::default(), Plan::default(), Vec::new());
        let (step, remote_prefill) = (0, RemotePrefill::default());
        let loads = RequestedLoads::new(limits.window.is_some() || limits.states.all() > 0);
        Self {
            node,
            limits,
            end_tokens,
            worker,
            scheduler,
            requests,
            step,
            sink,
            remote_prefill,
            loads,
            in_flight_steps,
            sampler,
            plan,
            payload,
        }
    }

    /// Enables remote prefill, for a topology whose groups have roles.
    pub fn with_remote_prefill(self, remote_prefill: RemotePrefill) -> Self {
        Self { remote_prefill, ..self }
    }

    /// Disables speculative decoding and the prefix cache, for benchmarks.
    pub fn plain(self) -> Self {
        let scheduler = self.scheduler.without_sharing().with_speculation(Speculation::off());
        Self { scheduler, ..self }
    }

    /// Returns the rank together with its links.
    pub fn into_worker(self) -> Worker {
        self.worker
    }

    /// Serves until a stop order arrives.
    ///
    /// # Errors
    /// Anything that ends the topology.
    pub fn serve(&mut self, orders: &Receiver<EngineOrder>) -> Result<(), EngineError> {
        let mut admitting = Duration::ZERO;
        loop {
            self.set_busy();
            let order = if admitting >= ADMISSION_TIME && self.has_work() {
                Err(TryRecvError::Empty)
            } else if self.has_work() {
                orders.try_recv()
            } else {
                self.worker.group.links().map_or(Ok(()), Links::flush)?;
                orders.recv().map_err(|_| TryRecvError::Disconnected)
            };
            match order {
                Ok(EngineOrder::Begin(key, prepared)) => {
                    let begun = Instant::now();
                    self.begin(key, *prepared);
                    admitting += begun.elapsed();
                }
                Ok(EngineOrder::Cancel(key)) => self.cancel(key),
                Ok(EngineOrder::Withdrawn(key)) => self.withdrawn(key),
                Ok(EngineOrder::Across(replica, message)) => self.across(replica, &message),
                Ok(EngineOrder::AcrossLost(replica)) => self.across_lost(replica),
                Ok(EngineOrder::BenchLinks(key, wanted)) => self.bench_links(key, &wanted)?,
                Ok(EngineOrder::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    admitting = Duration::ZERO;
                    self.advance()?;
                }
            }
        }
    }

    /// Whether requests exist, or steps are in flight: later stages finish a step even if its requests were cancelled.
    fn has_work(&self) -> bool {
        self.scheduler.has_work() || !self.in_flight_steps.is_empty() || self.is_transferring()
    }

    /// Whether a step's tokens are still expected.
    pub(super) fn is_in_flight(&self) -> bool {
        !self.in_flight_steps.is_empty()
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
        self.poll_transfers()?;
        self.poll_loads()?;
        while !self.in_flight_steps.is_empty() && self.tokens_arrived() {
            self.recv_tokens()?;
        }
        let masks = &mut self.worker.masks;
        self.scheduler.set_masks_ready(masks.is_ready());
        self.scheduler.release_compiled(|slot| masks.is_compiled(slot));
        self.draft()?;
        let mut plan = std::mem::take(&mut self.plan);
        let is_planned = self.scheduler.next_plan(&mut plan);
        self.dispatch_awaited()?;
        let result = if is_planned { self.run(&plan) } else { Ok(()) };
        self.plan = plan;
        if !is_planned && self.in_flight_steps.is_empty() {
            self.idle()?;
        }
        if is_planned || self.in_flight_steps.is_empty() { result } else { self.recv_tokens() }
    }

    fn set_busy(&mut self) {
        if let Some(kv) = self.scheduler.kv_changed() {
            (self.sink)(EngineEvent::Replica(ReplicaEvent::Kv(kv)));
        }
        let busy = self.has_work();
        if let Some(abort) = self.worker.group.abort() {
            abort.set_busy(busy);
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
        if self.worker.group.omits_exchange() {
            let reason = "all-reduces are disabled by --omit-exchange".into();
            let fault = Fault::new(&self.node, FaultKind::BenchFailed { reason });
            self.report(key, RequestEvent::Refused(fault));
            return Ok(());
        }
        if let Some(abort) = self.worker.group.abort() {
            abort.set_busy(true);
        }
        let found = self.worker.group.bench(wanted, &mut self.step)?;
        self.report(key, RequestEvent::LinksBenched(found));
        Ok(())
    }

    /// Number of ranks in the replica.
    pub(super) fn world(&self) -> usize {
        usize::from(self.worker.place.stages) * self.worker.place.group.len()
    }

    /// Runs one step on the ranks of this stage. If this is also the last stage, the tokens are available at once.
    fn run(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.step += 1;
        let now = Instant::now();
        for opened in &plan.opened {
            let Some(key) = self.scheduler.key(opened.slot) else { continue };
            self.report(key, RequestEvent::Dispatched);
            if let Some(request) = self.requests.get_mut(&key) {
                if request.resumed > 0 || request.is_loaded {
                    let (cached, computed) = (opened.cached, opened.prompt.len() as u32 - opened.cached);
                    let (read, resumed) = (request.times.stored_tokens, request.resumed);
                    tracing::info!(resumed, read, cached, computed, "resumed answer or stored prompt");
                }
                // A request whose keys and values come from elsewhere left the queue when they were asked for.
                if request.times.transfer.tokens == 0 {
                    if !request.is_loaded {
                        request.times.dispatched = since(request.received, now);
                    }
                    request.times.cached_tokens = opened.cached.min(request.prompt_length as u32);
                }
            }
        }
        let group = &mut self.worker.group;
        group.begin_step(self.step);
        if !plan.continues {
            group.timing.idle();
        }
        group.timing.begin_step(plan.is_prefill, plan.entries.len() as u32);
        self.announce_sends(plan)?;
        if self.worker.group.links().is_some() {
            self.tell(FrameKind::Plan, plan)?;
        }
        let has_tokens = self.sampler.step(&mut self.worker, plan)?;
        self.scheduler.record_time(plan, since(now, Instant::now()));
        let in_flight = self.in_flight(plan);
        if has_tokens {
            self.process_tokens(&in_flight);
        } else if !in_flight.wanted.is_empty() {
            self.in_flight_steps.push_back(in_flight);
        }
        Ok(())
    }

    /// Sends a plan to the ranks of this stage and to the leaders of the others.
    fn tell(&mut self, kind: FrameKind, plan: &Plan) -> Result<(), EngineError> {
        self.payload.clear();
        plan.encode(&mut self.payload);
        let payload = std::mem::take(&mut self.payload);
        let told = self.tell_all(kind, &payload);
        self.payload = payload;
        told
    }

    /// Sends a message to the ranks of this stage and to the leaders of the others, which forward it.
    pub(super) fn tell_all(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), EngineError> {
        let Worker { group, place, .. } = &mut self.worker;
        group.tell(kind, 0, payload)?;
        for leader in place.later_leaders() {
            group.send(leader, kind, 0, payload)?;
        }
        Ok(())
    }

    fn in_flight(&self, plan: &Plan) -> InFlightStep {
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
        InFlightStep { step: self.step, requests, wanted }
    }

    /// Whether the tokens of the oldest in-flight step have arrived.
    fn tokens_arrived(&mut self) -> bool {
        let sampler = self.worker.place.sampler();
        self.worker.group.links().is_some_and(|links| links.has_front(sampler))
    }

    /// Receives and processes the tokens of the oldest in-flight step.
    pub(super) fn recv_tokens(&mut self) -> Result<(), EngineError> {
        let Some(in_flight) = self.in_flight_steps.pop_front() else { return Ok(()) };
        let (ranks, sampler) = (self.world(), self.worker.place.sampler());
        let Self { worker: Worker { group, .. }, sampler: Sampler { sampled, .. }, .. } = self;
        let mut read = Ok(());
        group.take_tokens(sampler, in_flight.step, |payload| read = sampled.decode(payload, ranks))?;
        read?;
        if !in_flight.matches(&sampled.tokens) {
            return Err(EngineError::Message(FrameKind::Drawn));
        }
        self.process_tokens(&in_flight);
        Ok(())
    }

    /// Processes the tokens of a step.
    fn process_tokens(&mut self, in_flight: &InFlightStep) {
        self.add_totals(in_flight);
        let sampling = self.sampler.sampled.sampling;
        let mut tokens = std::mem::take(&mut self.sampler.sampled.tokens);
        for (run, (slot, key, rows)) in tokens.chunk_by(|a, b| a.0 == b.0).zip(&in_flight.wanted) {
            if self.requests.get(key).is_some_and(|request| request.embeds) {
                continue;
            }
            let scored = self.score(*slot, *key, run);
            let (run, rows) = (&run[scored..], *rows - scored as u32);
            if let Some(request) = self.requests.get_mut(key).filter(|_| !run.is_empty()) {
                request.times.drafted_tokens += rows - 1;
            }
            for (place, (_, chosen)) in run.iter().enumerate() {
                // The slot may be empty or hold another request by now: this one was cancelled, or finished at a
                // speculative token.
                if self.scheduler.key(*slot) != Some(*key) {
                    continue;
                }
                // It follows a speculative token.
                if let Some(request) = self.requests.get_mut(key).filter(|_| place > 0) {
                    request.times.accepted_tokens += 1;
                }
                self.sampled(*slot, chosen, sampling);
            }
        }
        tokens.clear();
        self.sampler.sampled.tokens = tokens;
        self.process_embeddings(in_flight);
    }

    /// Adds the time of a step once to every request that has a token in it.
    fn add_totals(&mut self, in_flight: &InFlightStep) {
        for key in &in_flight.requests {
            let Some(request) = self.requests.get_mut(key) else { continue };
            for (sum, rank) in request.ranks.iter_mut().zip(&self.sampler.sampled.totals) {
                sum.prefill.add(&rank.prefill);
                sum.decode.add(&rank.decode);
            }
        }
    }

    /// Handles a token sampled for a slot: its event, and the end of the request if this is its last token.
    /// `sampling` is the time from the end of the layers until the token was sampled.
    fn sampled(&mut self, slot: Slot, chosen: &Chosen, sampling: Nanoseconds) {
        let Some(key) = self.scheduler.key(slot) else { return };
        if self.complete_for_group(key) {
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
        if (self.end_tokens.contains(&chosen.id) && !request.ignores_end) || chosen.id == Chosen::NONE {
            return self.finish(key, FinishReason::Stop);
        }
        if chosen.id == Chosen::BROKEN {
            return self.fail(key);
        }
        let sampled = request.resumed + request.times.sampled_tokens as usize;
        let reason = match () {
            () if sampled >= request.max_tokens => Some(FinishReason::Length),
            () if request.prompt_length + sampled >= self.limits.context_length => Some(FinishReason::Context),
            () => None,
        };
        let token = SampledToken {
            id: chosen.id,
            is_last: reason.is_some(),
            top_logprobs: chosen.top_logprobs.to_vec(),
            times: request.times,
            sampling_rounds: request.sampling_rounds,
        };
        self.report(key, RequestEvent::Token(token));
        match reason {
            Some(reason) => self.finish(key, reason),
            None => self.scheduler.sampled(slot, chosen.id),
        }
    }

    /// Reports an event of a request.
    pub(super) fn report(&self, key: RequestKey, event: RequestEvent) {
        (self.sink)(EngineEvent::Request(key, event));
    }

    /// Finishes a request with its statistics.
    pub(super) fn finish(&mut self, key: RequestKey, reason: FinishReason) {
        self.cancel_transfer(key);
        self.cancel_load(key);
        self.scheduler.end(key);
        let Some(request) = self.requests.remove(&key) else { return };
        let (times, ranks, sampling_rounds) = (request.times, request.ranks, request.sampling_rounds);
        self.report(key, RequestEvent::Finished(Box::new(Finished { reason, times, ranks, sampling_rounds })));
    }
}

fn since(begin: Instant, end: Instant) -> Nanoseconds {
    Nanoseconds(end.duration_since(begin).as_nanos() as u64)
}
