//! The state machine: assignments in two phases, requests, lost peers, draining.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, Rank, RequestId, TopologyHash},
    planted::{Planted, is_planted},
    units::Bytes,
};
use protocol::{
    message::{REPORT_INTERVAL_MS_MIN, Request, RequestBody, ResponseBody},
    pairing::Rekeying,
    recovery::Committed,
};
use telemetry::{KvUse, LoadProgress, NodeState, RequestReport};
use topology::{Exclusions, Member, Place, Rolling, Topology};

use super::{
    benches::Benches,
    event::{EngineCommand, Event, ExclusionWrites, PeerDrain, ReplyTo, SessionId},
    neighbours::Neighbours,
    quorum::Acceptor,
    requests::{NewRequest, Requests},
    tombstone::Tombstone,
};
use crate::node::effect::{ClusterEffect, Effect, EngineEffect, ModelEffect, ReportEffect, SessionEffect};

/// Capacity of a head's admission queue: running and waiting requests.
pub const QUEUE_MAX: usize = 64;

/// Exit code of a daemon that requests a restart (`EX_TEMPFAIL` of sysexits.h).
pub const RESTART_CODE: i32 = 75;

/// Time limits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A prepared assignment expires after this time without a commit.
    pub lease: Duration,
    /// Draining ends after this time, even if requests still run.
    pub drain: Duration,
}

/// An assignment and this node's place in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Assignment {
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) topology: Topology,
    pub(super) member: MemberIndex,
    pub(super) by: String,
    pub(super) shard: Bytes,
    /// The topology that an operator asked for, if `topology` differs from it.
    pub(super) desired: Option<Box<Topology>>,
}

impl Assignment {
    /// This node's place in the topology.
    pub(super) fn place(&self) -> Place {
        self.topology.place(self.member)
    }

    /// The members of its replica.
    pub(super) fn replica(&self) -> &[Member] {
        self.topology.replica(self.place().replica)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    Loading(LoadProgress),
    Persisting,
    Prepared { since: Duration },
    Connecting { commit: (SessionId, RequestId) },
}

/// An assignment that is not yet running.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenAssignment {
    pub(super) assignment: Assignment,
    pub(super) session: SessionId,
    pub(super) id: RequestId,
    pub(super) phase: Phase,
    /// It restores the previous topology after a loss; an assignment of another topology supersedes it.
    pub(super) again: bool,
    /// This node's replica is unchanged: its engine keeps running and nothing is loaded.
    pub(super) keeps: bool,
}

impl OpenAssignment {
    /// Where the answer to its prepare goes.
    pub(super) fn reply_to(&self) -> ReplyTo {
        ReplyTo { session: self.session, id: self.id }
    }
}

/// A committed assignment.
#[derive(Debug)]
pub(super) struct RunningTopology {
    pub(super) assignment: Assignment,
    /// The epoch in which the engine was started; it identifies the engine and its links. A later assignment that
    /// leaves the replica unchanged keeps the engine, and this epoch.
    pub(super) engine: Epoch,
    pub(super) requests: Requests,
    pub(super) fault: Option<Fault>,
    /// Another rank wants to leave and takes no new work.
    pub(super) peer_drains: Option<Rank>,
    /// KV blocks in use, as this head's engine last reported.
    pub(super) kv: Option<KvUse>,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    pub(super) name: String,
    pub(super) epoch: Epoch,
    pub(super) latest_by: String,
    pub(super) patience: Patience,
    pub(super) now: Duration,
    pub(super) open: Option<OpenAssignment>,
    pub(super) running: Option<RunningTopology>,
    /// Start of the drain.
    pub(super) draining: Option<Duration>,
    pub(super) exited: bool,
    /// Whether a supervisor restarts the daemon after [`RESTART_CODE`].
    pub(super) supervised: bool,
    /// The exit code.
    pub(super) exit_code: i32,
    pub(super) tokens: u64,
    /// Number of the latest request, counted over all topologies.
    pub(super) requests_begun: u64,
    /// When a part of a model file could not be read while it served.
    pub(super) unreadable: Option<Duration>,
    pub(super) exclusions: Exclusions,
    pub(super) exclusion_writes: ExclusionWrites,
    pub(super) benches: Benches,
    /// The topology that recovery brings back after a loss.
    pub(super) committed: Option<Committed>,
    pub(super) voter: Acceptor,
    /// Address of the witness of a topology of two nodes.
    pub(super) witness: Option<String>,
    pub(super) takes_over: bool,
    pub(super) rolling: Option<Rolling>,
    /// Drain limit of a restart that specified one.
    pub(super) drain_for: Option<Duration>,
    pub(super) unloaded: Option<Tombstone>,
    pub(super) neighbours: Neighbours,
}

/// Initial state of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeInit {
    /// Its name.
    pub name: String,
    /// Highest epoch seen before.
    pub epoch: Epoch,
    /// Excluded nodes, as stored before the start.
    pub exclusions: Exclusions,
    /// Whether a supervisor restarts the daemon after [`RESTART_CODE`].
    pub supervised: bool,
    /// The stored topology.
    pub committed: Option<Committed>,
    /// The stored votes.
    pub voter: Acceptor,
    /// Address of the witness of a topology of two nodes.
    pub witness: Option<String>,
    /// The latest rolling restart.
    pub rolling: Option<Rolling>,
    /// The topology that was last unloaded.
    pub unloaded: Option<(Epoch, TopologyHash)>,
    /// Addresses of other nodes of the cluster.
    pub neighbours: BTreeSet<String>,
}

impl Node {
    /// An idle node.
    pub fn new(init: NodeInit, patience: Patience) -> Self {
        let NodeInit { name, epoch, exclusions, supervised, committed, voter, witness, rolling, unloaded, neighbours } =
            init;
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
            supervised,
            exit_code: 0,
            tokens: 0,
            requests_begun: 0,
            unreadable: None,
            exclusions,
            exclusion_writes: ExclusionWrites::default(),
            benches: Benches::default(),
            committed,
            voter,
            witness,
            takes_over: false,
            rolling,
            drain_for: None,
            unloaded: unloaded.map(Tombstone::of),
            neighbours: Neighbours::new(neighbours),
        }
    }

    /// The node's state.
    pub fn state(&self) -> NodeState {
        if self.draining.is_some() {
            return NodeState::Draining;
        }
        if let Some(open) = self.open.as_ref().filter(|open| !self.serves_beside(open)) {
            return match open.phase {
                Phase::Loading(_) | Phase::Persisting => NodeState::Loading,
                Phase::Prepared { .. } => NodeState::Prepared,
                Phase::Connecting { .. } => NodeState::Connecting,
            };
        }
        match &self.running {
            None if self.benches.is_running() => NodeState::Benching,
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

    /// The running topology, or the one being assigned, with its hash and this node's place.
    pub fn topology(&self) -> Option<(Topology, TopologyHash, MemberIndex)> {
        let assignment = self.shown()?;
        Some((assignment.topology.clone(), assignment.hash, assignment.member))
    }

    /// The topology that an operator asked for, if [`Self::topology`] differs from it.
    pub fn desired(&self) -> Option<&Topology> {
        self.shown()?.desired.as_deref()
    }

    fn shown(&self) -> Option<&Assignment> {
        match (&self.open, &self.running) {
            (Some(open), _) if !self.serves_beside(open) => Some(&open.assignment),
            (_, Some(running)) => Some(&running.assignment),
            _ => None,
        }
    }

    /// Whether this node runs a topology without a fault.
    pub(super) fn serves(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.fault.is_none())
    }

    /// Whether the running topology keeps serving while `open` is prepared.
    fn serves_beside(&self, open: &OpenAssignment) -> bool {
        self.serves() && !matches!(open.phase, Phase::Connecting { .. })
    }

    /// The epoch in which the engine of the committed topology was started.
    pub fn computes(&self) -> Option<Epoch> {
        let running = self.running.as_ref()?;
        self.holds(running.assignment.epoch, running.assignment.hash).then_some(running.engine)
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

    /// Number of running and waiting requests.
    pub fn request_count(&self) -> u32 {
        self.running.as_ref().map_or(0, |running| running.requests.len() as u32)
    }

    /// The oldest unfinished requests and the latest finished ones.
    pub fn traces(&self) -> Vec<RequestReport> {
        self.running.as_ref().map_or_else(Vec::new, |running| running.requests.report())
    }

    /// Tokens sampled since start.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// KV blocks of the running topology, if this is a head.
    pub fn kv(&self) -> Option<KvUse> {
        self.running.as_ref().and_then(|running| running.kv)
    }

    /// Excluded nodes, and nodes that were excluded.
    pub fn exclusions(&self) -> &Exclusions {
        &self.exclusions
    }

    /// Applies new time limits.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Whether links of this assignment are accepted: only while it is prepared or connecting here. All links of a
    /// running assignment are open already.
    pub fn expects_links(&self, epoch: Epoch, hash: TopologyHash) -> bool {
        let open = self.open.as_ref().filter(|open| !matches!(open.phase, Phase::Loading(_) | Phase::Persisting));
        let open = open.map(|open| &open.assignment);
        open.is_some_and(|assignment| {
            (assignment.epoch, assignment.hash) == (epoch, hash) || is_planted(Planted::AnyLinkAccepted)
        })
    }

    /// Handles an event; returns the effects to execute.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Request { session, by, request } => self.request(session, by, request),
            Event::SessionClosed(session) => self.session_closed(session),
            Event::SessionSlow(session) => self.session_slow(session),
            Event::LoadProgress(epoch, progress) => self.load_progress(epoch, progress),
            Event::Loaded(epoch, result) => self.loaded(epoch, result),
            Event::Persisted(epoch, hash, result) => self.persisted(epoch, hash, result),
            Event::Connected(epoch, result) => self.connected(epoch, result),
            Event::Answer(epoch, key, event) => self.answer(epoch, key, event),
            Event::Engine(epoch, event) => self.engine(epoch, event),
            Event::PeerLost(epoch, rank, how) => self.peer_lost(epoch, rank, how),
            Event::PeerFailed { epoch, reporter, failed, how } => self.peer_failed(epoch, reporter, failed, how),
            Event::PeerDrains(epoch, rank, drain) => self.peer_drains(epoch, rank, drain),
            Event::Across(epoch, replica, message) => self.across(epoch, replica, message),
            Event::ExclusionsKept(kept) => self.exclusions_kept(kept),
            Event::BenchProgress(key, progress) => self.bench_progress(key, progress),
            Event::BenchEnded(key, result) => self.bench_ended(key, result),
            Event::Tick { now } => self.tick(now),
            Event::Terminate { now } => self.terminate(now),
        }
    }

    pub(super) fn fault_here(&self, kind: FaultKind) -> Fault {
        Fault::new(&self.name, kind)
    }

    pub(super) fn refuse(&self, session: SessionId, id: RequestId, kind: FaultKind) -> Vec<Effect> {
        vec![Effect::Session(SessionEffect::Respond { session, id, body: ResponseBody::Failed(self.fault_here(kind)) })]
    }

    fn request(&mut self, session: SessionId, by: String, request: Request) -> Vec<Effect> {
        let id = request.id;
        match request.body {
            RequestBody::Report => self.report_to(session, id),
            RequestBody::Records => vec![Effect::Report(ReportEffect::Records { session, id })],
            RequestBody::Rekey(rekey) => {
                vec![Effect::Cluster(ClusterEffect::Rekey { session, id, rekey: Rekeying::Bare(rekey) })]
            }
            RequestBody::RekeyWrapped(rekey) => {
                vec![Effect::Cluster(ClusterEffect::Rekey { session, id, rekey: Rekeying::Wrapped(rekey) })]
            }
            RequestBody::Watch { interval_ms } => {
                let interval = Duration::from_millis(u64::from(interval_ms.max(REPORT_INTERVAL_MS_MIN)));
                vec![Effect::Session(SessionEffect::Watch { session, id, interval })]
            }
            RequestBody::Identify { model } => vec![Effect::Model(ModelEffect::Identify { session, id, model })],
            RequestBody::Prepare(prepare) => match self.check_prepare(&prepare) {
                Ok(()) => self.prepare(session, id, by, *prepare),
                Err(kind) => self.refuse(session, id, kind),
            },
            RequestBody::Commit { epoch, hash } => self.commit(session, id, epoch, hash),
            RequestBody::Abort { epoch, hash } => {
                // A recovery may have prepared the same topology since: only what this session prepared is dropped.
                let open = self.open_at(epoch).map(|open| (open.session, open.assignment.hash));
                let mut effects = if open == Some((session, hash)) { self.give_up() } else { Vec::new() };
                effects.push(Effect::Session(SessionEffect::Respond { session, id, body: ResponseBody::Aborted }));
                effects
            }
            RequestBody::Generate(generate) => match self.check_generate(&generate) {
                Ok(()) => {
                    // Requests take precedence over a link bench.
                    let mut effects = self.end_bench(FaultKind::BenchSuperseded { by: by.clone() });
                    let new = NewRequest { to: ReplyTo { session, id }, by, max_tokens: generate.max_tokens };
                    effects.extend(self.start(new, |key| EngineCommand::Submit(key, Arc::from(generate))));
                    effects
                }
                Err(kind) => self.refuse(session, id, kind),
            },
            RequestBody::BenchLinks(wanted) => match self.check_bench_links(&wanted) {
                Ok(()) => {
                    // Both would measure the other's traffic.
                    let mut effects = self.end_bench(FaultKind::BenchSuperseded { by: by.clone() });
                    let new = NewRequest { to: ReplyTo { session, id }, by, max_tokens: 0 };
                    effects.extend(self.start(new, |key| EngineCommand::BenchLinks(key, wanted)));
                    effects
                }
                Err(kind) => self.refuse(session, id, kind),
            },
            RequestBody::Text(request) => match self.check_text(&request) {
                Ok(()) => vec![Effect::Engine(EngineEffect::Text(ReplyTo { session, id }, request))],
                Err(kind) => self.refuse(session, id, kind),
            },
            RequestBody::Models(request) => self.models(session, id, *request),
            RequestBody::Restart => self.restart(session, id),
            RequestBody::Exclude(list) => self.exclude(ReplyTo { session, id }, list),
            RequestBody::Bench(bench) => self.bench(ReplyTo { session, id }, by, *bench),
            RequestBody::ClearStore => vec![Effect::Session(SessionEffect::ClearStore { session, id })],
            RequestBody::Inspect(what) => vec![Effect::Session(SessionEffect::Inspect { session, id, what })],
            RequestBody::CancelRunning { number } => self.cancel_running(ReplyTo { session, id }, number),
            RequestBody::Recovery(ask) => self.recovery(ReplyTo { session, id }, *ask),
            RequestBody::Neighbours(addresses) => self.meet(ReplyTo { session, id }, addresses),
            RequestBody::Kv(request) => vec![Effect::Kv(ReplyTo { session, id }, request)],
            RequestBody::Unload(unload) => self.unload(ReplyTo { session, id }, unload),
            RequestBody::Cancel => {
                let key = self.running.as_ref().and_then(|running| running.requests.key(session, id));
                let mut effects = self.cancel_bench(session, Some(id));
                effects.extend(key.map(|key| Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(key)))));
                effects
            }
        }
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        self.now = now;
        if let Some(running) = &mut self.running {
            running.requests.tick(now);
        }
        let lease = self.patience.lease;
        let phase = self.open.as_ref().map(|open| &open.phase);
        let is_over = matches!(phase, Some(Phase::Prepared { since }) if now >= *since + lease);
        if is_over && !is_planted(Planted::LeaseForever) {
            return self.give_up();
        }
        match self.draining {
            Some(since) if now >= since + self.drain_for.unwrap_or(self.patience.drain) => self.drain_ended(),
            _ => Vec::new(),
        }
    }

    pub(super) fn terminate(&mut self, now: Duration) -> Vec<Effect> {
        self.now = now;
        if self.draining.is_some() {
            return self.drain_ended();
        }
        self.draining = Some(now);
        let mut effects = vec![Effect::Engine(EngineEffect::AnnounceDraining)];
        effects.extend(self.end_bench(FaultKind::DrainEnded));
        effects.extend(self.give_up());
        effects.extend(self.leave_if_drained());
        effects
    }

    /// Ends the drain, after its time limit or a second SIGTERM: fails the remaining requests.
    fn drain_ended(&mut self) -> Vec<Effect> {
        let fault = self.fault_here(FaultKind::DrainEnded);
        let mut effects = self.running.as_mut().map_or(Vec::new(), |running| running.requests.fail_all(&fault));
        effects.extend(self.exit());
        effects
    }

    /// A draining node leaves when no work depends on it: a head when its requests are finished, another rank when the
    /// head has announced that it takes no new work and has none left.
    pub(super) fn leave_if_drained(&mut self) -> Vec<Effect> {
        if self.draining.is_none() {
            return Vec::new();
        }
        match &self.running {
            Some(running) if running.fault.is_none() && running.assignment.replica().len() > 1 => {
                let is_done = running.assignment.place().is_head() && running.requests.is_empty();
                if is_done { self.exit() } else { Vec::new() }
            }
            Some(running) if !running.requests.is_empty() => Vec::new(),
            _ => self.exit(),
        }
    }

    fn peer_drains(&mut self, epoch: Epoch, rank: Rank, drain: PeerDrain) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|running| running.engine == epoch) else {
            return Vec::new();
        };
        if drain.draining && running.assignment.place().is_head() && running.peer_drains.is_none() {
            running.peer_drains = Some(rank);
            return vec![Effect::Engine(EngineEffect::AnnounceDraining)];
        }
        let head_is_done = rank == Rank(0) && drain.draining && !drain.busy;
        if self.draining.is_some() && head_is_done { self.exit() } else { Vec::new() }
    }

    fn exit(&mut self) -> Vec<Effect> {
        if std::mem::replace(&mut self.exited, true) { Vec::new() } else { vec![Effect::Exit(self.exit_code)] }
    }
}
