//! The running engine of a node as the driver holds it: its thread, its commands, its heartbeats.
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use shared::{
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    protocol::{across::Across, connection::Connection, error::FaultKind},
    topology::{self, Role, Topology},
};
use tokio::sync::mpsc::Sender;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Input,
    across::{Way, Ways},
    heartbeat::{self, Pulse},
    linking::{Far, OpenLinks},
    loading::Loaded,
};
use crate::{
    collective::{Abort, Accounting, AcrossLinks, Group, Links, Seat, Settings, Socket, SyncRing},
    config::Liveness,
    engine::{
        self, Setup,
        plan::Limits,
        transfer::{Partners, Transfers},
    },
    kernels::{Compute, Kernels, Pool, PoolOptions},
    model::Model,
    node::event::{EngineCommand, Event},
};

/// Longest wait for all goodbyes.
const GOODBYE: Duration = Duration::from_secs(1);

/// Stack of the engine's thread: schemas of answers are compiled on it by recursion. What is not used takes no memory.
const ENGINE_STACK_BYTES: usize = 32 << 20;

/// Which assignment runs, and this node's place in it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) topology: Topology,
    pub(super) member: MemberIndex,
}

impl Place {
    /// Where the node stands.
    pub(super) fn seat(&self) -> topology::Place {
        self.topology.place(self.member)
    }
}

/// A running engine.
#[derive(Debug)]
pub(super) struct Running {
    /// Which of this process: no other run has its number, also where its epoch is the same.
    pub(super) run: u64,
    pub(super) epoch: Epoch,
    pub(super) ring: Arc<SyncRing>,
    commands: mpsc::Sender<EngineCommand>,
    abort: Arc<Abort>,
    draining: Arc<AtomicBool>,
    stop: CancellationToken,
    leave: CancellationToken,
    /// Ends the ways to the heads of other groups: this one is of no use to them.
    apart: CancellationToken,
    ways: Vec<Way>,
    beats: TaskTracker,
    thread: thread::JoinHandle<()>,
    /// The engine's counter as it was seen last, and since when it stands there with work to do.
    seen: (u64, Instant),
}

/// What starting an engine needs from the daemon.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) name: String,
    pub(super) kernels: &'static Kernels,
    pub(super) threads: Option<u16>,
    pub(super) liveness: Liveness,
    /// For benchmarks: ranks compute without summing.
    pub(super) omit_exchange: bool,
    /// Tokens from which on a prompt is computed by a prefill group; and, for benchmarks, that nothing of it is sent before the end.
    pub(super) elsewhere: (usize, bool),
    /// For benchmarks: heads draft no tokens and compute every prompt anew.
    pub(super) plain: bool,
    pub(super) inputs: Sender<Input>,
}

impl Running {
    /// Starts engine and heartbeats on open links.
    pub(super) fn start(
        around: &Surroundings,
        place: Place,
        mut loaded: Loaded,
        (links, run): (OpenLinks, u64),
    ) -> Result<Self, FaultKind> {
        let failed = |error: io::Error| FaultKind::Internal { reason: error.to_string() };
        let abort = Arc::new(Abort::new().map_err(|error| failed(error.into()))?);
        let seat = place.seat();
        let ring = Arc::new(SyncRing::new(seat.rank, seat.group));
        let draining = Arc::new(AtomicBool::new(false));
        let (stop, leave) = (CancellationToken::new(), CancellationToken::new());
        let (commands, orders) = mpsc::channel();
        let columns = loaded.shard.shape.embedding_length;
        let mut group = group(&place, links.data, (&abort, &ring), (columns, around.kernels)).map_err(failed)?;
        if around.omit_exchange {
            tracing::warn!("all-reduces are left out: what this node computes is worth nothing");
            group.omit_exchange();
        }
        let (far_data, far_control) = apart(&place, links.across);
        let transfers = transfers(around, &place, &mut loaded, far_data).map_err(failed)?;
        let setup = setup(around, &place, loaded, group, (Arc::clone(&abort), transfers));
        let sink = sink(around.inputs.clone(), run, place.epoch);
        let builder = thread::Builder::new().name("engine".into()).stack_size(ENGINE_STACK_BYTES);
        let thread = builder.spawn(move || engine::run(setup, &orders, &sink)).map_err(failed)?;
        let beats = TaskTracker::new();
        let pulse = Pulse {
            run,
            epoch: place.epoch,
            liveness: around.liveness,
            engine: Arc::clone(&abort),
            draining: Arc::clone(&draining),
            stop: stop.clone(),
            leave: leave.clone(),
            inputs: around.inputs.clone(),
        };
        for (rank, connection) in links.control.into_iter().enumerate() {
            if let Some(connection) = connection {
                beats.spawn(heartbeat::run(pulse.clone(), Rank(rank as u16), connection));
            }
        }
        beats.close();
        let apart = stop.child_token();
        let ways = Ways {
            run,
            epoch: place.epoch,
            liveness: around.liveness,
            engine: Arc::clone(&abort),
            draining: Arc::clone(&draining),
            stop: apart.clone(),
            inputs: around.inputs.clone(),
        };
        let way = |(replica, connection)| Way::open(ways.clone(), replica, connection);
        let ways = far_control.into_iter().map(way).collect();
        Ok(Self {
            run,
            epoch: place.epoch,
            ring,
            commands,
            abort,
            draining,
            stop,
            leave,
            apart,
            ways,
            beats,
            thread,
            seen: (0, Instant::now()),
        })
    }

    /// Tells the engine; one that ended hears nothing, and said so itself.
    pub(super) fn command(&self, command: EngineCommand) {
        let _ = self.commands.send(command);
    }

    /// Tells the head of another group; one that is lost was told of already.
    pub(super) fn send_across(&self, replica: u16, message: Across) {
        if let Some(way) = self.ways.iter().find(|way| way.replica == replica) {
            way.send(message);
        }
    }

    /// Ends every wait of the engine; links and heartbeats of its group stay open, those to other groups end.
    pub(super) fn abort(&self) {
        self.apart.cancel();
        self.abort.raise();
    }

    /// Heartbeats say from now on that this node takes no new work.
    pub(super) fn announce_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the engine has work, waits for nobody and has finished nothing for this long.
    pub(super) fn is_stalled(&mut self, patience: Duration) -> bool {
        let progress = self.abort.progress();
        if progress != self.seen.0 || !self.abort.is_busy() || self.abort.is_waiting() {
            self.seen = (progress, Instant::now());
        }
        self.seen.1.elapsed() > patience
    }

    /// Whether the engine's thread ended though nobody told it to.
    pub(super) fn has_died(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the engine and drops its shard on a thread of its own; says goodbye to the peers first if asked to.
    pub(super) async fn stop(self, goodbye: bool) {
        self.apart.cancel();
        if goodbye {
            self.leave.cancel();
            // Each goodbye has its own deadline; this one is for what nobody thought of.
            let _ = tokio::time::timeout(GOODBYE, self.beats.wait()).await;
        }
        self.command(EngineCommand::Stop);
        self.abort.raise();
        let thread = self.thread;
        // A panic of the engine was reported when it happened.
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        self.stop.cancel();
    }
}

fn group(
    place: &Place,
    data: Vec<Option<Connection>>,
    (abort, ring): (&Arc<Abort>, &Arc<SyncRing>),
    (columns, kernels): (usize, &'static Kernels),
) -> io::Result<Group> {
    let seat = place.seat();
    let accounting = Accounting::new(seat.rank, Arc::clone(ring));
    let (exchange, choice) = (place.topology.exchange, place.topology.collective);
    let settings = Settings { exchange, columns, choice, kernels };
    if place.topology.replica(seat.replica).len() == 1 {
        return Ok(Group::new(None, settings, accounting));
    }
    let sockets = data.into_iter().map(|connection| connection.map(socket).transpose());
    let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
    let spin = place.topology.members[place.member.index()].spin;
    let seat = Seat { own: seat.rank, stage: seat.group, epoch: place.epoch, hash: place.hash };
    let links = Links::sealed(seat, sockets, Arc::clone(abort), spin)?;
    Ok(Group::new(Some(links), settings, accounting))
}

/// Sockets, each with who is at its other end.
type Sockets<Who> = Vec<(Who, Connection)>;

/// A data link for the engine's thread.
fn socket(connection: Connection) -> io::Result<Socket> {
    let (stream, seals) = connection.into_data_link();
    Ok((stream.into_std()?, seals))
}

/// Sockets to other groups: those for the engine, and those to heads.
fn apart(place: &Place, across: Vec<Far>) -> (Sockets<MemberIndex>, Sockets<u16>) {
    let (mut data, mut control) = (Vec::new(), Vec::new());
    for far in across {
        data.extend(far.data.map(|connection| (far.member, connection)));
        control.extend(far.control.map(|connection| (place.topology.place(far.member).replica, connection)));
    }
    (data, control)
}

/// What moves between groups, where they have roles.
fn transfers(
    around: &Surroundings,
    place: &Place,
    loaded: &mut Loaded,
    data: Sockets<MemberIndex>,
) -> io::Result<Option<(Transfers, Partners)>> {
    let Some(mut partners) = loaded.partners.take() else { return Ok(None) };
    (partners.least, partners.at_end) = around.elsewhere;
    let sockets = data.into_iter().map(|(member, connection)| Ok((member, socket(connection)?)));
    let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
    let who = (place.member, place.epoch, place.hash);
    let links = AcrossLinks::new(who, sockets, place.seat().role == Role::Decode)?;
    Ok(Some((partners.transfers(&place.topology, &loaded.shard.plan, links), partners)))
}

fn setup(
    around: &Surroundings,
    place: &Place,
    loaded: Loaded,
    group: Group,
    (abort, transfers): (Arc<Abort>, Option<(Transfers, Partners)>),
) -> Setup {
    let member = &place.topology.members[place.member.index()];
    let cores = member.cores.iter().map(|core| usize::from(*core)).collect();
    let threads = usize::from(around.threads.unwrap_or(member.threads));
    let limits = Limits::of(&place.topology, loaded.shard.shape.vocabulary_length);
    let kernels = around.kernels;
    let options = PoolOptions { threads, cores, spin: member.spin };
    let (shard, cache) = (loaded.shard, loaded.cache);
    // Pool and model are made on the engine's thread, which pins itself first.
    let model = Box::new(move || {
        let pool = Pool::new(options);
        pool.pin_caller();
        Model::new(shard, cache, Compute { kernels, pool })
    });
    let (node, place, plain) = (around.name.clone(), place.seat(), around.plain);
    let Loaded { tokenizer, template, pieces, .. } = loaded;
    Setup { node, place, limits, model, group, transfers, plain, tokenizer, template, pieces, abort }
}

fn sink(inputs: Sender<Input>, run: u64, epoch: Epoch) -> impl Fn(crate::node::Progress) + Send + 'static {
    // Blocks when the driver is behind: the engine slows down rather than to lose a token. The driver never waits for
    // the engine. If the driver is gone, the daemon ends.
    move |progress| drop(inputs.blocking_send(Input::Run(run, Event::Engine(epoch, progress))))
}
