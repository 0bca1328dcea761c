//! The running engine of a node: its thread, its commands, its heartbeats.
use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use common::{
    fault::FaultKind,
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
};
use engine::{
    self, RequestKey, Setup,
    collective::{Abort, Group, KvLinks, Links, Seat, Settings, Socket, StepTiming, SyncLog},
    kv_store::Part,
    model::{Model, Pace},
    plan::Limits,
    port::{EngineEvent, EngineOrder, RequestEvent},
    transfer::{Partners, Transfers},
};
use kernels::{Compute, Kernels, Pool, PoolOptions};
use protocol::{across::Across, connection::Connection};
use smallvec::SmallVec;
use tokio::sync::mpsc::Sender;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use topology::{self, Role, Topology};

use super::{
    Input,
    context::DriverContext,
    head_links::{HeadLink, HeadLinks},
    heartbeat::{self, PeerStates, Pulse},
    linking::{GroupPeer, OpenLinks},
    loading::{Loaded, program},
    orders::Orders,
};
use crate::{
    config::Config,
    kv_store::{KvPeers, RankFiles},
    node::event::EngineCommand,
    text::{AnswerEvent, ModelText, Program, TextService},
};

/// Longest wait for all goodbyes.
const GOODBYE: Duration = Duration::from_secs(1);

/// Stack of the engine's thread. Untouched pages use no memory.
const ENGINE_STACK_BYTES: usize = 32 << 20;

/// The running assignment and this node's place in it.
#[derive(Clone, Debug)]
pub(super) struct LocalAssignment {
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) topology: Topology,
    pub(super) member: MemberIndex,
}

impl LocalAssignment {
    /// This node's place in the topology.
    pub(super) fn seat(&self) -> topology::Place {
        self.topology.place(self.member)
    }
}

/// A running engine.
#[derive(Debug)]
pub(super) struct RunningEngine {
    /// Number of the run, unique in this process even if two runs have the same epoch.
    pub(super) run: u64,
    pub(super) epoch: Epoch,
    pub(super) ring: Arc<SyncLog>,
    /// Whether its model has experts.
    pub(super) has_experts: bool,
    commands: Orders,
    /// On the head.
    text: Option<TextService>,
    /// Whether requests may have speculative tokens.
    speculates: bool,
    abort: Arc<Abort>,
    draining: Arc<AtomicBool>,
    failed: Arc<OnceLock<Rank>>,
    stop: CancellationToken,
    leave: CancellationToken,
    /// Closes the control links to other groups.
    apart: CancellationToken,
    head_links: Vec<HeadLink>,
    beats: TaskTracker,
    thread: thread::JoinHandle<()>,
    /// Last observed value of the engine's counter, and since when it has not changed although there is work.
    seen: (u64, Instant),
    /// When a change of the counter was last observed.
    moved: Instant,
}

/// What starting an engine needs in addition to the daemon's context.
#[derive(Debug)]
pub(super) struct EngineStart {
    /// Number of the run.
    pub(super) run: u64,
    pub(super) place: LocalAssignment,
    pub(super) loaded: Loaded,
    pub(super) links: OpenLinks,
    /// The nodes that keep keys and values for each other.
    pub(super) peers: Option<Arc<KvPeers>>,
}

impl RunningEngine {
    /// Starts the engine and the heartbeats on open links.
    ///
    /// # Errors
    /// Descriptors, threads or memory are missing.
    pub(super) fn start(context: &DriverContext, start: EngineStart) -> Result<Self, FaultKind> {
        Self::launch(context, start).map_err(|error| FaultKind::Internal { reason: error.to_string() })
    }

    fn launch(context: &DriverContext, start: EngineStart) -> io::Result<Self> {
        let EngineStart { run, place, mut loaded, links, peers } = start;
        let abort = Arc::new(Abort::new()?);
        let seat = place.seat();
        let ring = Arc::new(SyncLog::new(seat.rank, seat.group));
        let pulse = Pulse {
            run,
            epoch: place.epoch,
            liveness: context.config.liveness,
            engine: Arc::clone(&abort),
            draining: Arc::default(),
            failed: Arc::default(),
            peers: Arc::new(PeerStates::new(links.control.len())),
            stop: CancellationToken::new(),
            leave: CancellationToken::new(),
            inputs: context.inputs.clone(),
        };
        let (commands, orders) = Orders::new();
        let columns = loaded.shard.spec.embedding_length;
        let has_experts = loaded.shard.spec.kinds.iter().any(|kind| kind.feed_forward.experts().is_some());
        let stage = StageLinks { sockets: links.data, abort: &abort, ring: &ring, columns };
        let has_wide_states = loaded.shard.spec.has_wide_states();
        let mut group = group(&place, stage, context.kernels)?.with_wide_states(has_wide_states);
        group.set_toll(loaded.pace.as_ref().map(Pace::toll));
        let groups = group_sockets(&place, links.across);
        let transfers = transfers(context, &place, &mut loaded, groups.data, &abort)?;
        let sink = Arc::new(sink(context.inputs.clone(), run));
        let end_tokens = loaded.text.as_ref().map_or(Vec::new(), ModelText::end_tokens);
        let text = texts(&context.config, &mut loaded, &commands, sink.clone())?;
        let parts = EngineParts { group, transfers, end_tokens, abort: Arc::clone(&abort), peers };
        let setup = setup(context, &place, loaded, parts)?;
        let builder = thread::Builder::new().name("engine".into()).stack_size(ENGINE_STACK_BYTES);
        let thread = builder.spawn(move || engine::run(setup, &orders, &*sink))?;
        let beats = TaskTracker::new();
        for (rank, connection) in links.control.into_iter().enumerate() {
            if let Some(connection) = connection {
                let connection = context.pacemaker.take(connection)?;
                let beating = heartbeat::run(pulse.clone(), Rank(rank as u16), connection);
                context.pacemaker.spawn_counted(&beats, beating);
            }
        }
        beats.close();
        let apart = pulse.stop.child_token();
        let head_links = head_links(context, &pulse, &apart, groups.control)?;
        let (seen, moved) = ((0, Instant::now()), Instant::now());
        let Pulse { epoch, draining, failed, stop, leave, .. } = pulse;
        Ok(Self {
            run,
            epoch,
            ring,
            has_experts,
            commands,
            text,
            speculates: context.config.speculative,
            abort,
            draining,
            failed,
            stop,
            leave,
            apart,
            head_links,
            beats,
            thread,
            seen,
            moved,
        })
    }

    /// An engine without a model, peers and heartbeats, of which only the thread runs.
    #[cfg(test)]
    pub(super) fn of_thread(epoch: Epoch, thread: thread::JoinHandle<()>) -> Self {
        let beats = TaskTracker::new();
        beats.close();
        Self {
            run: 1,
            epoch,
            ring: Arc::new(SyncLog::alone()),
            has_experts: false,
            commands: Orders::new().0,
            text: None,
            speculates: false,
            abort: Arc::new(Abort::new().expect("there are descriptors")),
            draining: Arc::default(),
            failed: Arc::default(),
            stop: CancellationToken::new(),
            leave: CancellationToken::new(),
            apart: CancellationToken::new(),
            head_links: Vec::new(),
            beats,
            thread,
            seen: (0, Instant::now()),
            moved: Instant::now(),
        }
    }

    /// Sends a command to the engine, a request by way of its preparation. Succeeds also if the engine has ended, which
    /// reports that itself.
    ///
    /// # Errors
    /// As [`Orders::push`].
    pub(super) fn command(&mut self, command: EngineCommand) -> Result<(), EngineOrder> {
        let order = match (command, &self.text) {
            (EngineCommand::Submit(key, mut generate), text) => {
                if !self.speculates {
                    Arc::make_mut(&mut generate).drafts_max = 0;
                }
                // Only heads receive requests.
                text.iter().for_each(|text| text.submit(key, Arc::clone(&generate)));
                return Ok(());
            }
            (EngineCommand::Cancel(key), Some(text)) if text.withdraw(key) => EngineOrder::Withdrawn(key),
            (EngineCommand::Cancel(key), _) => EngineOrder::Cancel(key),
            (EngineCommand::Across(replica, message), _) => EngineOrder::Across(replica, message),
            (EngineCommand::AcrossLost(replica), _) => EngineOrder::AcrossLost(replica),
            (EngineCommand::BenchLinks(key, wanted), _) => EngineOrder::BenchLinks(key, wanted),
        };
        self.commands.push(order)
    }

    /// The texts of the model, on the head.
    pub(super) fn text(&self) -> Option<&TextService> {
        self.text.as_ref()
    }

    /// Translates an event of a request; if a stop string ended its answer, cancels it.
    pub(super) fn translate(&mut self, key: RequestKey, event: RequestEvent) -> SmallVec<[AnswerEvent; 2]> {
        // Only heads run requests.
        let Some(text) = &self.text else { return SmallVec::new() };
        let translated = text.translate(key, event);
        if translated.is_stopped {
            // A cancellation that finds no room waits for it.
            let _ = self.commands.push(EngineOrder::Cancel(key));
        }
        translated.events
    }

    /// Sends commands to the engine that found no room before.
    pub(super) fn flush(&mut self) {
        self.commands.flush();
    }

    /// Closes the link to another group; the engine treats the group as lost.
    pub(super) fn give_up_link(&self, replica: u16) {
        self.head_links.iter().filter(|link| link.replica == replica).for_each(HeadLink::give_up);
    }

    /// Sends a message to the head of another group; a lost group was already reported.
    pub(super) fn send_across(&mut self, replica: u16, message: Across) {
        self.commands.answered(replica, &message);
        if let Some(link) = self.head_links.iter().find(|link| link.replica == replica) {
            link.send(message);
        }
    }

    /// Ends all waits of the engine. Links and heartbeats of its group stay open, those to other groups end.
    pub(super) fn abort(&self) {
        self.apart.cancel();
        self.abort.raise();
    }

    /// Announces in heartbeats that the topology broke here, and which rank was lost; the first fault counts.
    pub(super) fn announce_fault(&self, rank: Rank) {
        let _ = self.failed.set(rank);
    }

    /// Announces in heartbeats that this node takes no new work.
    pub(super) fn announce_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the engine has work, does not wait for a peer, and has made no progress for `patience`.
    pub(super) fn is_stalled(&mut self, patience: Duration) -> bool {
        let progress = self.abort.progress();
        if progress != self.seen.0 {
            self.moved = Instant::now();
        }
        // A thread that has panicked leaves its state as it was; its end is reported as such.
        let has_work = self.abort.is_busy() && !self.has_died();
        if progress != self.seen.0 || !has_work || self.abort.is_waiting() {
            self.seen = (progress, Instant::now());
            return false;
        }
        self.seen.1.elapsed() > patience
    }

    /// The engine's counters and flags.
    pub(super) fn engine(&self) -> Arc<Abort> {
        Arc::clone(&self.abort)
    }

    /// Whether the engine runs requests or has made progress within `time`.
    pub(super) fn has_worked_within(&self, time: Duration) -> bool {
        let is_at_it = self.abort.progress() != self.seen.0 || (self.text.is_some() && self.abort.is_busy());
        is_at_it || self.moved.elapsed() < time
    }

    /// Whether the engine's thread ended without a request to stop.
    pub(super) fn has_died(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the engine and drops its shard on a separate thread; first announces the end to the peers if `goodbye` is set.
    pub(super) async fn stop(mut self, goodbye: bool) {
        self.apart.cancel();
        self.text = None;
        if goodbye {
            self.leave.cancel();
            // Each goodbye has its own deadline; this one is a safety net.
            let _ = tokio::time::timeout(GOODBYE, self.beats.wait()).await;
        }
        // If the queue is full, the engine stops when the queue closes.
        let _ = self.commands.push(EngineOrder::Stop);
        drop(self.commands);
        self.abort.raise();
        let thread = self.thread;
        // A panic of the engine was reported when it happened.
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        self.stop.cancel();
    }
}

/// Opens the control links to other groups.
fn head_links(
    context: &DriverContext,
    pulse: &Pulse,
    apart: &CancellationToken,
    control: Sockets<u16>,
) -> io::Result<Vec<HeadLink>> {
    let links = HeadLinks {
        run: pulse.run,
        epoch: pulse.epoch,
        liveness: pulse.liveness,
        engine: Arc::clone(&pulse.engine),
        draining: Arc::clone(&pulse.draining),
        stop: apart.clone(),
        inputs: pulse.inputs.clone(),
    };
    let mut open = Vec::with_capacity(control.len());
    for (replica, connection) in control {
        let connection = context.pacemaker.take(connection)?;
        open.push(HeadLink::open(links.clone(), replica, connection, &context.pacemaker));
    }
    Ok(open)
}

/// The links between the ranks of a replica, and what their use is recorded in.
struct StageLinks<'a> {
    /// Data links, by rank.
    sockets: Vec<Option<Connection>>,
    abort: &'a Arc<Abort>,
    ring: &'a Arc<SyncLog>,
    /// Length of a token's hidden state.
    columns: usize,
}

fn group(place: &LocalAssignment, stage: StageLinks<'_>, kernels: &'static Kernels) -> io::Result<Group> {
    let StageLinks { sockets, abort, ring, columns } = stage;
    let seat = place.seat();
    let timing = StepTiming::new(seat.rank, Arc::clone(ring));
    let (exchange, choice) = (place.topology.exchange, place.topology.collective);
    let settings = Settings { exchange, columns, choice, kernels };
    if place.topology.replica(seat.replica).len() == 1 {
        return Ok(Group::new(None, settings, timing));
    }
    let sockets = sockets.into_iter().map(|connection| connection.map(socket).transpose());
    let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
    let spin = place.topology.members[place.member.index()].spin;
    let seat = Seat { own: seat.rank, stage: seat.group, epoch: place.epoch, hash: place.hash };
    let links = Links::sealed(seat, sockets, Arc::clone(abort), spin)?;
    Ok(Group::new(Some(links), settings, timing))
}

/// Sockets, each with the member or group at its other end.
type Sockets<Who> = Vec<(Who, Connection)>;

/// Sockets to other groups.
struct GroupSockets {
    /// Data links for the engine.
    data: Sockets<MemberIndex>,
    /// Control links between heads.
    control: Sockets<u16>,
}

/// A data link for the engine's thread.
fn socket(connection: Connection) -> io::Result<Socket> {
    let (stream, seals) = connection.into_data_link();
    Ok(Socket { stream: stream.into_std()?, seals })
}

fn group_sockets(place: &LocalAssignment, peers: Vec<GroupPeer>) -> GroupSockets {
    let mut sockets = GroupSockets { data: Vec::new(), control: Vec::new() };
    for peer in peers {
        sockets.data.extend(peer.data.map(|connection| (peer.member, connection)));
        let replica = place.topology.place(peer.member).replica;
        sockets.control.extend(peer.control.map(|connection| (replica, connection)));
    }
    sockets
}

/// The KV transfers between groups with roles.
fn transfers(
    context: &DriverContext,
    place: &LocalAssignment,
    loaded: &mut Loaded,
    data: Sockets<MemberIndex>,
    abort: &Arc<Abort>,
) -> io::Result<Option<(Transfers, Partners)>> {
    let Some(mut partners) = loaded.partners.take() else { return Ok(None) };
    partners.least = context.config.prefill_elsewhere_from as usize;
    partners.at_end = context.variant.transfers_at_end;
    let sockets = data.into_iter().map(|(member, connection)| Ok((member, socket(connection)?)));
    let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
    let reads = place.seat().role == Role::Decode;
    let links = KvLinks::new(place.member, place.epoch, place.hash, sockets, reads, Arc::clone(abort))?;
    Ok(Some((partners.transfers(&place.topology, &loaded.shard.plan, links), partners)))
}

/// The service that prepares the requests of a head.
fn texts(
    config: &Config,
    loaded: &mut Loaded,
    commands: &Orders,
    sink: Arc<impl Fn(EngineEvent) + Send + Sync + 'static>,
) -> io::Result<Option<TextService>> {
    let Some(text) = loaded.text.take() else { return Ok(None) };
    let program = Program::of(program());
    TextService::start(config.name.clone(), text, &program, commands.sender(), sink).map(Some)
}

/// Parts of an engine that are not in its shard.
struct EngineParts {
    group: Group,
    transfers: Option<(Transfers, Partners)>,
    end_tokens: Vec<u32>,
    abort: Arc<Abort>,
    peers: Option<Arc<KvPeers>>,
}

fn setup(context: &DriverContext, place: &LocalAssignment, loaded: Loaded, parts: EngineParts) -> io::Result<Setup> {
    let EngineParts { group, transfers, end_tokens, abort, peers } = parts;
    let config = &context.config;
    let member = &place.topology.members[place.member.index()];
    let cores = member.cores.iter().map(|core| usize::from(*core)).collect();
    let threads = usize::from(config.threads.unwrap_or(member.threads));
    let limits = Limits::of(&place.topology, &loaded.shard.spec);
    let kernels = context.kernels;
    let pool = Pool::new(PoolOptions { threads, cores, spin: member.spin })?;
    let part = Part::of(&loaded.shard.plan);
    let (shard, cache, states, pace) = (loaded.shard, loaded.cache, loaded.states, loaded.pace);
    let context_length = place.topology.context_length as usize;
    // The model is created on the engine's thread, which first sets its CPU affinity.
    let model = Box::new(move || {
        pool.pin_caller();
        Model::new(shard, cache, Compute::new(kernels, pool), context_length).with_states(states).paced(pace)
    });
    let draft = loaded.draft.map(|draft| -> Box<dyn FnOnce(&Compute) -> Model + Send> {
        Box::new(move |compute| draft.model(compute, context_length))
    });
    let (node, place, variant, vocabulary) = (config.name.clone(), place.seat(), context.variant, loaded.vocabulary);
    // In memory alone, without another node, nothing would outlive the caches.
    let folder = context.kv.folder().filter(|folder| folder.is_on_disk() || peers.is_some());
    let files = folder.map(|folder| RankFiles::new(Arc::clone(folder), part, peers));
    let started = files.map(RankFiles::start).transpose();
    let disk = started.unwrap_or_else(|error| {
        tracing::warn!("keys and values are not stored: {error}");
        None
    });
    let store = disk.map(|disk| (disk, loaded.space));
    Ok(Setup { node, place, limits, model, draft, group, transfers, store, variant, end_tokens, vocabulary, abort })
}

fn sink(inputs: Sender<Input>, run: u64) -> impl Fn(EngineEvent) + Send + Sync + 'static {
    // Blocks when the driver is behind: the engine slows down rather than lose a token. The driver never waits for the
    // engine. If the driver is gone, the daemon ends.
    move |event| drop(inputs.blocking_send(Input::Engine(run, event)))
}
