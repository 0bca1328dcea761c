//! A gateway made of the pure parts of the daemon's: what it knows of the cluster, its queues, the router with its circuit
//! breakers, and the decision whether another head continues an answer. It runs on a machine of its own that never
//! fails, and reports reach it without delay, unless the way from their node is cut.
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use assignment::fixtures::idle_report;
use common::{
    fault::{Fault, FaultKind, Loss},
    ids::{ModelRoots, RequestId},
    sampling::SamplingParameters,
};
use daemon::gateway::{
    cluster::groups::{Groups, LatestReport},
    continuation::{AfterFault, Continuation},
    queues::{Claim, Queues, Refused},
    route::{RequestOutcome, RoutingDecision},
};
use protocol::{
    message::{Generate, Prompt, Request, RequestBody, ResponseBody},
    recovery::Committed,
};
use telemetry::NodeReport;

use crate::simulation::{
    compute::ExpectedText,
    network::Packet,
    process::Process,
    world::{Event, World, name},
};

/// Interval between two looks at a request.
const AGAIN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(500);
/// Interval of the nodes' reports.
const REPORTS: Duration = Duration::from_millis(250);
/// The daemon's default settings.
const QUEUE: usize = 64;
const QUEUE_WAIT: Duration = Duration::from_secs(30);
const RESUME_WAIT: Duration = Duration::from_secs(60);
const SILENT: Duration = Duration::from_secs(2);
/// A request must end, or have made progress, within this time.
const PROGRESS: Duration = Duration::from_secs(80);
/// A dial that gets no answer takes this long.
const DIAL: Duration = Duration::from_millis(1500);
/// What every prompt contains, and no log may.
pub(crate) const SECRET: &str = "open sesame";

/// What the gateway knows.
#[derive(Debug)]
pub(crate) struct Gateway {
    groups: Groups,
    reports: BTreeMap<String, LatestReport>,
    pub(crate) queues: Queues,
    /// The instant at which the virtual time begins.
    begun: Instant,
    /// Open requests by connection.
    pub(crate) streams: BTreeMap<u64, usize>,
    tickets: u64,
}

impl Gateway {
    pub(crate) fn new() -> Self {
        Self {
            groups: Groups::default(),
            reports: BTreeMap::new(),
            queues: Queues::default(),
            begun: Instant::now(),
            streams: BTreeMap::new(),
            tickets: 0,
        }
    }
}

/// A request on a head.
#[derive(Debug)]
struct Attempt {
    number: u64,
    head: String,
    model: ModelRoots,
    /// The engine's run that feeds it.
    feeds: Option<u64>,
    /// When the head last sent something.
    heard: Duration,
    since: Duration,
}

/// A client's request.
#[derive(Debug)]
pub(crate) struct Asked {
    seed: u64,
    length: u32,
    accepted: Duration,
    so_far: Continuation,
    /// Its text from the next token on.
    expected: ExpectedText,
    /// The model that has begun it.
    model: Option<ModelRoots>,
    attempt: Option<Attempt>,
    /// Its place in the queue, until when it waits for a replica that serves, and its claim.
    ticket: Option<(u64, Instant, Claim)>,
    /// Why the latest attempt failed.
    why: Option<Fault>,
    /// When it last made progress.
    moved: Duration,
    /// The outcome: all tokens, or an error.
    pub(crate) ended: Option<Result<(), String>>,
}

impl World {
    /// Sends a request at a time.
    pub(crate) fn add_request(&mut self, at: Duration, seed: u64, length: u32) {
        let index = self.asked.len();
        self.asked.push(Asked {
            seed,
            length,
            accepted: at,
            so_far: Continuation::default(),
            expected: ExpectedText::new(seed),
            model: None,
            attempt: None,
            ticket: None,
            why: None,
            moved: at,
            ended: None,
        });
        self.later(at.saturating_sub(self.now), Event::Ask(index));
    }

    fn instant(&self) -> Instant {
        self.gateway.begun + self.now
    }

    /// The report of a node.
    pub(crate) fn report(&self, node: usize) -> Option<NodeReport> {
        let process = self.machines[node].process.as_ref()?;
        Some(NodeReport {
            instance: process.life,
            state: process.node.state(),
            epoch: process.node.epoch(),
            topology: process.node.topology(),
            desired: process.node.desired().cloned().map(Box::new),
            expected: process.node.expected().cloned().map(Box::new),
            fault: process.node.fault(),
            requests: process.node.request_count(),
            traces: process.node.traces(),
            exclusions: process.node.exclusions().clone(),
            unloaded: process.node.unloaded(),
            ..idle_report(&name(node))
        })
    }

    /// Takes the reports of all nodes that can be reached.
    pub(crate) fn take_reports(&mut self) {
        let now = self.instant();
        for node in 0..self.machines.len() {
            let is_stopped = self.machines[node].process.as_ref().is_none_or(|process| process.is_stopped);
            if is_stopped || self.network.is_cut(node, self.gateway_end()) {
                continue;
            }
            if let Some(report) = self.report(node) {
                self.gateway.groups.learn(&report, now, 0);
                let report = LatestReport { report: Arc::new(report), at: now };
                self.gateway.reports.insert(self.address(node), report);
            }
        }
        let Gateway { groups, reports, queues, .. } = &mut self.gateway;
        let of = groups.0.iter().flat_map(|group| group.replicas(reports, SILENT, now).0);
        queues.router.learn(&of.collect::<Vec<_>>());
        self.check_sizes();
        self.later(REPORTS, Event::Reports);
    }

    /// Checks the sizes of what grows with use outside of the nodes' own queues and maps.
    pub(crate) fn check_sizes(&mut self) {
        let [heads, beginnings] = self.gateway.queues.router.sizes();
        let most = |size: &dyn Fn(&Process) -> usize| {
            self.machines.iter().filter_map(|machine| Some(size(machine.process.as_ref()?))).max().unwrap_or(0)
        };
        let sizes = [
            ("heads known to the router", heads, 64),
            ("beginnings of prompts", beginnings, 4096),
            ("requests in the gateway's queue", self.gateway.queues.waiting_for_any(), QUEUE + self.asked.len()),
            ("reports at the gateway", self.gateway.reports.len(), 64),
            ("packets held back on a connection", self.network.held_most(), 2_000),
            ("inputs of a driver", most(&|process| process.inbox.len()), 2_000),
            ("writes of a disk", most(&|process| process.writes.len()), 128),
            ("questions of a steward", most(&|process| process.asked.len()), 128),
            ("sessions of a steward", most(&|process| process.sessions.len()), self.machines.len()),
        ];
        if let Some((what, count, most)) = sizes.into_iter().find(|one: &(&str, usize, usize)| one.1 > one.2) {
            self.violate(format!("there are {count} {what}, the bound is {most}"));
        }
        let is_idle = self.asked.iter().all(|asked| asked.ended.is_some());
        if is_idle && self.gateway.queues.waiting_for_any() > 0 {
            self.violate("the gateway's queue holds requests that have ended".into());
        }
    }

    /// The gateway starts again: it knows only what its node has on the disk, and its clients are gone.
    pub(crate) fn restart_gateway(&mut self, committed: Option<Committed>) {
        let (begun, now) = (self.gateway.begun, self.instant());
        let streams = std::mem::take(&mut self.gateway.streams);
        streams.keys().for_each(|number| self.send(*number, 0, Packet::Closed));
        for index in 0..self.asked.len() {
            if self.asked[index].ended.is_none() && self.asked[index].accepted <= self.now {
                self.asked[index].ended = Some(Err("its gateway restarts".into()));
            }
        }
        self.gateway = Gateway { begun, ..Gateway::new() };
        self.expects = committed.as_ref().map(|committed| (committed.epoch, self.now + Duration::from_secs(30)));
        if let Some(committed) = committed {
            self.gateway.groups.expect(committed, now, 0);
        }
    }

    /// The clients of some requests go away.
    pub(crate) fn abandon_requests(&mut self) {
        let streams: Vec<(u64, usize)> = self.gateway.streams.iter().map(|(number, index)| (*number, *index)).collect();
        for (number, index) in streams {
            self.release(index, RequestOutcome::Neither);
            self.send(number, 0, Packet::Closed);
            self.asked[index].ended = Some(Err("its client is gone".into()));
        }
    }

    fn end_request(&mut self, index: usize, result: Result<(), String>) {
        if let Err(why) = &result {
            self.story.say(self.now, "client", || format!("request {index} fails: {why}"));
        }
        self.leave_queue(index);
        if self.asked[index].ended.replace(result).is_some() {
            self.violate(format!("request {index} ended twice"));
        }
    }

    fn fail_request(&mut self, index: usize, fault: &Fault) {
        if matches!(fault.kind, FaultKind::Internal { .. } | FaultKind::Malformed { .. }) {
            self.violate(format!("request {index} fails with an error that no fault explains: {fault}"));
        }
        self.end_request(index, Err(fault.to_string()));
    }

    fn leave_queue(&mut self, index: usize) {
        if let Some((number, _, claim)) = self.asked[index].ticket.take() {
            self.gateway.queues.leave(number, &claim.model);
        }
    }

    /// Releases the slot of a request.
    fn release(&mut self, index: usize, outcome: RequestOutcome) {
        let now = self.instant();
        if let Some(attempt) = self.asked[index].attempt.take() {
            self.gateway.streams.remove(&attempt.number);
            self.gateway.queues.released(&attempt.head, outcome, self.now - attempt.since, now);
        }
    }

    /// Moves a request on: into the queue, to a head, or to its end.
    pub(crate) fn try_request(&mut self, index: usize) {
        let asked = &self.asked[index];
        if asked.ended.is_some() {
            return;
        }
        if self.now.saturating_sub(asked.moved) > PROGRESS {
            return self.violate(format!("request {index} neither ends nor moves for {} s", PROGRESS.as_secs()));
        }
        if let Some(Attempt { number, head, heard, .. }) = &asked.attempt {
            let (number, head, heard) = (*number, head.clone(), *heard);
            let patience = Duration::from_secs(1) + SILENT;
            let last = self.gateway.reports.get(&head).map_or(self.gateway.begun, |seen| seen.at);
            if self.now.saturating_sub(heard) > patience && self.instant().saturating_duration_since(last) > patience {
                self.send(number, 0, Packet::Closed);
                let fault = Fault::new(head, FaultKind::NodeLost { how: Loss::Silent });
                return self.lost_head(index, &fault);
            }
            return self.later(LOOK, Event::Ask(index));
        }
        match self.admit(index) {
            Ok(true) => self.later(LOOK, Event::Ask(index)),
            Ok(false) => self.later(AGAIN, Event::Ask(index)),
            Err(refused) => self.refuse_request(index, refused),
        }
    }

    fn refuse_request(&mut self, index: usize, refused: Refused) {
        let waited = self.now - self.asked[index].accepted;
        let now = self.instant();
        let latest = self.machines.iter().filter_map(|machine| Some(machine.disk.committed()?.epoch)).max();
        let is_expected = self.expects.is_some_and(|(epoch, until)| Some(epoch) == latest && self.now < until)
            && !self.is_assigning();
        let model = self.asked[index].ticket.as_ref().map(|(.., claim)| claim.model);
        let groups = model.map_or_else(Vec::new, |model| self.gateway.groups.of(&model));
        let is_known = is_expected || groups.iter().any(|group| group.has_served_lately(now));
        let reports = self.gateway.reports.values();
        let is_cordoned = reports.flat_map(|seen| seen.report.exclusions.out()).next().is_some();
        if refused == Refused::Nowhere && waited < Duration::from_secs(5) && is_known && !is_cordoned {
            self.violate(format!("request {index} is refused after {waited:?}, although its model comes back"));
        }
        let why = self.asked[index].why.take().map_or(String::new(), |why| format!(", after {why}"));
        self.end_request(index, Err(format!("{refused:?}{why}")));
    }

    /// Takes a slot if one is free; returns whether it has one.
    fn admit(&mut self, index: usize) -> Result<bool, Refused> {
        let now = self.instant();
        let (begun, asked) = (self.gateway.begun, &self.asked[index]);
        let deadline = asked.so_far.deadline(begun + asked.accepted, QUEUE_WAIT, RESUME_WAIT);
        let Some(roots) = asked.model.or_else(|| Some(self.gateway.groups.0.first()?.topology.roots())) else {
            // The first model becomes known with the first report.
            let is_early = self.now < asked.accepted + Duration::from_millis(600);
            return if is_early { Ok(false) } else { Err(Refused::Nowhere) };
        };
        let of: Vec<_> = self.gateway.groups.of(&roots);
        if of.is_empty() {
            self.leave_queue(index);
            // A model that has not begun the answer may be replaced.
            return if self.asked[index].model.is_some() { Err(Refused::Gone) } else { Ok(false) };
        }
        let (mut replicas, mut cordons) = (Vec::new(), Vec::new());
        for group in &of {
            let (some, cordoned) = group.replicas(&self.gateway.reports, SILENT, now);
            replicas.extend(some);
            cordons.extend(cordoned);
        }
        let is_cordoned = !cordons.is_empty() && replicas.iter().all(|replica| !replica.is_serving);
        let is_expected = of.iter().any(|group| group.has_served_lately(now));
        let is_resumed = asked.so_far.waits_since().is_some();
        let (number, patience, claim) = match &asked.ticket {
            // Once the model is expected back, the request waits for it.
            Some((number, patience, claim)) if claim.model == roots => {
                (*number, if is_expected { claim.deadline } else { *patience }, *claim)
            }
            _ => {
                self.leave_queue(index);
                let claim =
                    Claim { model: roots, prefix: self.asked[index].seed % 7, deadline, is_resumed, has_others: false };
                self.gateway.tickets += 1;
                let number = self.gateway.tickets;
                self.gateway.queues.enter(number, &claim, &replicas, QUEUE)?;
                (number, claim.patience(is_expected, now), claim)
            }
        };
        self.asked[index].ticket = Some((number, patience, claim));
        match self.gateway.queues.take(number, &claim, &replicas, now) {
            RoutingDecision::To(head) => {
                self.leave_queue(index);
                Ok(self.send_to(index, head, roots))
            }
            RoutingDecision::Nowhere if now >= patience || (is_cordoned && !claim.is_resumed) => Err(Refused::Nowhere),
            RoutingDecision::Busy if now >= claim.deadline => Err(Refused::Overdue),
            RoutingDecision::Nowhere | RoutingDecision::Busy => Ok(false),
        }
    }

    /// Sends a request to a head; returns whether the head can be reached.
    fn send_to(&mut self, index: usize, head: String, model: ModelRoots) -> bool {
        let (now, own) = (self.now, self.gateway_end());
        let node = self.index_of(&head);
        let Some(number) = node.and_then(|node| self.dial(own, node)) else {
            let is_refused = node.is_some_and(|node| !self.is_unreachable(own, node));
            let fault = FaultKind::Unreachable { address: head.clone(), reason: "no answer".into() };
            self.asked[index].why = Some(Fault::new(&head, fault));
            let held = if is_refused { Duration::ZERO } else { DIAL };
            let until = self.instant() + held;
            self.gateway.queues.released(&head, RequestOutcome::Lost, held, until);
            return false;
        };
        let asked = &mut self.asked[index];
        asked.attempt = Some(Attempt { number, head, model, feeds: None, heard: now, since: now });
        let sampling = SamplingParameters { seed: asked.seed, ..SamplingParameters::default() };
        let prompt = Prompt::Text(format!("{SECRET} {index}"));
        let mut generate = Generate::new(prompt, asked.length, sampling, Vec::new());
        if let Some((prompt, tokens)) = asked.so_far.begun() {
            (generate.prompt, generate.resumed) = (Prompt::Tokens(prompt.to_vec()), tokens.to_vec());
        }
        (generate.drafts_max, generate.ignores_end, generate.model) = (0, true, Some(Box::new(model)));
        self.gateway.streams.insert(number, index);
        let request = Request { id: RequestId(1), body: RequestBody::Generate(Box::new(generate)) };
        self.send(number, 0, Packet::Request(Box::new(request)));
        true
    }

    /// The head of a request fails it; decides as the daemon's gateway does whether another one continues.
    fn lost_head(&mut self, index: usize, fault: &Fault) {
        let now = self.instant();
        let asked = &mut self.asked[index];
        match asked.so_far.fail(fault, now) {
            Ok(after) => {
                let is_lost = after == AfterFault::Elsewhere { is_lost: true };
                asked.why = Some(fault.clone());
                self.release(index, if is_lost { RequestOutcome::Lost } else { RequestOutcome::Neither });
                self.later(AGAIN, Event::Ask(index));
            }
            Err(end) => {
                self.release(index, if end.is_its_doing { RequestOutcome::Lost } else { RequestOutcome::Neither });
                self.fail_request(index, &end.fault);
            }
        }
    }

    /// Handles a packet that arrives at the gateway.
    pub(crate) fn at_gateway(&mut self, number: u64, packet: Packet) {
        let is_closed = matches!(packet, Packet::Closed);
        if is_closed && let Some(connection) = self.network.connections.get_mut(&number) {
            connection.is_open[0] = false;
        }
        let Some(index) = self.gateway.streams.get(&number).copied() else { return };
        let (body, run) = match packet {
            Packet::Response(response, run) => (response.body, run),
            Packet::Closed => {
                let kind = FaultKind::SessionLost { reason: "closed by the node".into() };
                return self.lost_head(index, &Fault::new("head", kind));
            }
            _ => return,
        };
        let now = self.now;
        self.asked[index].attempt.iter_mut().for_each(|attempt| attempt.heard = now);
        match body {
            ResponseBody::Started { prompt_token_ids, .. } => {
                let asked = &mut self.asked[index];
                asked.moved = now;
                if asked.so_far.started(prompt_token_ids) {
                    asked.model = asked.attempt.as_ref().map(|attempt| attempt.model);
                }
            }
            ResponseBody::Token(event) => self.took_token(index, event.id, run),
            ResponseBody::Finished(_) => {
                let (has, wanted) = (self.asked[index].so_far.tokens.len(), self.asked[index].length);
                if has != wanted as usize {
                    self.violate(format!("request {index} finished with {has} of {wanted} tokens"));
                }
                self.release(index, RequestOutcome::Done(Some(30.0)));
                self.end_request(index, Ok(()));
                self.send(number, 0, Packet::Closed);
            }
            ResponseBody::Failed(fault) => {
                self.send(number, 0, Packet::Closed);
                self.lost_head(index, &fault);
            }
            _ => {}
        }
    }

    fn took_token(&mut self, index: usize, id: Option<u32>, run: Option<u64>) {
        let now = self.now;
        let asked = &mut self.asked[index];
        let (Some(id), Some(attempt), Some(model)) = (id, &mut asked.attempt, asked.model) else { return };
        let continues = attempt.feeds.is_none() && !asked.so_far.tokens.is_empty();
        let is_other = attempt.feeds.is_some_and(|feeds| Some(feeds) != run);
        attempt.feeds = run;
        let position = asked.so_far.tokens.len();
        let is_right = id == asked.expected.next_token(&model);
        let head = attempt.head.clone();
        asked.so_far.token(id);
        asked.moved = now;
        if continues {
            self.story.say(now, "client", || format!("request {index} continues on {head} with token {position}"));
        }
        if is_other {
            self.violate(format!("two runs of the engine feed request {index}"));
        }
        if !is_right {
            self.violate(format!("token {position} of request {index} is wrong, doubled, missing or of another model"));
        }
    }
}
