//! Does what the node says: sessions, loads, links, the engine, heartbeats, the disk. The only room of `node` with
//! sockets, clocks and threads; decides nothing itself.
mod heartbeat;
mod linking;
mod loading;
mod report;
mod running;
pub mod state;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use shared::{
    ids::{Epoch, RequestId},
    protocol::{
        NUMERIC_VERSION,
        connection::send_welcome,
        error::{Fault, FaultKind},
        handshake::{Between, Identity, Purpose, Welcome},
        message::{Prepare, Response, ResponseBody},
    },
    telemetry::{LoadProgress, NodeState},
};
use tokio::{
    net::TcpStream,
    sync::mpsc::{Receiver, Sender, channel},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use self::{
    linking::{Arrival, Linking, OpenLinks},
    loading::Loaded,
    report::Watcher,
    running::{Place, Running, Surroundings},
    state::StateFolder,
};
use super::{Effect, Event, Node, Progress, SessionId, machine::Patience};
use crate::{config::Config, health::memory, kernels::Kernels};

/// Responses that may wait for a session's socket; a reader that is further behind is cut off.
pub const RESPONSES_MAX: usize = 256;
/// Events that may wait for the driver.
const INPUTS_MAX: usize = 1024;
/// Time between two looks at clocks and watchers.
const TICK: Duration = Duration::from_millis(50);
/// Memory is read anew at most this often.
const MEMORY_AGE: Duration = Duration::from_millis(500);
/// Most reporting subscriptions.
const WATCHERS_MAX: usize = 128;

/// What comes to the driver from tasks and threads.
#[derive(Debug)]
pub enum Input {
    /// Something for the node.
    Event(Event),
    /// A console's session is open; responses go here.
    SessionOpened(SessionId, Sender<Response>),
    /// A rank dialled.
    Link {
        /// The socket after its Hello, before the Welcome.
        stream: TcpStream,
        /// Its purpose: data or control.
        purpose: Purpose,
        /// Who dialled.
        identity: Identity,
    },
    /// A load ended.
    #[doc(hidden)]
    Loaded(LoadOutcome),
    /// Links are open, or not.
    #[doc(hidden)]
    Linked(LinkOutcome),
}

/// A finished load.
#[derive(Debug)]
pub struct LoadOutcome(Epoch, Result<Box<Loaded>, FaultKind>);

/// Opened links.
#[derive(Debug)]
pub struct LinkOutcome(Epoch, Result<OpenLinks, FaultKind>);

/// An assignment between its load and its start.
#[derive(Debug)]
struct Open {
    place: Place,
    loaded: Option<Box<Loaded>>,
    cancelled: Arc<AtomicBool>,
    arrivals: Sender<Arrival>,
    arrived: Option<Receiver<Arrival>>,
}

/// The driver of one node.
#[derive(Debug)]
pub struct Driver {
    node: Node,
    config: Arc<Config>,
    identity: Identity,
    around: Surroundings,
    state: StateFolder,
    sessions: HashMap<SessionId, Sender<Response>>,
    watchers: Vec<Watcher>,
    open: Option<Open>,
    running: Option<Running>,
    memory: (Instant, memory::Memory),
    started: Instant,
    draining: bool,
    exit: Option<i32>,
}

impl Driver {
    /// A driver for an idle node, and the end through which everything reaches it.
    pub fn new(
        config: Arc<Config>,
        identity: Identity,
        kernels: &'static Kernels,
        (state, epoch): (StateFolder, Epoch),
    ) -> (Self, Sender<Input>, Receiver<Input>) {
        let (inputs, receiver) = channel(INPUTS_MAX);
        let patience = Patience { lease: config.lease, drain: config.drain };
        let (name, threads, liveness) = (config.name.clone(), config.threads, config.liveness);
        let driver = Self {
            node: Node::new(name.clone(), epoch, patience),
            around: Surroundings { name, kernels, threads, liveness, inputs: inputs.clone() },
            config,
            identity,
            state,
            sessions: HashMap::new(),
            watchers: Vec::new(),
            open: None,
            running: None,
            memory: (Instant::now(), memory::read()),
            started: Instant::now(),
            draining: false,
            exit: None,
        };
        (driver, inputs, receiver)
    }

    /// Runs until the node wants to exit; returns the exit code.
    pub async fn run(mut self, mut inputs: Receiver<Input>) -> i32 {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while self.exit.is_none() {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.input(input).await,
                    None => break,
                },
                _ = ticks.tick() => self.tick().await,
            }
        }
        // Nobody reads on: an engine that waits for room in the queue must not hold up its own end.
        drop(inputs);
        if let Some(running) = self.running.take() {
            running.stop(true).await;
        }
        self.exit.unwrap_or(0)
    }

    async fn input(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.event(event).await,
            Input::SessionOpened(session, responses) => {
                self.sessions.insert(session, responses);
            }
            Input::Link { stream, purpose, identity } => self.link(stream, purpose, &identity),
            Input::Loaded(LoadOutcome(epoch, result)) => self.loaded(epoch, result).await,
            Input::Linked(LinkOutcome(epoch, result)) => self.linked(epoch, result).await,
        }
    }

    async fn event(&mut self, event: Event) {
        match &event {
            Event::SessionClosed(session) => {
                self.sessions.remove(session);
                self.watchers.retain(|watcher| watcher.session != *session);
            }
            Event::Engine(epoch, Progress::Broken { rank, reason }) => {
                tracing::warn!(%epoch, ?rank, reason, "the engine cannot go on");
            }
            // Ranks of an earlier assignment end as a matter of course.
            Event::PeerLost(epoch, rank, how) if *epoch == self.node.epoch() => {
                tracing::warn!(%epoch, %rank, "a rank was lost: {how}");
            }
            _ => {}
        }
        let before = self.node.state();
        let effects = self.node.handle(event);
        let after = self.node.state();
        let is_request = |state| matches!(state, NodeState::Ready | NodeState::Serving);
        if before != after && !(is_request(before) && is_request(after)) {
            tracing::info!(epoch = %self.node.epoch(), "{} -> {}", before.name(), after.name());
        }
        for effect in effects {
            Box::pin(self.perform(effect)).await;
        }
    }

    async fn tick(&mut self) {
        self.event(Event::Tick { now: self.started.elapsed() }).await;
        if self.memory.0.elapsed() > MEMORY_AGE && !self.watchers.is_empty() {
            self.memory = (Instant::now(), memory::read());
        }
        if let Some(running) = self.running.as_ref().filter(|running| running.has_died()) {
            let reason = "the engine's thread panicked; its message is in the log".into();
            let event = Event::Engine(running.epoch, Progress::Broken { rank: None, reason });
            self.event(event).await;
        }
        let now = Instant::now();
        let mut watchers = std::mem::take(&mut self.watchers);
        for watcher in watchers.iter_mut().filter(|watcher| watcher.next <= now) {
            watcher.next = now + watcher.interval;
            let body = self.report(&mut watcher.cursor);
            self.respond(watcher.session, watcher.id, body).await;
        }
        watchers.retain(|watcher| self.sessions.contains_key(&watcher.session));
        self.watchers = watchers;
    }

    fn report(&self, cursor: &mut u64) -> ResponseBody {
        let ring = self.running.as_ref().map(|running| &*running.ring);
        let who = (&self.node, self.config.name.as_str(), self.around.kernels.name);
        ResponseBody::Report(Box::new(report::report(who, self.memory.1, ring, cursor)))
    }

    async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Respond { session, id, body } => self.respond(session, id, body).await,
            Effect::Report { session, id } => {
                self.memory = (Instant::now(), memory::read());
                let body = self.report(&mut 0);
                self.respond(session, id, body).await;
            }
            Effect::Watch { session, id, interval } => self.watch(session, id, interval).await,
            Effect::Identify { session, id, model } => self.identify(session, id, model),
            Effect::Load(prepare) => self.load(*prepare),
            Effect::Discard(epoch) => {
                if let Some(open) = self.open.take_if(|open| open.place.epoch == epoch) {
                    open.cancelled.store(true, Ordering::Release);
                }
            }
            Effect::Persist(epoch, hash) => {
                let state = self.state.clone();
                let saved = spawn_blocking(move || state.save(epoch, hash)).await;
                let result =
                    saved.map_err(|error| error.to_string()).and_then(|saved| saved.map_err(|e| e.to_string()));
                let result = result.map_err(|reason| self.fault(FaultKind::StateUnwritable { reason }));
                self.event(Event::Persisted(epoch, result)).await;
            }
            Effect::Connect(epoch) => self.connect(epoch),
            Effect::Command(command) => {
                if let Some(running) = &self.running {
                    running.command(command);
                }
            }
            Effect::AbortEngine(epoch) => {
                if let Some(running) = self.running.as_ref().filter(|running| running.epoch == epoch) {
                    running.abort();
                }
            }
            Effect::StopEngine(epoch) => {
                if let Some(running) = self.running.take_if(|running| running.epoch == epoch) {
                    tokio::spawn(running.stop(false));
                }
            }
            Effect::AnnounceDraining => {
                self.draining = self.node.state() == NodeState::Draining;
                if let Some(running) = &self.running {
                    running.announce_draining();
                }
            }
            Effect::Exit(code) => self.exit = Some(code),
        }
    }

    fn fault(&self, kind: FaultKind) -> Fault {
        Fault::new(&self.config.name, kind)
    }

    async fn respond(&mut self, session: SessionId, id: RequestId, body: ResponseBody) {
        let Some(responses) = self.sessions.get(&session) else { return };
        let is_last = responses.capacity() <= 1;
        if responses.try_send(Response { id, body }).is_ok() && !is_last {
            return;
        }
        // The last place is for the reason; then the session ends.
        tracing::warn!(?session, "a console reads too slowly; its session is closed");
        self.watchers.retain(|watcher| watcher.session != session);
        if let Some(responses) = self.sessions.remove(&session) {
            let body = ResponseBody::Failed(self.fault(FaultKind::SlowReader));
            // If even that finds no place, the closed session says enough.
            let _ = responses.try_send(Response { id, body });
        }
        Box::pin(self.event(Event::SessionSlow(session))).await;
    }

    async fn watch(&mut self, session: SessionId, id: RequestId, interval: Duration) {
        if self.watchers.len() >= WATCHERS_MAX {
            let kind = FaultKind::Full { what: "watching consoles".into(), limit: WATCHERS_MAX as u32 };
            let body = ResponseBody::Failed(self.fault(kind));
            return self.respond(session, id, body).await;
        }
        let cursor = 0;
        self.watchers.push(Watcher { session, id, interval, next: Instant::now(), cursor });
    }

    fn identify(&self, session: SessionId, id: RequestId, model: String) {
        let Some(responses) = self.sessions.get(&session).cloned() else { return };
        let config = Arc::clone(&self.config);
        tokio::spawn(async move {
            let found = spawn_blocking({
                let config = Arc::clone(&config);
                move || loading::identify(&config.models, &model)
            });
            let kind = match found.await {
                Ok(Ok(card)) => return drop(responses.try_send(Response { id, body: ResponseBody::Model(card) })),
                Ok(Err(kind)) => kind,
                Err(error) => FaultKind::Internal { reason: error.to_string() },
            };
            let body = ResponseBody::Failed(Fault::new(&config.name, kind));
            // A session that is gone or full needs no answer.
            let _ = responses.try_send(Response { id, body });
        });
    }

    fn load(&mut self, prepare: Prepare) {
        let cancelled = Arc::new(AtomicBool::new(false));
        let topology = prepare.topology.clone();
        let (arrivals, arrived) = channel(4 * topology.world());
        let place = Place { epoch: prepare.epoch, hash: topology.hash(), topology, rank: prepare.rank };
        let arrived = Some(arrived);
        self.open = Some(Open { place, loaded: None, cancelled: Arc::clone(&cancelled), arrivals, arrived });
        let (config, inputs) = (Arc::clone(&self.config), self.around.inputs.clone());
        spawn_blocking(move || {
            let epoch = prepare.epoch;
            let begun = Instant::now();
            let told = AtomicU64::new(0);
            let progress = |progress: LoadProgress| {
                // At most ten a second, and the last.
                let now = begun.elapsed().as_millis() as u64;
                let last = told.load(Ordering::Relaxed);
                if (now >= last + 100 || progress.done == progress.total)
                    && told.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    // A full queue drops a progress line, nothing else.
                    let _ = inputs.try_send(Input::Event(Event::LoadProgress(epoch, progress)));
                }
                !cancelled.load(Ordering::Acquire)
            };
            let result = loading::load((&config.models, config.memory_max), &prepare, &progress).map(Box::new);
            tracing::info!(%epoch, model = prepare.topology.model, ok = result.is_ok(), ms = begun.elapsed().as_millis() as u64, "load ended");
            let _ = inputs.blocking_send(Input::Loaded(LoadOutcome(epoch, result)));
        });
    }

    async fn loaded(&mut self, epoch: Epoch, result: Result<Box<Loaded>, FaultKind>) {
        let result = match (self.open.as_mut().filter(|open| open.place.epoch == epoch), result) {
            (Some(open), Ok(loaded)) => {
                let bytes = loaded.bytes;
                open.loaded = Some(loaded);
                Ok(bytes)
            }
            (_, Err(kind)) => Err(self.fault(kind)),
            (None, Ok(_)) => return,
        };
        self.event(Event::Loaded(epoch, result)).await;
    }

    /// A rank dialled: it is let in if its assignment is being connected here.
    fn link(&mut self, mut stream: TcpStream, purpose: Purpose, identity: &Identity) {
        let (between, is_data) = match purpose {
            Purpose::Data(between) => (between, true),
            Purpose::Control(between) => (between, false),
            Purpose::Console => return,
        };
        let verdict = self.check_link(&between, identity);
        let welcome = match verdict {
            Ok(_) => Welcome::Accepted(self.identity.clone()),
            Err(ref kind) => Welcome::Refused(self.fault(kind.clone())),
        };
        tokio::spawn(async move {
            if send_welcome(&mut stream, &welcome).await.is_ok()
                && let Ok(arrivals) = verdict
            {
                // If the assignment ended meanwhile, the socket closes.
                let _ = arrivals.send(Arrival { from: between.from, is_data, stream }).await;
            }
        });
    }

    fn check_link(&self, between: &Between, identity: &Identity) -> Result<Sender<Arrival>, FaultKind> {
        let not_prepared = FaultKind::NotPrepared { epoch: between.epoch };
        let open = self.open.as_ref().filter(|_| self.node.expects_links(between.epoch, between.hash));
        let open = open.ok_or(not_prepared)?;
        if identity.numeric != NUMERIC_VERSION {
            return Err(FaultKind::NumericVersion { theirs: identity.numeric, own: NUMERIC_VERSION });
        }
        let member = open.place.topology.members.get(between.from.index());
        let is_lower = between.from < between.to && between.to == open.place.rank;
        if !is_lower || member.is_none_or(|member| member.name != identity.name) {
            let reason = format!("{} dialled as rank {} to rank {}", identity.name, between.from, between.to);
            return Err(FaultKind::LinksFailed { reason });
        }
        Ok(open.arrivals.clone())
    }

    fn connect(&mut self, epoch: Epoch) {
        let Some(open) = self.open.as_mut().filter(|open| open.place.epoch == epoch) else { return };
        let Some(arrived) = open.arrived.take() else { return };
        let Place { epoch, hash, topology, rank: own } = open.place.clone();
        let linking = Linking { identity: self.identity.clone(), topology, epoch, hash, own };
        let inputs = self.around.inputs.clone();
        tokio::spawn(async move {
            let result = linking::open(linking, arrived).await;
            let _ = inputs.send(Input::Linked(LinkOutcome(epoch, result))).await;
        });
    }

    async fn linked(&mut self, epoch: Epoch, result: Result<OpenLinks, FaultKind>) {
        let Some(open) = self.open.take_if(|open| open.place.epoch == epoch) else { return };
        let started = result.and_then(|links| {
            let loaded = open.loaded.ok_or(FaultKind::NotPrepared { epoch })?;
            Running::start(&self.around, open.place, *loaded, links)
        });
        let result = match started {
            Ok(running) => {
                if self.draining {
                    running.announce_draining();
                }
                self.running = Some(running);
                Ok(())
            }
            Err(kind) => Err(self.fault(kind)),
        };
        self.event(Event::Connected(epoch, result)).await;
    }
}
