//! The state machine: assignments in two phases, requests, lost peers, draining.
use std::time::Duration;

use shared::{
    ids::{Epoch, Rank, RequestId, TopologyHash},
    protocol::{
        error::{Fault, FaultKind, Loss},
        message::{Generate, PROMPT_BYTES_MAX, Prepare, REPORT_INTERVAL_MS_MIN, Request, RequestBody, ResponseBody,
            STOP_BYTES_MAX, STOP_STRINGS_MAX},
    },
    telemetry::{LoadProgress, NodeState},
    topology::Topology,
    units::Bytes,
};

use super::{
    event::{Effect, EngineCommand, Event, PeerDrain, Progress, SessionId},
    requests::Requests,
};

/// Most requests that run and wait on a head.
pub const QUEUE_MAX: usize = 64;

/// What bounds a node's patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A prepared assignment is forgotten after this without a commit.
    pub lease: Duration,
    /// Draining ends after this, whatever still runs.
    pub drain: Duration,
}

/// An assignment and this node's place in it.
#[derive(Clone, Debug, PartialEq)]
struct Assignment {
    epoch: Epoch,
    hash: TopologyHash,
    topology: Topology,
    rank: Rank,
    by: String,
    shard: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Loading(LoadProgress),
    Persisting,
    Prepared { since: Duration },
    Connecting { commit: (SessionId, RequestId) },
}

/// An assignment that is not yet running.
#[derive(Clone, Debug, PartialEq)]
struct Open {
    assignment: Assignment,
    session: SessionId,
    id: RequestId,
    phase: Phase,
}

/// A committed assignment.
#[derive(Debug)]
struct Running {
    assignment: Assignment,
    requests: Requests,
    fault: Option<Fault>,
    /// Another rank wants to leave: it takes no new work.
    peer_drains: Option<Rank>,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    name: String,
    epoch: Epoch,
    latest_by: String,
    patience: Patience,
    now: Duration,
    open: Option<Open>,
    running: Option<Running>,
    /// Since when it drains.
    draining: Option<Duration>,
    exited: bool,
    tokens: u64,
}

impl Node {
    /// An idle node that has seen `epoch` before.
    pub fn new(name: String, epoch: Epoch, patience: Patience) -> Self {
        Self {
            name,
            epoch,
            latest_by: "an earlier run".into(),
            patience,
            now: Duration::ZERO,
            open: None,
            running: None,
            draining: None,
            exited: false,
            tokens: 0,
        }
    }

    /// What it is doing.
    pub fn state(&self) -> NodeState {
        if self.draining.is_some() {
            return NodeState::Draining;
        }
        if let Some(open) = &self.open {
            return match open.phase {
                Phase::Loading(_) | Phase::Persisting => NodeState::Loading,
                Phase::Prepared { .. } => NodeState::Prepared,
                Phase::Connecting { .. } => NodeState::Connecting,
            };
        }
        match &self.running {
            None => NodeState::Idle,
            Some(running) if running.fault.is_some() => NodeState::Faulted,
            Some(running) if running.requests.is_empty() => NodeState::Ready,
            Some(_) => NodeState::Serving,
        }
    }

    /// Highest epoch seen.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The running topology, or the one being assigned, with its hash and this node's rank.
    pub fn topology(&self) -> Option<(Topology, TopologyHash, Rank)> {
        let assignment = match (&self.open, &self.running) {
            (Some(open), _) => &open.assignment,
            (None, Some(running)) => &running.assignment,
            (None, None) => return None,
        };
        Some((assignment.topology.clone(), assignment.hash, assignment.rank))
    }

    /// Why the topology broke.
    pub fn fault(&self) -> Option<Fault> {
        self.running.as_ref().and_then(|running| running.fault.clone())
    }

    /// Progress of a load.
    pub fn load(&self) -> Option<LoadProgress> {
        match self.open.as_ref()?.phase {
            Phase::Loading(progress) => Some(progress),
            _ => None,
        }
    }

    /// Bytes that the running shard holds.
    pub fn shard(&self) -> Bytes {
        self.running.as_ref().map_or(Bytes(0), |running| running.assignment.shard)
    }

    /// Requests that run and wait.
    pub fn request_count(&self) -> u32 {
        self.running.as_ref().map_or(0, |running| running.requests.len() as u32)
    }

    /// Tokens sampled since start.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether links of this assignment may come in: it is prepared, connecting or running here.
    pub fn expects_links(&self, epoch: Epoch, hash: TopologyHash) -> bool {
        let open = self.open.as_ref().filter(|open| !matches!(open.phase, Phase::Loading(_) | Phase::Persisting));
        let open = open.map(|open| &open.assignment);
        open.is_some_and(|assignment| (assignment.epoch, assignment.hash) == (epoch, hash))
    }

    /// Something happened: what is to be done.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Request { session, by, request } => self.request(session, by, request),
            Event::SessionClosed(session) => self.session_closed(session),
            Event::SessionSlow(session) => self.session_slow(session),
            Event::LoadProgress(epoch, progress) => self.load_progress(epoch, progress),
            Event::Loaded(epoch, result) => self.loaded(epoch, result),
            Event::Persisted(epoch, result) => self.persisted(epoch, result),
            Event::Connected(epoch, result) => self.connected(epoch, result),
            Event::Engine(epoch, progress) => self.engine(epoch, progress),
            Event::PeerLost(epoch, rank, how) => self.peer_lost(epoch, rank, how),
            Event::PeerDrains(epoch, rank, drain) => self.peer_drains(epoch, rank, drain),
            Event::Tick { now } => self.tick(now),
            Event::Terminate { now } => self.terminate(now),
        }
    }

    fn fault_here(&self, kind: FaultKind) -> Fault {
        Fault::new(&self.name, kind)
    }

    fn refuse(&self, session: SessionId, id: RequestId, kind: FaultKind) -> Vec<Effect> {
        vec![Effect::Respond { session, id, body: ResponseBody::Failed(self.fault_here(kind)) }]
    }

    fn request(&mut self, session: SessionId, by: String, request: Request) -> Vec<Effect> {
        let id = request.id;
        match request.body {
            RequestBody::Report => vec![Effect::Report { session, id }],
            RequestBody::Watch { interval_ms } => {
                let interval = Duration::from_millis(u64::from(interval_ms.max(REPORT_INTERVAL_MS_MIN)));
                vec![Effect::Watch { session, id, interval }]
            }
            RequestBody::Identify { model } => vec![Effect::Identify { session, id, model }],
            RequestBody::Prepare(prepare) => match self.check_prepare(&prepare) {
                Ok(()) => self.prepare(session, id, by, *prepare),
                Err(kind) => self.refuse(session, id, kind),
            },
            RequestBody::Commit { epoch, hash } => self.commit(session, id, epoch, hash),
            RequestBody::Abort { epoch, hash } => {
                let is_open = |open: &Open| (open.assignment.epoch, open.assignment.hash) == (epoch, hash);
                let mut effects = if self.open.as_ref().is_some_and(is_open) { self.give_up() } else { Vec::new() };
                effects.push(Effect::Respond { session, id, body: ResponseBody::Aborted });
                effects
            }
            RequestBody::Generate(generate) => match self.check_generate(&generate) {
                Ok(()) => self.generate(session, id, *generate),
                Err(kind) => self.refuse(session, id, kind),
            },
            RequestBody::Cancel => {
                let key = self.running.as_ref().and_then(|running| running.requests.key(session, id));
                key.map(|key| Effect::Command(EngineCommand::Cancel(key))).into_iter().collect()
            }
        }
    }

    fn check_prepare(&self, prepare: &Prepare) -> Result<(), FaultKind> {
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        if let Some(open) = &self.open {
            let seconds = match open.phase {
                Phase::Prepared { since } => (since + self.patience.lease).saturating_sub(self.now),
                _ => self.patience.lease,
            };
            let (epoch, by) = (open.assignment.epoch, open.assignment.by.clone());
            return Err(FaultKind::PrepareOpen { epoch, by, seconds: seconds.as_secs() as u32 });
        }
        if prepare.seen != self.epoch {
            return Err(FaultKind::EpochMoved { expected: prepare.seen, actual: self.epoch });
        }
        if prepare.epoch <= self.epoch {
            return Err(FaultKind::Superseded { epoch: self.epoch, by: self.latest_by.clone() });
        }
        let invalid = |reason: String| FaultKind::TopologyInvalid { reason };
        prepare.topology.check().map_err(|error| invalid(error.to_string()))?;
        let member = prepare.topology.members.get(prepare.rank.index());
        match member {
            Some(member) if member.name == self.name => Ok(()),
            _ => Err(invalid(format!("rank {} of it is not {}", prepare.rank, self.name))),
        }
    }

    fn prepare(&mut self, session: SessionId, id: RequestId, by: String, prepare: Prepare) -> Vec<Effect> {
        let mut effects = Vec::new();
        // A broken topology serves nobody: its memory is free for the next.
        if let Some(running) = self.running.take_if(|running| running.fault.is_some()) {
            effects.push(Effect::StopEngine(running.assignment.epoch));
        }
        let assignment = Assignment {
            epoch: prepare.epoch,
            hash: prepare.topology.hash(),
            topology: prepare.topology.clone(),
            rank: prepare.rank,
            by,
            shard: Bytes(0),
        };
        self.open = Some(Open { assignment, session, id, phase: Phase::Loading(LoadProgress::default()) });
        effects.push(Effect::Load(Box::new(prepare)));
        effects
    }

    /// The open assignment, if it is of this epoch.
    fn open_at(&mut self, epoch: Epoch) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.assignment.epoch == epoch)
    }

    fn load_progress(&mut self, epoch: Epoch, progress: LoadProgress) -> Vec<Effect> {
        let Some(open) = self.open_at(epoch) else { return Vec::new() };
        open.phase = Phase::Loading(progress);
        vec![Effect::Respond { session: open.session, id: open.id, body: ResponseBody::Loading(progress) }]
    }

    fn loaded(&mut self, epoch: Epoch, result: Result<Bytes, Fault>) -> Vec<Effect> {
        let Some(open) = self.open_at(epoch) else { return Vec::new() };
        match result {
            Ok(shard) => {
                open.assignment.shard = shard;
                open.phase = Phase::Persisting;
                vec![Effect::Persist(epoch, open.assignment.hash)]
            }
            Err(fault) => self.fail_open(fault),
        }
    }

    fn persisted(&mut self, epoch: Epoch, result: Result<(), Fault>) -> Vec<Effect> {
        let now = self.now;
        let Some(open) = self.open_at(epoch) else { return Vec::new() };
        if let Err(fault) = result {
            return self.fail_open(fault);
        }
        open.phase = Phase::Prepared { since: now };
        let respond = Effect::Respond { session: open.session, id: open.id, body: ResponseBody::Prepared };
        self.latest_by = open.assignment.by.clone();
        self.epoch = epoch;
        vec![respond]
    }

    /// The open assignment failed: its console is told, what was loaded is dropped.
    fn fail_open(&mut self, fault: Fault) -> Vec<Effect> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (session, id) = match open.phase {
            Phase::Connecting { commit } => commit,
            _ => (open.session, open.id),
        };
        let respond = Effect::Respond { session, id, body: ResponseBody::Failed(fault) };
        vec![respond, Effect::Discard(open.assignment.epoch)]
    }

    fn give_up(&mut self) -> Vec<Effect> {
        self.open.take().map(|open| Effect::Discard(open.assignment.epoch)).into_iter().collect()
    }

    fn commit(&mut self, session: SessionId, id: RequestId, epoch: Epoch, hash: TopologyHash) -> Vec<Effect> {
        let is_prepared = self.open.as_ref().is_some_and(|open| {
            matches!(open.phase, Phase::Prepared { .. })
                && (open.assignment.epoch, open.assignment.hash) == (epoch, hash)
        });
        if !is_prepared {
            let kind = if epoch < self.epoch {
                FaultKind::Superseded { epoch: self.epoch, by: self.latest_by.clone() }
            } else {
                FaultKind::NotPrepared { epoch }
            };
            return self.refuse(session, id, kind);
        }
        let mut effects = Vec::new();
        if let Some(mut running) = self.running.take() {
            let kind = FaultKind::Superseded { epoch, by: self.latest_by.clone() };
            effects.extend(running.requests.fail_all(&self.fault_here(kind)));
            effects.push(Effect::StopEngine(running.assignment.epoch));
        }
        if let Some(open) = &mut self.open {
            open.phase = Phase::Connecting { commit: (session, id) };
        }
        effects.push(Effect::Connect(epoch));
        effects
    }

    fn connected(&mut self, epoch: Epoch, result: Result<(), Fault>) -> Vec<Effect> {
        if self.open_at(epoch).is_none() {
            return Vec::new();
        }
        if let Err(fault) = result {
            return self.fail_open(fault);
        }
        let Some(Open { assignment, phase: Phase::Connecting { commit: (session, id) }, .. }) = self.open.take() else {
            return Vec::new();
        };
        self.running = Some(Running { assignment, requests: Requests::default(), fault: None, peer_drains: None });
        vec![Effect::Respond { session, id, body: ResponseBody::Committed }]
    }

    fn check_generate(&self, generate: &Generate) -> Result<(), FaultKind> {
        let state = self.state();
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        let Some(running) = self.running.as_ref().filter(|running| running.fault.is_none()) else {
            return Err(FaultKind::NotServing { state: state.name().into() });
        };
        if running.assignment.rank != Rank(0) {
            return Err(FaultKind::NotHead);
        }
        if running.peer_drains.is_some() {
            return Err(FaultKind::Draining);
        }
        if running.requests.len() >= QUEUE_MAX {
            return Err(FaultKind::QueueFull { limit: QUEUE_MAX as u32 });
        }
        let invalid = |reason: String| Err(FaultKind::ParameterInvalid { reason });
        if generate.prompt.len() > PROMPT_BYTES_MAX {
            return invalid(format!("a prompt of {}, at most {}", generate.prompt.len(), PROMPT_BYTES_MAX));
        }
        if generate.max_tokens == 0 {
            return invalid("max_tokens is 0; ask for at least one token".into());
        }
        if generate.stop.len() > STOP_STRINGS_MAX || generate.stop.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
            return invalid(format!("at most {STOP_STRINGS_MAX} stop strings of {STOP_BYTES_MAX} bytes"));
        }
        generate.sampling.check().map_err(|error| FaultKind::ParameterInvalid { reason: error.to_string() })
    }

    fn generate(&mut self, session: SessionId, id: RequestId, generate: Generate) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        if running.requests.key(session, id).is_some() {
            let reason = format!("request id {id} is in use on this session");
            return self.refuse(session, id, FaultKind::ParameterInvalid { reason });
        }
        let key = running.requests.add(session, id);
        vec![Effect::Command(EngineCommand::Submit(key, generate.into()))]
    }

    fn engine(&mut self, epoch: Epoch, progress: Progress) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|running| running.assignment.epoch == epoch) else {
            return Vec::new();
        };
        let requests = &mut running.requests;
        let effect = match progress {
            Progress::Started(key, prompt_token_ids) => {
                requests.respond(key, ResponseBody::Started { prompt_token_ids })
            }
            Progress::Token(key, token) => {
                self.tokens += u64::from(token.id.is_some());
                requests.respond(key, ResponseBody::Token(token))
            }
            Progress::Finished(key, finished) => requests.end(key, ResponseBody::Finished(*finished)),
            Progress::Refused(key, fault) => requests.end(key, ResponseBody::Failed(fault)),
            Progress::Broken { rank: Some(rank), .. } => return self.peer_lost(epoch, rank, Loss::Reset),
            Progress::Broken { rank: None, reason } => {
                let fault = self.fault_here(FaultKind::Internal { reason });
                return self.break_down(fault);
            }
        };
        let mut effects: Vec<Effect> = effect.into_iter().collect();
        effects.extend(self.leave_if_drained());
        effects
    }

    fn peer_lost(&mut self, epoch: Epoch, rank: Rank, how: Loss) -> Vec<Effect> {
        let Some(running) = self.running.as_ref().filter(|running| running.assignment.epoch == epoch) else {
            return Vec::new();
        };
        let name = running.assignment.topology.members.get(rank.index()).map_or("?", |member| &member.name);
        let fault = Fault::new(name, FaultKind::NodeLost { how });
        self.break_down(fault)
    }

    /// The topology is broken: every request fails by name, once; the engine ends its waits.
    fn break_down(&mut self, fault: Fault) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|running| running.fault.is_none()) else { return Vec::new() };
        let mut effects = running.requests.fail_all(&fault);
        effects.push(Effect::AbortEngine(running.assignment.epoch));
        running.fault = Some(fault);
        effects.extend(self.leave_if_drained());
        effects
    }

    fn session_closed(&mut self, session: SessionId) -> Vec<Effect> {
        let mut effects = Vec::new();
        // A commit under way goes on: the other nodes switch too. A prepare without its console is given up.
        let is_open = |open: &Open| open.session == session && !matches!(open.phase, Phase::Connecting { .. });
        if self.open.as_ref().is_some_and(is_open) {
            effects.extend(self.give_up());
        }
        effects.extend(self.cancel_all(session));
        effects
    }

    fn session_slow(&mut self, session: SessionId) -> Vec<Effect> {
        let fault = self.fault_here(FaultKind::SlowReader);
        let Some(running) = &mut self.running else { return Vec::new() };
        let end = |key| {
            let respond = running.requests.end(key, ResponseBody::Failed(fault.clone()));
            respond.into_iter().chain([Effect::Command(EngineCommand::Cancel(key))])
        };
        running.requests.keys_of(session).into_iter().flat_map(end).collect()
    }

    fn cancel_all(&mut self, session: SessionId) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let cancel = |key| {
            running.requests.forget(key);
            Effect::Command(EngineCommand::Cancel(key))
        };
        let mut effects: Vec<Effect> = running.requests.keys_of(session).into_iter().map(cancel).collect();
        effects.extend(self.leave_if_drained());
        effects
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        self.now = now;
        let lease = self.patience.lease;
        let is_over = |open: &Open| matches!(open.phase, Phase::Prepared { since } if now >= since + lease);
        if self.open.as_ref().is_some_and(is_over) {
            return self.give_up();
        }
        match self.draining {
            Some(since) if now >= since + self.patience.drain => self.drain_ended(),
            _ => Vec::new(),
        }
    }

    fn terminate(&mut self, now: Duration) -> Vec<Effect> {
        self.now = now;
        if self.draining.is_some() {
            return self.drain_ended();
        }
        self.draining = Some(now);
        let mut effects = vec![Effect::AnnounceDraining];
        effects.extend(self.give_up());
        effects.extend(self.leave_if_drained());
        effects
    }

    /// The patience is over, or a second SIGTERM came: what runs fails by name.
    fn drain_ended(&mut self) -> Vec<Effect> {
        let fault = self.fault_here(FaultKind::DrainEnded);
        let mut effects = self.running.as_mut().map_or(Vec::new(), |running| running.requests.fail_all(&fault));
        effects.extend(self.exit());
        effects
    }

    /// A draining node leaves when nothing depends on it: as head when its requests are done, as another rank when
    /// the head has said that it takes no new work and has none left.
    fn leave_if_drained(&mut self) -> Vec<Effect> {
        if self.draining.is_none() {
            return Vec::new();
        }
        match &self.running {
            Some(running) if running.fault.is_none() && running.assignment.topology.world() > 1 => {
                if running.assignment.rank == Rank(0) && running.requests.is_empty() { self.exit() } else { Vec::new() }
            }
            Some(running) if !running.requests.is_empty() => Vec::new(),
            _ => self.exit(),
        }
    }

    fn peer_drains(&mut self, epoch: Epoch, rank: Rank, drain: PeerDrain) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|running| running.assignment.epoch == epoch) else {
            return Vec::new();
        };
        if drain.draining && running.assignment.rank == Rank(0) && running.peer_drains.is_none() {
            running.peer_drains = Some(rank);
            return vec![Effect::AnnounceDraining];
        }
        let head_is_done = rank == Rank(0) && drain.draining && !drain.busy;
        if self.draining.is_some() && head_is_done { self.exit() } else { Vec::new() }
    }

    fn exit(&mut self) -> Vec<Effect> {
        if std::mem::replace(&mut self.exited, true) { Vec::new() } else { vec![Effect::Exit(0)] }
    }
}
