//! Executes the node's effects: sessions, loads, links, the engine, heartbeats, the disk. The only module of `node`
//! with sockets, clocks and threads. It takes no decisions.
mod answering;
mod assigning;
mod bench_task;
mod benching;
mod cluster;
mod context;
mod cursors;
mod disk;
mod draft;
mod engine_host;
mod head_links;
mod heartbeat;
mod kv_keeping;
mod linking;
mod load_report;
mod loading;
mod models;
mod network;
mod opening;
mod orders;
mod outbox;
pub mod pacemaker;
mod reloading;
mod report;
mod room;
mod running;
mod sessions;
pub mod state;
pub mod steward;
mod supervisor;
#[cfg(test)]
mod tests;
mod watching;

pub use outbox::{Outbox, Queued, ResponseBudget, SessionClient};
pub use supervisor::extend_stop;

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::{
    Variant,
    port::{EngineEvent, ReplicaEvent},
};
use kernels::Kernels;
use protocol::{
    connection::Connection,
    handshake::{Identity, Purpose},
    message::{Request, RequestBody, ResponseBody},
};
use telemetry::{Health, NodeState};
use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{Receiver, Sender, channel},
        watch,
    },
    time::{Instant as Deadline, MissedTickBehavior, interval},
};

use self::{
    assigning::{Assignments, LinkOutcome, LoadOutcome, RankLink},
    bench_task::BenchSources,
    benching::BenchHost,
    cluster::{ClusterView, StandingSources},
    context::{DriverContext, instance},
    disk::Disk,
    engine_host::EngineHost,
    kv_keeping::KvKeeping,
    load_report::AttemptProgress,
    models::ModelJobs,
    pacemaker::Pacemaker,
    reloading::patience,
    report::{ReportSources, Reports},
    sessions::OpenSessions,
    state::{LoadRecord, PersistedState, StateFolder},
    supervisor::Supervisor,
};
use super::{
    Effect, Event, Node, SessionId,
    effect::{EngineEffect, SessionEffect},
    machine::NodeInit,
};
use crate::{config::Config, health::Monitor, kv_store::NodeStore};

/// Events that may wait for the driver.
const INPUTS_MAX: usize = 1024;
/// Interval of timers and health checks.
const TICK: Duration = Duration::from_millis(50);

/// Inputs of the driver, from tasks and threads.
#[derive(Debug)]
pub enum Input {
    /// An event for the node.
    Event(Event),
    /// An event of the engine run with this number; events of earlier runs are ignored.
    #[doc(hidden)]
    Run(u64, Event),
    /// An event of that engine itself.
    #[doc(hidden)]
    Engine(u64, EngineEvent),
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
    Health(Box<Health>, Box<Monitor>),
    /// Progress of a load.
    #[doc(hidden)]
    Loading(AttemptProgress),
    /// A load ended.
    #[doc(hidden)]
    Loaded(LoadOutcome),
    /// Links are open, or could not be opened.
    #[doc(hidden)]
    Linked(LinkOutcome),
}

/// The driver of one node: its rooms, each with the effects that it performs.
#[derive(Debug)]
pub struct Driver {
    node: Node,
    context: DriverContext,
    sessions: OpenSessions,
    reports: Reports,
    cluster: ClusterView,
    models: ModelJobs,
    kv: KvKeeping,
    disk: Disk,
    /// Results of the disk.
    written: disk::Results,
    assignments: Assignments,
    engine: EngineHost,
    benches: BenchHost,
    supervisor: Supervisor,
    /// For the parts of the daemon outside the driver.
    settings: watch::Sender<Arc<Config>>,
    exit: Option<i32>,
}

/// What a driver is started with.
#[derive(Debug)]
pub struct DriverInit {
    /// The settings.
    pub config: Arc<Config>,
    /// This node's identity.
    pub identity: Identity,
    /// The kernels of this machine.
    pub kernels: &'static Kernels,
    /// The state folder.
    pub state: StateFolder,
    /// The records in the state folder.
    pub persisted: PersistedState,
    /// A runtime used only for heartbeats.
    pub heartbeats: Handle,
    /// Deviations for benchmarks.
    pub variant: Variant,
}

/// The ends of a driver's queue of inputs.
#[derive(Debug)]
pub struct Inputs {
    /// For those that have an input for the driver.
    pub sender: Sender<Input>,
    /// For [`Driver::run`].
    pub receiver: Receiver<Input>,
}

impl Driver {
    /// A driver for an idle node, and its inputs.
    ///
    /// # Errors
    /// The thread that writes to the state folder cannot be started.
    pub fn new(init: DriverInit) -> io::Result<(Self, Inputs)> {
        let DriverInit { config, identity, kernels, state, persisted, heartbeats, variant } = init;
        let (sender, receiver) = channel(INPUTS_MAX);
        let name = config.name.clone();
        for file in &persisted.damaged {
            tracing::warn!(
                "{file} in the state folder was damaged and has been set aside; the node restores it from its peers"
            );
        }
        let node = NodeInit {
            name: name.clone(),
            epoch: persisted.epoch,
            exclusions: persisted.exclusions,
            supervised: config.supervised,
            committed: persisted.committed,
            voter: persisted.voter,
            witness: config.recovery.witness.clone(),
            rolling: persisted.rolling,
            unloaded: persisted.unloaded,
            neighbours: persisted.neighbours,
        };
        let monitor = Monitor::new(&config.health_root, config.listen, config.watched_folders());
        let loads = LoadRecord::new(state.clone(), identity.machine.clone(), config.recovery.exclude_after);
        let (disk, written) = Disk::start(name.clone(), state)?;
        let mut node = Node::new(node, patience(&config));
        node.keep_neighbours(config.http.peers.iter().chain(&config.recovery.witness).cloned());
        let driver = Self {
            node,
            sessions: OpenSessions::new(name.clone()),
            reports: Reports::new(monitor),
            cluster: ClusterView::new(&config),
            models: ModelJobs::default(),
            kv: KvKeeping::default(),
            disk,
            written,
            assignments: Assignments::new(loads),
            engine: EngineHost::new(name),
            benches: BenchHost::default(),
            supervisor: Supervisor::from_environment(),
            settings: watch::Sender::new(Arc::clone(&config)),
            exit: None,
            context: DriverContext {
                kv: Arc::new(NodeStore::open(&config)),
                config,
                identity,
                kernels,
                variant,
                inputs: sender.clone(),
                pacemaker: Pacemaker(heartbeats),
                instance: instance(),
                started: Instant::now(),
            },
        };
        Ok((driver, Inputs { sender, receiver }))
    }

    /// Runs until the node wants to exit; returns the exit code. Never waits for the disk meanwhile.
    pub async fn run(mut self, mut inputs: Receiver<Input>) -> i32 {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        self.reports.health.begin(&self.context.inputs).await;
        self.supervisor.ready(&self.status());
        while self.exit.is_none() {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.input(input),
                    None => break,
                },
                Some(result) = self.written.recv() => self.written(result),
                _ = ticks.tick() => self.tick(),
            }
        }
        self.supervisor.stopping();
        // No input is read from here on: an engine that waits for room in the queue must not block its own end.
        drop(inputs);
        self.engine.end().await;
        if let Some(bench) = self.benches.take() {
            bench.stop();
            bench.gone().await;
        }
        self.assignments.stop().await;
        let since = Deadline::now();
        while self.disk.is_pending()
            && let Some(result) = disk::flushed(&mut self.written, since).await
        {
            self.written(result);
        }
        self.exit.unwrap_or(0)
    }

    fn input(&mut self, input: Input) {
        let event = match input {
            Input::Event(event) => Some(event),
            Input::Run(run, event) => self.engine.is_run(run).then_some(event),
            Input::Engine(run, event) => {
                for event in self.engine.translate(run, event) {
                    self.event(event);
                }
                None
            }
            Input::SessionOpened(session, outbox) => {
                self.sessions.open(session, outbox);
                None
            }
            Input::Reloaded(config) => {
                self.reloaded(*config);
                None
            }
            Input::Health(health, monitor) => {
                self.reports.health.read(*health, *monitor);
                None
            }
            Input::Link { connection, purpose, identity } => {
                self.link(connection, purpose, identity);
                None
            }
            Input::Loading(progress) => self.assignments.progress(progress),
            Input::Loaded(outcome) => self.assignments.loaded(outcome, &self.context),
            Input::Linked(outcome) => self.assignments.linked(outcome, &self.context, &self.node, &mut self.engine),
        };
        if let Some(event) = event {
            self.event(event);
        }
    }

    fn link(&self, connection: Connection, purpose: Purpose, identity: Identity) {
        let (between, is_data) = match purpose {
            Purpose::Data(between) => (between, true),
            Purpose::Control(between) => (between, false),
            Purpose::Probe => return self.benches.network.accept(connection, &identity, self.bench_sources()),
            // Sessions are served elsewhere.
            Purpose::Console => return,
        };
        self.assignments.link(RankLink { connection, between, is_data, identity }, &self.node, &self.context);
    }

    fn bench_sources(&self) -> BenchSources<'_> {
        BenchSources { context: &self.context, node: &self.node, engine: self.engine.running() }
    }

    fn written(&mut self, result: Result<(), String>) {
        if let Some(event) = self.disk.written(result, &mut self.sessions) {
            self.event(event);
        } else {
            self.end_slow();
        }
    }

    /// Passes an event to the node, and those that follow from its effects.
    fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.decide(event) {
                events.extend(self.perform(effect));
            }
            events.extend(self.sessions.take_slow().into_iter().map(Event::SessionSlow));
        }
    }

    /// Reports to the node the sessions that ended because their clients read too slowly.
    fn end_slow(&mut self) {
        for session in self.sessions.take_slow() {
            self.event(Event::SessionSlow(session));
        }
    }

    /// Passes an event to the node; returns its effects.
    fn decide(&mut self, event: Event) -> Vec<Effect> {
        if let Event::SessionClosed(session) = &event {
            self.sessions.close(*session);
            self.models.stop_all(*session);
            self.kv.close(*session);
        }
        if let Event::Request { session, request: Request { id, body: RequestBody::Cancel }, .. } = &event {
            self.models.stop(*session, *id);
        }
        log_failure(&event, &self.node);
        let before = self.node.state();
        let was_out = matches!(event, Event::ExclusionsKept(_)) && self.is_out();
        let effects = self.node.handle(event);
        if was_out && !self.is_out() {
            self.assignments.forget_ends();
        }
        let after = self.node.state();
        let is_request = |state| matches!(state, NodeState::Ready | NodeState::Serving);
        if before != after && !(is_request(before) && is_request(after)) {
            tracing::info!(epoch = %self.node.epoch(), "{} -> {}", before.name(), after.name());
        }
        if before != after {
            self.supervisor.status(&self.status());
        }
        effects
    }

    /// Whether this node is excluded.
    fn is_out(&self) -> bool {
        self.node.exclusions().of(&self.context.config.name, "").is_some()
    }

    /// Performs an effect in its room; returns an event that follows at once.
    fn perform(&mut self, effect: Effect) -> Option<Event> {
        let (context, node) = (&self.context, &self.node);
        match effect {
            Effect::Session(effect) => {
                // The results of a cancelled or superseded bench are not answered.
                if let SessionEffect::Respond { body: ResponseBody::Benched(found), .. } = &effect {
                    self.benches.network.keep(found);
                }
                self.sessions.perform(effect, context);
            }
            Effect::Report(effect) => {
                let (engine, measured) = (self.engine.running(), &self.benches.network.measured);
                let sources = ReportSources { context, node, engine, measured };
                self.reports.perform(effect, sources, &mut self.sessions);
            }
            Effect::Cluster(effect) => {
                let warning = self.reports.health.health.cause().map(|warning| warning.to_string());
                let trouble = warning.or_else(|| self.disk.trouble(Instant::now()));
                let engine = self.engine.running();
                let sources = StandingSources { context, node, engine, trouble: trouble.as_deref() };
                self.cluster.perform(effect, sources, &mut self.sessions);
            }
            Effect::Model(effect) => self.models.perform(effect, context, &mut self.sessions),
            Effect::Kv(to, request) => self.kv.answer(to, *request, context, &mut self.sessions),
            Effect::Disk(effect) => return self.disk.perform(effect, &mut self.sessions),
            Effect::Assignment(effect) => {
                self.assignments.perform(effect, context, &mut self.benches, &self.engine);
            }
            Effect::Engine(EngineEffect::Text(to, request)) => {
                answering::answer(to, *request, self.engine.running(), &mut self.sessions);
            }
            Effect::Engine(effect) => return self.engine.perform(effect),
            Effect::Bench(effect) => {
                self.benches.perform(effect, BenchSources { context, node, engine: self.engine.running() });
            }
            Effect::Exit(code) => self.exit = Some(code),
        }
        None
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

    fn tick(&mut self) {
        self.event(Event::Tick { now: self.context.started.elapsed() });
        if self.engine.tick(self.context.config.liveness.stall) {
            self.supervisor.alive(self.node.state() == NodeState::Draining);
        }
        self.disk.tick(Instant::now());
        self.reports.health.tick(&self.context.inputs);
        if let Some(event) = self.engine.death() {
            self.event(event);
        }
        let (engine, measured) = (self.engine.running(), &self.benches.network.measured);
        let sources = ReportSources { context: &self.context, node: &self.node, engine, measured };
        self.reports.send_due(sources, &mut self.sessions);
        self.end_slow();
    }
}

/// Logs the failure of an engine, and the loss of a rank.
fn log_failure(event: &Event, node: &Node) {
    match event {
        Event::Engine(epoch, ReplicaEvent::Broken { rank, reason }) => {
            tracing::warn!(%epoch, ?rank, reason, "the engine failed");
        }
        Event::Engine(epoch, ReplicaEvent::Unreadable(reason)) => {
            tracing::warn!(%epoch, reason, "the engine failed");
        }
        // The loss of a rank of an earlier assignment is expected.
        Event::PeerLost(epoch, rank, how) if node.computes() == Some(*epoch) => {
            tracing::warn!(%epoch, %rank, "lost a rank: {how}");
        }
        Event::PeerFailed { epoch, reporter, failed, .. } if node.computes() == Some(*epoch) => {
            tracing::warn!(%epoch, rank = %reporter, "a peer reports that the topology broke at rank {failed}");
        }
        Event::PeerLost(..) | Event::PeerFailed { .. } => {}
        Event::Engine(_, ReplicaEvent::Kv(_) | ReplicaEvent::Across(..))
        | Event::Request { .. }
        | Event::SessionClosed(_)
        | Event::SessionSlow(_)
        | Event::LoadProgress(..)
        | Event::Loaded(..)
        | Event::Persisted(..)
        | Event::Connected(..)
        | Event::Answer(..)
        | Event::PeerDrains(..)
        | Event::Across(..)
        | Event::ExclusionsKept(_)
        | Event::BenchProgress(..)
        | Event::BenchEnded(..)
        | Event::Tick { .. }
        | Event::Terminate { .. } => {}
    }
}
