//! Does what the node says: sessions, loads, links, the engine, heartbeats, the disk. The only room of `node` with
//! sockets, clocks and threads; decides nothing itself.
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

use shared::{
    protocol::{
        connection::Connection,
        error::{Fault, FaultKind},
        handshake::{Identity, Purpose},
        message::{Request, RequestBody, ResponseBody},
    },
    telemetry::{Health, NodeState},
    topology::Exclusions,
    units::Bytes,
};
use tokio::{
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

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
    Effect, Event, Node, Progress, SessionId,
    event::{ExclusionsKept, Record},
    machine::{Beginning, Patience},
    slowness::Slowness,
};
use crate::{
    config::{Config, Paced},
    health::{Monitor, memory},
    kernels::Kernels,
};

/// Events that may wait for the driver.
const INPUTS_MAX: usize = 1024;
/// Time between two looks at clocks and watchers.
const TICK: Duration = Duration::from_millis(50);
/// Memory is read anew at most this often.
const MEMORY_AGE: Duration = Duration::from_millis(500);

/// What comes to the driver from tasks and threads.
#[derive(Debug)]
pub enum Input {
    /// Something for the node.
    Event(Event),
    /// Something of a run of the engine; nothing of an earlier run counts.
    #[doc(hidden)]
    Run(u64, Event),
    /// A console's session is open; responses go here.
    SessionOpened(SessionId, Outbox),
    /// A rank dialled.
    Link {
        /// The connection after its Hello, before the Welcome.
        connection: Connection,
        /// Its purpose: data or control.
        purpose: Purpose,
        /// Who dialled.
        identity: Identity,
    },
    /// Settings were read anew.
    Reloaded(Box<Config>),
    /// The machine's health was read; the monitor comes back for the next reading.
    Health(Box<Health>, Monitor),
    /// A load ended.
    #[doc(hidden)]
    Loaded(LoadOutcome),
    /// Links are open, or not.
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
    /// The latest bench.
    benching: Option<Benching>,
    jobs: Jobs,
    network: Network,
    /// Resident memory, and when it was read.
    memory: (Instant, Bytes),
    watching: Watching,
    supervisor: Supervisor,
    instance: u64,
    started: Instant,
    /// Counts assignments that were begun.
    attempts: u64,
    /// Where other nodes said that they listen.
    heard: BTreeMap<String, String>,
    slowness: Slowness,
    /// As `slowness`, over the shorter window that rebalancing uses.
    balance: Slowness,
    draining: bool,
    exit: Option<i32>,
}

impl Driver {
    /// A driver for an idle node, and the end through which everything reaches it. `heartbeats` is a runtime for nothing else.
    pub fn new(
        config: Arc<Config>,
        identity: Identity,
        kernels: &'static Kernels,
        (state, kept): (StateFolder, Kept),
        heartbeats: Handle,
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
                "{name} in the state folder was damaged and is put aside; the other nodes tell what it said"
            );
        }
        let monitor = Monitor::new(&config.health_root, config.listen, config.models.first().unwrap_or(&config.state));
        let around = Surroundings {
            name: config.name.clone(),
            kernels,
            threads: config.threads,
            liveness: config.liveness,
            omit_exchange: config.omit_exchange,
            plain: config.plain,
            elsewhere: (config.prefill_elsewhere_from as usize, config.transfer_at_end),
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
        // Nobody reads on: an engine that waits for room in the queue must not hold up its own end.
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
                tracing::warn!(%epoch, ?rank, reason, "the engine cannot go on");
            }
            Event::Engine(epoch, Progress::Unreadable(reason)) => {
                tracing::warn!(%epoch, reason, "the engine cannot go on");
            }
            // Ranks of an earlier assignment end as a matter of course.
            Event::PeerLost(epoch, rank, how) if self.node.computes() == Some(*epoch) => {
                tracing::warn!(%epoch, %rank, "a rank was lost: {how}");
            }
            Event::PeerFailed(epoch, rank, failed) if self.node.computes() == Some(*epoch) => {
                tracing::warn!(%epoch, %rank, "a rank says that the topology broke at rank {failed}");
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

    /// What `systemctl status` shows.
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

    /// Takes over what may change while it runs; says what may not.
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
        self.around.elsewhere = (config.prefill_elsewhere_from as usize, config.transfer_at_end);
        self.config = Arc::new(config);
        tracing::info!("settings are read anew; threads and liveness count from the next assignment on");
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
            let reason = "the engine's thread panicked; its message is in the log".into();
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

    async fn keep_exclusions(&mut self, session: SessionId, id: shared::ids::RequestId, list: Exclusions) {
        let kept = list.clone();
        let result = self.keep(move |state| state.save_exclusions(&kept)).await;
        if result.is_ok() {
            tell(&list);
        }
        self.event(Event::ExclusionsKept(ExclusionsKept { session, id, list, result })).await;
    }

    /// Writes to the state folder, apart from the threads of sockets.
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

/// A number that the start before did not have.
fn instance() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Whole numbers of TOML have a sign.
    RandomState::new().build_hasher().finish() >> 1
}

fn tell(list: &Exclusions) {
    let out: Vec<String> =
        list.out().map(|entry| format!("{} ({})", entry.node, entry.reason.as_deref().unwrap_or(""))).collect();
    tracing::info!("nodes that are out: {}", if out.is_empty() { "none".into() } else { out.join(", ") });
}
