//! Executes an assignment: loads the shard, accepts incoming links, opens the others, starts the engine.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use common::{
    fault::FaultKind,
    ids::{Epoch, MemberIndex},
};
use protocol::{
    NUMERIC_VERSION,
    connection::{Connection, send_welcome},
    handshake::{Between, Identity, Welcome},
    message::Prepare,
};
use telemetry::{LoadProgress, NodeState};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::{AbortHandle, spawn_blocking},
    time::timeout,
};
use tokio_util::task::TaskTracker;
use topology::Topology;

use super::{
    Input,
    bench_task::{BenchTask, GONE},
    benching::BenchHost,
    context::DriverContext,
    engine_host::EngineHost,
    linking::{self, IncomingLink, Linking, OpenLinks},
    loading::{self, Loaded},
    running::{EngineStart, LocalAssignment, RunningEngine},
    state::LoadRecord,
};
use crate::{
    kv_store::KvPeers,
    node::{Event, Node, effect::AssignmentEffect},
};

/// A finished load; the result of an earlier attempt at the same epoch is ignored.
#[derive(Debug)]
pub struct LoadOutcome {
    attempt: u64,
    result: Result<Box<Loaded>, FaultKind>,
}

/// Progress of a load; that of an earlier attempt at the same epoch is ignored.
#[derive(Clone, Copy, Debug)]
pub struct AttemptProgress {
    pub(super) attempt: u64,
    pub(super) progress: LoadProgress,
}

/// Opened links, or why they could not be opened.
#[derive(Debug)]
pub struct LinkOutcome {
    attempt: u64,
    result: Result<OpenLinks, FaultKind>,
    peers: Option<Arc<KvPeers>>,
}

/// An incoming link of a rank, after its Hello and before the Welcome.
#[derive(Debug)]
pub(super) struct RankLink {
    pub(super) connection: Connection,
    pub(super) between: Between,
    pub(super) is_data: bool,
    pub(super) identity: Identity,
}

/// An assignment between its load and its start.
#[derive(Debug)]
struct PendingAssignment {
    attempt: u64,
    place: LocalAssignment,
    loaded: Option<Box<Loaded>>,
    cancelled: Arc<AtomicBool>,
    arrivals: Sender<IncomingLink>,
    arrived: Option<Receiver<IncomingLink>>,
    /// The task that opens links ends with the assignment, so that a later assignment of the same epoch gets none of
    /// them.
    linking: Option<AbortOnDrop>,
}

/// A task that is aborted when this is dropped.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tasks that are about to end and may still hold memory that the next shard needs.
#[derive(Debug)]
struct MemoryHolders {
    bench: Option<BenchTask>,
    /// Stopped engines.
    engines: TaskTracker,
}

impl MemoryHolders {
    /// Waits for all of them to end.
    async fn gone(self) {
        if let Some(bench) = self.bench {
            bench.gone().await;
        }
        // An engine first ends its step and then frees its shard. If it hangs, the load finds too little memory.
        let _ = timeout(GONE, self.engines.wait()).await;
    }
}

/// The assignment that is being loaded or connected, if there is one.
#[derive(Debug)]
pub(super) struct Assignments {
    open: Option<PendingAssignment>,
    /// Number of assignments that were started.
    attempts: u64,
    record: Arc<LoadRecord>,
}

impl Assignments {
    pub(super) fn new(record: LoadRecord) -> Self {
        Self { open: None, attempts: 0, record: Arc::new(record) }
    }

    /// The process ends, even in the middle of a load.
    pub(super) fn stop(&self) {
        self.record.stop();
    }

    pub(super) fn perform(
        &mut self,
        effect: AssignmentEffect,
        context: &DriverContext,
        benches: &mut BenchHost,
        engine: &EngineHost,
    ) {
        match effect {
            AssignmentEffect::Load(prepare) => {
                let before = MemoryHolders { bench: benches.take(), engines: engine.stopping().clone() };
                self.load(*prepare, context, before);
            }
            AssignmentEffect::Discard(epoch) => {
                if let Some(open) = self.open.take_if(|open| open.place.epoch == epoch) {
                    open.cancelled.store(true, Ordering::Release);
                }
            }
            AssignmentEffect::Connect(epoch) => self.connect(epoch, context),
        }
    }

    /// Loads a shard on a blocking thread, after the end of those that hold memory.
    fn load(&mut self, prepare: Prepare, context: &DriverContext, before: MemoryHolders) {
        let cancelled = Arc::new(AtomicBool::new(false));
        let topology = prepare.topology.clone();
        let (arrivals, arrived) = channel(4 * topology.members.len());
        let place = LocalAssignment { epoch: prepare.epoch, hash: topology.hash(), topology, member: prepare.member };
        self.attempts += 1;
        let attempt = self.attempts;
        self.open = Some(PendingAssignment {
            attempt,
            place,
            loaded: None,
            cancelled: Arc::clone(&cancelled),
            arrivals,
            arrived: Some(arrived),
            linking: None,
        });
        let (context, record) = (context.clone(), Arc::clone(&self.record));
        tokio::spawn(async move {
            before.gone().await;
            spawn_blocking(move || run_load(&context, &record, attempt, &prepare, &cancelled));
        });
    }

    /// The event of the progress of a load, unless the assignment was abandoned: another one may load in its epoch.
    pub(super) fn progress(&self, load: AttemptProgress) -> Option<Event> {
        let AttemptProgress { attempt, progress } = load;
        let open = self.open.as_ref().filter(|open| open.attempt == attempt)?;
        Some(Event::LoadProgress(open.place.epoch, progress))
    }

    /// Takes the result of a load. Returns its event, unless the assignment was abandoned.
    pub(super) fn loaded(&mut self, outcome: LoadOutcome, context: &DriverContext) -> Option<Event> {
        let LoadOutcome { attempt, result } = outcome;
        let open = self.open.as_mut().filter(|open| open.attempt == attempt)?;
        let result = result.map_err(|kind| context.fault(kind)).map(|loaded| {
            let bytes = loaded.bytes;
            open.loaded = Some(loaded);
            bytes
        });
        Some(Event::Loaded(open.place.epoch, result))
    }

    /// Accepts an incoming link of a rank if its assignment is being connected here.
    pub(super) fn link(&self, link: RankLink, node: &Node, context: &DriverContext) {
        let RankLink { mut connection, between, is_data, identity } = link;
        let checked = context.identity.check_ranks(&identity, connection.highest);
        let verdict = checked.and_then(|()| self.check_link(&between, &identity, node));
        let from = between.from;
        let welcome = match verdict {
            Ok(_) => Welcome::Accepted(context.identity.clone()),
            Err(ref kind) => Welcome::Refused(context.fault(kind.clone())),
        };
        tokio::spawn(async move {
            if send_welcome(&mut connection, &welcome).await.is_ok()
                && let Ok(arrivals) = verdict
            {
                // If the assignment ended meanwhile, the socket closes.
                let _ = arrivals.send(IncomingLink { from, is_data, connection }).await;
            }
        });
    }

    fn check_link(
        &self,
        between: &Between,
        identity: &Identity,
        node: &Node,
    ) -> Result<Sender<IncomingLink>, FaultKind> {
        let open = self.open.as_ref().filter(|_| node.expects_links(between.epoch, between.hash));
        let open = open.ok_or_else(|| unexpected(between, node))?;
        if identity.numeric != NUMERIC_VERSION {
            return Err(FaultKind::NumericVersion { theirs: identity.numeric, own: NUMERIC_VERSION });
        }
        let topology = &open.place.topology;
        let member = topology.members.get(between.from.index());
        let is_of_replica = member.is_some() && topology.are_linked(between.from, open.place.member);
        let is_lower = between.from < between.to && between.to == open.place.member;
        if !is_lower || !is_of_replica || member.is_none_or(|member| member.name != identity.name) {
            let reason = format!("{} dialled as member {} to member {}", identity.name, between.from, between.to);
            return Err(FaultKind::LinksFailed { reason });
        }
        Ok(open.arrivals.clone())
    }

    fn connect(&mut self, epoch: Epoch, context: &DriverContext) {
        let Some(open) = self.open.as_mut().filter(|open| open.place.epoch == epoch) else { return };
        let Some(arrived) = open.arrived.take() else { return };
        let attempt = open.attempt;
        let LocalAssignment { epoch, hash, topology, member: own } = open.place.clone();
        let peers = kv_peers(context, &topology, own).map(Arc::new);
        let linking = Linking { identity: context.identity.clone(), topology, epoch, hash, own };
        let inputs = context.inputs.clone();
        let task = tokio::spawn(async move {
            let asking = async {
                if let Some(peers) = &peers {
                    peers.ask_all().await;
                }
            };
            let (result, ()) = tokio::join!(linking::open(linking, arrived), asking);
            let _ = inputs.send(Input::Linked(LinkOutcome { attempt, result, peers })).await;
        });
        open.linking = Some(AbortOnDrop(task.abort_handle()));
    }

    /// Starts the engine on opened links. Returns the event, unless the assignment was abandoned.
    pub(super) fn linked(
        &mut self,
        outcome: LinkOutcome,
        context: &DriverContext,
        node: &Node,
        engine: &mut EngineHost,
    ) -> Option<Event> {
        let LinkOutcome { attempt, result, peers } = outcome;
        let open = self.open.take_if(|open| open.attempt == attempt)?;
        let epoch = open.place.epoch;
        let started = result.and_then(|links| {
            let loaded = *open.loaded.ok_or(FaultKind::NotPrepared { epoch })?;
            RunningEngine::start(context, EngineStart { run: attempt, place: open.place, loaded, links, peers })
        });
        let result = started.map(|running| engine.host(running, node.state() == NodeState::Draining));
        let result = result.map_err(|kind| context.fault(kind));
        Some(Event::Connected(epoch, result))
    }
}

/// The other nodes of a topology, of which the next rank of the replica keeps copies of keys and values.
fn kv_peers(context: &DriverContext, topology: &Topology, own: MemberIndex) -> Option<KvPeers> {
    if context.kv.folder().is_none() || !context.config.kv_store.copies {
        return None;
    }
    let replica = topology.layout.members(topology.place(own).replica);
    let ring = if replica.len() > 1 { replica } else { 0..topology.members.len() };
    let next = if own.index() + 1 < ring.end { own.index() + 1 } else { ring.start };
    let others = topology.members.iter().enumerate().filter(|(index, _)| *index != own.index());
    let buddy = others.clone().position(|(index, _)| index == next);
    let addresses: Vec<String> = others.map(|(_, member)| member.address.clone()).collect();
    (!addresses.is_empty()).then(|| KvPeers::new(context.identity.clone(), addresses, buddy))
}

/// Loads a shard and reports its progress.
fn run_load(context: &DriverContext, record: &LoadRecord, attempt: u64, prepare: &Prepare, cancelled: &AtomicBool) {
    let (epoch, inputs) = (prepare.epoch, &context.inputs);
    let report = LoadReport { attempt, inputs, begun: Instant::now(), sent_ms: AtomicU64::new(0) };
    let begun = record.begin(attempt, prepare.topology.hash(), context.started.elapsed());
    let result = begun.and_then(|()| {
        let result = loading::load(&context.config, context.kernels, prepare, &|progress| {
            report.send(progress);
            !cancelled.load(Ordering::Acquire)
        });
        record.end(attempt);
        result
    });
    let result = result.map(Box::new);
    tracing::info!(%epoch, model = prepare.topology.model, ok = result.is_ok(), ms = report.elapsed_ms(), "load ended");
    let _ = inputs.blocking_send(Input::Loaded(LoadOutcome { attempt, result }));
}

/// Reports the progress of a load: at most ten times a second, and at its end.
struct LoadReport<'a> {
    attempt: u64,
    inputs: &'a Sender<Input>,
    begun: Instant,
    /// When progress was reported last, after `begun`.
    sent_ms: AtomicU64,
}

impl LoadReport<'_> {
    fn elapsed_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn send(&self, progress: LoadProgress) {
        let (now, last) = (self.elapsed_ms(), self.sent_ms.load(Ordering::Relaxed));
        if (now >= last + 100 || progress.done == progress.total)
            && self.sent_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            // If the queue is full, only a progress line is lost.
            let _ = self.inputs.try_send(Input::Loading(AttemptProgress { attempt: self.attempt, progress }));
        }
    }
}

/// Why links do not belong to the assignment that this node prepares: the epoch or the topology differs.
fn unexpected(between: &Between, node: &Node) -> FaultKind {
    let (epoch, hash) = (between.epoch, between.hash);
    match node.topology() {
        Some((_, own, _)) if own != hash || node.epoch() != epoch => FaultKind::LinksFailed {
            reason: format!(
                "the links are for epoch {epoch} and topology {hash}, this node is at epoch {} and topology {own}",
                node.epoch()
            ),
        },
        _ => FaultKind::NotPrepared { epoch },
    }
}
