//! Executes the node's effects: sessions, loads, links, the engine, heartbeats, the disk. The only module of `node`
//! with sockets, clocks and threads. It takes no decisions.
mod across;
mod asking;
mod assigning;
mod benching;
mod heartbeat;
mod linking;
mod loading;
mod models;
mod network;
mod orders;
mod outbox;
pub mod pacemaker;
mod recovery;
mod report;
mod running;
pub mod state;
pub mod steward;
mod supervisor;
mod watching;

pub use outbox::{Guest, Outbox, Queued, Room};

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use engine::{Variant, port::Progress};
use kernels::Kernels;
use protocol::{
    connection::Connection,
    handshake::{Identity, Purpose},
    message::{Request, RequestBody, ResponseBody},
};
use telemetry::{Health, NodeState};
use tokio::{
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use topology::Exclusions;

use self::{
    assigning::{LinkOutcome, LoadOutcome, Open},
    benching::Benching,
    models::Jobs,
    network::Network,
    pacemaker::Pacemaker,
    report::{Constants, Watcher},
    running::{Running, Surroundings},
    state::{Kept, StateFolder},
    supervisor::Supervisor,
    watching::Watching,
};
use super::{
    Effect, Event, Node, SessionId,
    event::{ExclusionsKept, Record},
    machine::{Beginning, Patience},
    slowness::Slowness,
};
use crate::{
    config::{Config, Paced},
    health::{Monitor, memory},
};

/// Events that may wait for the driver.
const INPUTS_MAX: usize = 1024;
/// Interval of timers and health checks.
const TICK: Duration = Duration::from_millis(50);
/// Resident memory is read at most this often.
const MEMORY_AGE: Duration = Duration::from_millis(500);

/// Inputs of the driver, from tasks and threads.
#[derive(Debug)]
pub enum Input {
    /// An event for the node.
    Event(Event),
    /// An event of the engine run with this number; events of earlier runs are ignored.
    #[doc(hidden)]
    Run(u64, Event),
    /// A console opened a session; responses go to the outbox.
    SessionOpened(SessionId, Outbox),
    /// An incoming link of a rank.
    Link {
        /// The connection after its Hello, before the Welcome.
        connection: Connection,
        /// Its purpose: data or control.
        purpose: Purpose,
        /// The identity of the dialling node.
        identity: Identity,
    },
    /// The settings were reloaded.
    Reloaded(Box<Config>),
    /// A health reading, and the monitor for the next one.
    Health(Box<Health>, Monitor),
    /// A load ended.
    #[doc(hidden)]
    Loaded(LoadOutcome),
    /// Links are open, or could not be opened.
    #[doc(hidden)]
    Linked(LinkOutcome),
}

/// The driver of one node.
#[derive(Debug)]
pub struct Driver {
    node: Node,
    config: Arc<Config>,
    identity: Identity,
    around: Surroundings,
    state: StateFolder,
    sessions: HashMap<SessionId, Outbox>,
    watchers: Vec<Watcher>,
    open: Option<Open>,
    running: Option<Running>,
    /// The latest benchmark.
    benching: Option<Benching>,
    jobs: Jobs,
    network: Network,
    /// Resident memory, and when it was read.
    memory: (Instant, Bytes),
    watching: Watching,
    supervisor: Supervisor,
    instance: u64,
    started: Instant,
    /// Number of assignments that were started.
    attempts: u64,
    /// Addresses at which other nodes reported that they listen.
    heard: BTreeMap<String, String>,
    slowness: Slowness,
    /// Like `slowness`, over the shorter window of rebalancing.
    balance: Slowness,
    draining: bool,
    exit: Option<i32>,
}

impl Driver {
    /// A driver for an idle node, and the sender for its inputs. `heartbeats` is a runtime used only for them.
    pub fn new(
        config: Arc<Config>,
        identity: Identity,
        kernels: &'static Kernels,
        (state, kept): (StateFolder, Kept),
        heartbeats: Handle,
        variant: Variant,
    ) -> (Self, Sender<Input>, Receiver<Input>) {
        let (inputs, receiver) = channel(INPUTS_MAX);
        let beginning = Beginning {
            name: config.name.clone(),
            epoch: kept.epoch,
            exclusions: kept.exclusions,
            supervised: config.supervised,
            committed: kept.committed,
            voter: kept.voter,
            witness: config.recovery.witness.clone(),
            rolling: kept.rolling,
        };
        for name in &kept.damaged {
            tracing::warn!(
                "{name} in the state folder was damaged and has been set aside; the node restores it from its peers"
            );
        }
        let monitor = Monitor::new(&config.health_root, config.listen, config.models.first().unwrap_or(&config.state));
        let around = Surroundings {
            name: config.name.clone(),
            kernels,
            threads: config.threads,
            liveness: config.liveness,
            prefill_elsewhere_from: config.prefill_elsewhere_from as usize,
            variant,
            inputs: inputs.clone(),
            pacemaker: Pacemaker(heartbeats),
        };
        let slowness = Slowness::new(config.recovery.exclude_slow);
        let balance = Slowness::new(config.recovery.rebalance_after);
        let driver = Self {
            node: Node::new(beginning, patience(&config)),
            around,
            config,
            identity,
            state,
            sessions: HashMap::new(),
            watchers: Vec::new(),
            open: None,
            running: None,
            benching: None,
            jobs: Jobs::default(),
            network: Network::default(),
            memory: (Instant::now(), memory::resident()),
            watching: Watching::new(monitor),
            supervisor: Supervisor::from_environment(),
            instance: instance(),
            started: Instant::now(),
            attempts: 0,
            heard: BTreeMap::new(),
            slowness,
            balance,
            draining: false,
            exit: None,
        };
        (driver, inputs, receiver)
    }

    /// Runs until the node wants to exit; returns the exit code.
    pub async fn run(mut self, mut inputs: Receiver<Input>) -> i32 {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        self.watching.begin(&self.around.inputs).await;
        self.supervisor.ready(&self.status());
        while self.exit.is_none() {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.input(input).await,
                    None => break,
                },
                _ = ticks.tick() => self.tick().await,
            }
        }
        self.supervisor.stopping();
        // No input is read from here on: an engine that waits for room in the queue must not block its own end.
        drop(inputs);
        if let Some(running) = self.running.take() {
            running.stop(true).await;
        }
        if let Some(benching) = self.benching.take() {
            benching.stop();
            benching.gone().await;
        }
        self.exit.unwrap_or(0)
    }

    async fn input(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.event(event).await,
            Input::Run(run, event) => {
                if self.running.as_ref().is_some_and(|running| running.run == run) {
                    self.event(event).await;
                }
            }
            Input::SessionOpened(session, outbox) => {
                self.sessions.insert(session, outbox);
            }
            Input::Reloaded(config) => self.reloaded(*config),
            Input::Health(health, monitor) => self.watching.read(*health, monitor),
            Input::Link { connection, purpose, identity } => self.link(connection, purpose, &identity),
            Input::Loaded(LoadOutcome(attempt, result)) => self.loaded(attempt, result).await,
            Input::Linked(LinkOutcome(attempt, result)) => self.linked(attempt, result).await,
        }
    }

    async fn event(&mut self, event: Event) {
        match &event {
            Event::SessionClosed(session) => {
                self.sessions.remove(session);
                self.watchers.retain(|watcher| watcher.session != *session);
                self.jobs.stop_all(*session);
            }
            Event::Request { session, request: Request { id, body: RequestBody::Cancel }, .. } => {
                self.jobs.stop(*session, *id);
            }
            Event::Engine(epoch, Progress::Broken { rank, reason }) => {
                tracing::warn!(%epoch, ?rank, reason, "the engine failed");
            }
            Event::Engine(epoch, Progress::Unreadable(reason)) => {
                tracing::warn!(%epoch, reason, "the engine failed");
            }
            // The loss of a rank of an earlier assignment is expected.
            Event::PeerLost(epoch, rank, how) if self.node.computes() == Some(*epoch) => {
                tracing::warn!(%epoch, %rank, "lost a rank: {how}");
            }
            Event::PeerFailed(epoch, rank, failed) if self.node.computes() == Some(*epoch) => {
                tracing::warn!(%epoch, %rank, "a peer reports that the topology broke at rank {failed}");
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
        if before != after {
            self.supervisor.status(&self.status());
        }
        for effect in effects {
            // The results of a cancelled or superseded bench are not answered.
            if let Effect::Respond { body: ResponseBody::Benched(found), .. } = &effect {
                self.network.keep(found);
            }
            Box::pin(self.perform(effect)).await;
        }
    }

    /// The status line of `systemctl status`.
    fn status(&self) -> String {
        let state = self.node.state().name();
        match self.node.topology() {
            Some((topology, _, member)) => {
                format!(
                    "{state}: member {member} of {} with {}, {}",
                    topology.layout,
                    topology.model,
                    self.node.shard()
                )
            }
            None => format!("{state}: no shard"),
        }
    }

    /// Applies settings that may change at run time; warns about the others.
    fn reloaded(&mut self, config: Config) {
        let fixed = |config: &Config| {
            let Config { listen, name, state, log_dir, http, .. } = config.clone();
            (listen, name, state, log_dir, http)
        };
        if fixed(&config) != fixed(&self.config) {
            tracing::warn!("listen, name, state, log_dir and http keep their old values until a restart");
        }
        let (listen, name) = (self.config.listen, self.config.name.clone());
        let (state, log_dir) = (self.config.state.clone(), self.config.log_dir.clone());
        let config = Config { listen, name, state, log_dir, http: self.config.http.clone(), ..config };
        self.node.set_patience(patience(&config));
        (self.around.threads, self.around.liveness) = (config.threads, config.liveness);
        self.around.prefill_elsewhere_from = config.prefill_elsewhere_from as usize;
        self.config = Arc::new(config);
        tracing::info!("settings reloaded; threads and liveness take effect with the next assignment");
        self.supervisor.ready(&self.status());
    }

    async fn tick(&mut self) {
        self.event(Event::Tick { now: self.started.elapsed() }).await;
        let stall = self.around.liveness.stall;
        if self.running.as_mut().is_none_or(|running| !running.is_stalled(stall)) {
            self.supervisor.alive();
        }
        self.running.iter_mut().for_each(Running::flush);
        self.watching.tick(&self.around.inputs);
        if self.memory.0.elapsed() > MEMORY_AGE && !self.watchers.is_empty() {
            self.memory = (Instant::now(), memory::resident());
        }
        if let Some(running) = self.running.as_ref().filter(|running| running.has_died()) {
            let reason = "the engine thread panicked; see its message in the log".into();
            let event = Event::Engine(running.epoch, Progress::Broken { rank: None, reason });
            self.event(event).await;
        }
        let now = Instant::now();
        let mut watchers = std::mem::take(&mut self.watchers);
        for watcher in watchers.iter_mut().filter(|watcher| watcher.next <= now) {
            watcher.next = now + watcher.interval;
            let body = self.report(&mut watcher.cursors);
            self.respond(watcher.session, watcher.id, body).await;
        }
        watchers.retain(|watcher| self.sessions.contains_key(&watcher.session));
        self.watchers = watchers;
    }

    fn report(&self, cursors: &mut report::Cursors) -> ResponseBody {
        let ring = self.running.as_ref().map(|running| &*running.ring);
        let paced = self.config.paced.as_ref().map(Paced::kernels);
        let constants = Constants {
            name: &self.config.name,
            instance: self.instance,
            supervised: self.config.supervised,
            recovers: self.config.recovery.enabled,
            kernels: paced.as_deref().unwrap_or(self.around.kernels.name),
        };
        ResponseBody::Report(Box::new(report::report(
            &self.node,
            constants,
            (&self.watching.health, self.memory.1),
            &self.network.measured,
            ring,
            cursors,
        )))
    }

    async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Respond { session, id, body } => self.respond(session, id, body).await,
            Effect::Report { session, id } => {
                self.memory = (Instant::now(), memory::resident());
                let body = self.report(&mut report::Cursors::default());
                self.respond(session, id, body).await;
            }
            Effect::Records { session, id } => self.records(session, id).await,
            Effect::Inspect { session, id, what } => self.inspect(session, id, what).await,
            Effect::Rekey { session, id, rekey } => self.rekey(session, id, rekey),
            Effect::Watch { session, id, interval } => self.watch(session, id, interval).await,
            Effect::Identify { session, id, model } => self.identify(session, id, model).await,
            Effect::Models { session, id, request } => self.models(session, id, *request).await,
            Effect::Bench(key, bench) => self.bench(key, *bench),
            Effect::StopBench(key) => {
                if let Some(benching) = self.benching.as_ref().filter(|benching| benching.key == key) {
                    benching.stop();
                }
            }
            Effect::Load(prepare) => self.load(*prepare),
            Effect::Discard(epoch) => {
                if let Some(open) = self.open.take_if(|open| open.place.epoch == epoch) {
                    open.cancelled.store(true, Ordering::Release);
                }
            }
            Effect::Persist(epoch, hash) => {
                let result = self.keep(move |state| state.save(&Record::Promise(epoch, hash))).await;
                self.event(Event::Persisted(epoch, result)).await;
            }
            Effect::KeepExclusions { session, id, list } => self.keep_exclusions(session, id, list).await,
            Effect::Write { records, then } => self.write(records, then).await,
            Effect::Standing { session, id, caller } => self.standing(session, id, caller).await,
            Effect::Connect(epoch) => self.connect(epoch),
            Effect::Command(command) => self.command(command).await,
            Effect::SendAcross(replica, message) => {
                if let Some(running) = &mut self.running {
                    running.send_across(replica, message);
                }
            }
            Effect::AbortEngine(epoch) => {
                if let Some(running) = self.running.as_ref().filter(|running| running.epoch == epoch) {
                    running.abort();
                }
            }
            Effect::AnnounceFault(epoch, rank) => {
                if let Some(running) = self.running.as_ref().filter(|running| running.epoch == epoch) {
                    running.announce_fault(rank);
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

    async fn keep_exclusions(&mut self, session: SessionId, id: common::ids::RequestId, list: Exclusions) {
        let kept = list.clone();
        let result = self.keep(move |state| state.save_exclusions(&kept)).await;
        if result.is_ok() {
            tell(&list);
        }
        self.event(Event::ExclusionsKept(ExclusionsKept { session, id, list, result })).await;
    }

    /// Writes to the state folder on a blocking thread.
    async fn keep(&self, save: impl FnOnce(&StateFolder) -> io::Result<()> + Send + 'static) -> Result<(), Fault> {
        let state = self.state.clone();
        let saved = spawn_blocking(move || save(&state)).await;
        let result = saved.map_err(|error| error.to_string()).and_then(|saved| saved.map_err(|e| e.to_string()));
        result.map_err(|reason| self.fault(FaultKind::StateUnwritable { reason }))
    }

    fn fault(&self, kind: FaultKind) -> Fault {
        Fault::new(&self.config.name, kind)
    }
}

fn patience(config: &Config) -> Patience {
    Patience { lease: config.lease, drain: config.drain }
}

/// A random number that differs from that of the previous start.
fn instance() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // TOML integers are signed.
    RandomState::new().build_hasher().finish() >> 1
}

fn tell(list: &Exclusions) {
    let out: Vec<String> =
        list.out().map(|entry| format!("{} ({})", entry.node, entry.reason.as_deref().unwrap_or(""))).collect();
    tracing::info!("excluded nodes: {}", if out.is_empty() { "none".into() } else { out.join(", ") });
}
