//! Executes an assignment: loads the shard, accepts incoming links, opens the others, starts the engine.
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
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
use telemetry::NodeState;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::{AbortHandle, spawn_blocking},
    time::timeout,
};
use tokio_util::task::task_tracker::{TaskTracker, TaskTrackerToken};
use topology::Topology;

use super::{
    Input,
    bench_task::{BenchTask, GONE},
    benching::BenchHost,
    context::{DriverContext, ending},
    engine_host::EngineHost,
    linking::{self, IncomingLink, Linking, OpenLinks},
    load_report::{AttemptProgress, LoadReport},
    loading::{self, Loaded},
    running::{EngineStart, LocalAssignment, RunningEngine},
    state::LoadRecord,
};
use crate::{
    kv_store::KvPeers,
    node::{Event, Node, effect::AssignmentEffect},
};

/// Longest wait, after a panic and at the end of the process, until the record of a load is removed: the disk may have
/// stalled.
const RECORDED: Duration = Duration::from_secs(2);

/// A finished load; the result of an earlier attempt at the same epoch is ignored.
#[derive(Debug)]
pub struct LoadOutcome {
    attempt: u64,
    result: Result<PreparedShard, FaultKind>,
}

/// A loaded shard that no engine runs yet.
#[derive(Debug)]
struct PreparedShard {
    loaded: Box<Loaded>,
    /// Marks its memory as occupied. The last field: it is dropped when the shard is freed.
    _held: TaskTrackerToken,
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
    loaded: Option<PreparedShard>,
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
    /// Waits for all of them to end, and for the memory of earlier loads.
    async fn gone(self, earlier: TaskTracker) {
        let Self { bench, engines } = self;
        if let Some(bench) = bench {
            bench.gone().await;
        }
        // An engine first ends its step and then frees its shard; a load that was abandoned notices that between two
        // parts. If one of them hangs, the load finds too little memory.
        let ends = async {
            engines.wait().await;
            earlier.wait().await;
        };
        let _ = timeout(GONE, ends).await;
    }
}

/// The assignment that is being loaded or connected, if there is one.
#[derive(Debug)]
pub(super) struct Assignments {
    open: Option<PendingAssignment>,
    /// Number of assignments that were started.
    attempts: u64,
    /// The mark of the latest load, until it ended and its shard was freed or is run by an engine.
    occupied: TaskTracker,
    record: Arc<LoadRecord>,
}

impl Assignments {
    pub(super) fn new(record: LoadRecord) -> Self {
        Self { open: None, attempts: 0, occupied: ending(), record: Arc::new(record) }
    }

    /// Forgets the processes that ended in a load: an operator has repaired this node.
    pub(super) fn forget_ends(&self) {
        let record = Arc::clone(&self.record);
        // The disk may have stalled.
        spawn_blocking(move || record.forget());
    }

    /// The process ends, even in the middle of a load.
    pub(super) async fn stop(&self) {
        let record = Arc::clone(&self.record);
        let _ = timeout(RECORDED, spawn_blocking(move || record.forget())).await;
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
                    free(open.loaded);
                }
            }
            AssignmentEffect::Connect(epoch) => self.connect(epoch, context),
        }
    }

    /// Loads a shard, after the end of those that hold memory.
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
        let (context, record, inputs) = (context.clone(), Arc::clone(&self.record), context.inputs.clone());
        self.run(attempt, inputs, before, Arc::clone(&cancelled), move || {
            run_load(&context, &record, attempt, &prepare, &cancelled)
        });
    }

    /// Runs a load on a blocking thread and reports its outcome.
    fn run(
        &mut self,
        attempt: u64,
        inputs: Sender<Input>,
        before: MemoryHolders,
        cancelled: Arc<AtomicBool>,
        load: impl FnOnce() -> Result<Box<Loaded>, FaultKind> + Send + 'static,
    ) {
        // It waits for the latest load, and so for all earlier ones.
        let earlier = mem::replace(&mut self.occupied, ending());
        let (held, record) = (self.occupied.token(), Arc::clone(&self.record));
        tokio::spawn(async move {
            before.gone(earlier).await;
            let result = match spawn_blocking(load).await {
                Ok(result) => result,
                Err(error) => {
                    // This process outlives the load, which must not count as one in which a process ended.
                    let ended = spawn_blocking(move || record.end(attempt, cancelled.load(Ordering::Acquire)));
                    let _ = timeout(RECORDED, ended).await;
                    // Without the outcome of a panic, the leader would wait for this node until its limit.
                    Err(FaultKind::Internal { reason: error.to_string() })
                }
            };
            let result = result.map(|loaded| PreparedShard { loaded, _held: held });
            let _ = inputs.send(Input::Loaded(LoadOutcome { attempt, result })).await;
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
        let Some(open) = self.open.as_mut().filter(|open| open.attempt == attempt) else {
            free(result.ok());
            return None;
        };
        let result = result.map_err(|kind| context.fault(kind)).map(|shard| {
            let bytes = shard.loaded.bytes;
            open.loaded = Some(shard);
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
        let started = match (result, open.loaded) {
            (Ok(links), Some(shard)) => {
                let (place, loaded) = (open.place, *shard.loaded);
                RunningEngine::start(context, EngineStart { run: attempt, place, loaded, links, peers })
            }
            (Ok(_), None) => Err(FaultKind::NotPrepared { epoch }),
            (Err(kind), shard) => {
                free(shard);
                Err(kind)
            }
        };
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

/// Frees a shard on a blocking thread: the driver must not wait until gigabytes are unmapped.
fn free(shard: Option<PreparedShard>) {
    if let Some(shard) = shard {
        spawn_blocking(move || drop(shard));
    }
}

/// Loads a shard and reports its progress.
fn run_load(
    context: &DriverContext,
    record: &LoadRecord,
    attempt: u64,
    prepare: &Prepare,
    cancelled: &AtomicBool,
) -> Result<Box<Loaded>, FaultKind> {
    let epoch = prepare.epoch;
    let report = LoadReport::new(attempt, &context.inputs);
    let is_abandoned = || cancelled.load(Ordering::Acquire);
    let begun = match is_abandoned() {
        true => Err(FaultKind::NotPrepared { epoch }),
        false => record.begin(attempt, prepare.topology.hash(), context.started.elapsed()),
    };
    let result = begun.and_then(|()| {
        let result = loading::load(&context.config, context.kernels, prepare, &|progress| {
            report.send(progress);
            !is_abandoned()
        });
        record.end(attempt, is_abandoned());
        result
    });
    let result = result.map(Box::new);
    tracing::info!(%epoch, model = prepare.topology.model, ok = result.is_ok(), ms = report.elapsed_ms(), "load ended");
    result
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

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::mpsc};

    use common::ids::TopologyHash;

    use super::*;
    use crate::node::driver::state::StateFolder;

    /// Longest wait for a load that must not begin yet.
    const EARLY: Duration = Duration::from_millis(50);

    fn assignments() -> Assignments {
        assignments_in(tempfile::tempdir().expect("a folder can be made").path())
    }

    /// Their record is in this folder.
    fn assignments_in(folder: &Path) -> Assignments {
        let (state, _) = StateFolder::open(folder).expect("the folder is there");
        Assignments::new(LoadRecord::new(state, String::new(), None))
    }

    /// Nothing but earlier loads holds memory.
    fn idle() -> MemoryHolders {
        MemoryHolders { bench: None, engines: ending() }
    }

    fn failed() -> Result<Box<Loaded>, FaultKind> {
        Err(FaultKind::NotPrepared { epoch: Epoch(5) })
    }

    /// The attempt and the fault of the next outcome.
    async fn failure(outcomes: &mut Receiver<Input>) -> (u64, FaultKind) {
        match timeout(GONE, outcomes.recv()).await.expect("the load ends") {
            Some(Input::Loaded(LoadOutcome { attempt, result: Err(kind) })) => (attempt, kind),
            input => panic!("{input:?}"),
        }
    }

    #[tokio::test]
    async fn load_waits_for_the_end_of_an_abandoned_load() {
        let (mut assignments, (inputs, mut outcomes)) = (assignments(), channel(3));
        let (end, ended) = mpsc::channel::<()>();
        assignments.run(1, inputs.clone(), idle(), Arc::default(), move || {
            // It has not noticed yet that it was abandoned.
            let _ = ended.recv();
            failed()
        });
        assignments.run(2, inputs.clone(), idle(), Arc::default(), failed);
        assignments.run(3, inputs, idle(), Arc::default(), failed);
        let early = timeout(EARLY, outcomes.recv()).await;
        assert!(early.is_err(), "a load began too early: {early:?}");
        drop(end);
        for attempt in 1..=3 {
            assert_eq!(failure(&mut outcomes).await, (attempt, FaultKind::NotPrepared { epoch: Epoch(5) }));
        }
    }

    #[tokio::test]
    async fn panic_in_a_load_is_its_fault() {
        let (mut assignments, (inputs, mut outcomes)) = (assignments(), channel(1));
        assignments.run(1, inputs, idle(), Arc::default(), || panic!("no thread can be started"));
        let (attempt, kind) = failure(&mut outcomes).await;
        assert!(attempt == 1 && kind.to_string().contains("no thread can be started"), "{kind}");
        assert!(matches!(kind, FaultKind::Internal { .. }));
    }

    #[tokio::test]
    async fn load_that_panics_leaves_no_record_behind() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (mut assignments, (inputs, mut outcomes)) = (assignments_in(folder.path()), channel(1));
        let (record, file) = (Arc::clone(&assignments.record), folder.path().join("loading.toml"));
        let written = file.clone();
        assignments.run(1, inputs, idle(), Arc::default(), move || {
            record.begin(1, TopologyHash(7), Duration::ZERO)?;
            assert!(written.is_file(), "it is not recorded");
            panic!("no thread can be started");
        });
        let (_, kind) = failure(&mut outcomes).await;
        assert!(kind.to_string().contains("no thread can be started"), "{kind}");
        assert!(!file.exists(), "the next process would count this load");
    }
}
