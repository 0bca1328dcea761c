//! A daemon in a simulation: its pure state machines and the state of its driver.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::ids::{Epoch, MemberIndex, Rank, RequestId, TopologyHash};
use daemon::node::{
    Node, SessionId,
    effect::{Effect, PendingAnswer},
    event::Event as NodeEvent,
    pulse::Peer,
    steward::{Question, Steward, rolling::Restarting},
};
use protocol::message::Prepare;
use topology::{Exclusions, Topology};

use super::{compute::HeadEngine, disk::Entry};

/// An input of the driver.
#[derive(Debug)]
pub(super) enum Input {
    /// An event for the node.
    Event(NodeEvent),
    /// An event of a run for the node; ignored unless the run is the current one.
    Run(u64, NodeEvent),
    /// The steward's periodic check.
    Look,
}

/// A write that the disk executes or that waits for it.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) entries: Vec<Entry>,
    pub(super) then: AfterWrite,
}

/// The continuation after a write.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a simulation holds few of them at a time")]
pub(super) enum AfterWrite {
    /// Send an answer, if one is due.
    Respond(Option<PendingAnswer>),
    /// Notify the node.
    Persisted(Epoch, TopologyHash),
    /// Notify the node.
    Exclusions(SessionId, RequestId, Exclusions),
}

/// Both links to a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub(super) data: Option<u64>,
    pub(super) control: Option<u64>,
}

/// An assignment between loading and starting.
#[derive(Debug)]
pub(super) struct Opening {
    /// Number of the assignment within this process.
    pub(super) attempt: u64,
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) topology: Topology,
    /// This node's member index.
    pub(super) member: MemberIndex,
    /// Links by member.
    pub(super) links: BTreeMap<MemberIndex, Pair>,
    /// The links still to be dialled, each with whether it is a data link; `None` before linking begins.
    pub(super) dials: Option<VecDeque<(MemberIndex, bool)>>,
    /// Connection of the dial in progress.
    pub(super) dialling: Option<u64>,
    /// Whether its shard was loaded from another file than those of the others.
    pub(super) has_other_weights: bool,
}

impl Opening {
    pub(super) fn new(attempt: u64, prepare: Prepare) -> Self {
        Self {
            attempt,
            epoch: prepare.epoch,
            hash: prepare.topology.hash(),
            topology: prepare.topology,
            member: prepare.member,
            links: BTreeMap::new(),
            dials: None,
            dialling: None,
            has_other_weights: false,
        }
    }
}

/// Another rank of this node's replica.
#[derive(Debug)]
pub(super) struct Linked {
    pub(super) member: MemberIndex,
    pub(super) pair: Pair,
    /// Liveness state from its heartbeats.
    pub(super) peer: Peer,
    /// Declared lost: it receives no more heartbeats.
    pub(super) is_lost: bool,
}

/// A running engine and its heartbeats.
#[derive(Debug)]
pub(super) struct EngineRun {
    /// Number of the assignment within this process.
    pub(super) attempt: u64,
    /// Number of the run within the whole history.
    pub(super) number: u64,
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) topology: Topology,
    /// This node's member index.
    pub(super) member: MemberIndex,
    /// Start, on its machine's clock.
    pub(super) since: Duration,
    /// Other ranks of the replica.
    pub(super) ranks: BTreeMap<Rank, Linked>,
    /// Links to other groups, by replica.
    pub(super) across: BTreeMap<u16, u64>,
    /// The failed rank that heartbeats report.
    pub(super) failed: Option<Rank>,
    /// Whether heartbeats report that this rank drains.
    pub(super) draining: bool,
    /// Whether the engine has aborted its waits.
    pub(super) is_aborted: bool,
    /// Number of steps.
    pub(super) progress: u64,
    /// The engine of a head, once it has requests.
    pub(super) engine: Option<HeadEngine>,
    /// Whether its shard was loaded from another file than those of the others.
    pub(super) has_other_weights: bool,
    /// Whether a step is scheduled.
    pub(super) steps: bool,
}

/// A daemon process.
#[derive(Debug)]
pub(super) struct Process {
    /// Which start of the daemon.
    pub(super) life: u64,
    /// Time of the start, on its machine's clock.
    pub(super) since: Duration,
    /// The node's state machine.
    pub(super) node: Node,
    /// Inputs waiting for the driver.
    pub(super) inbox: VecDeque<Input>,
    /// Pending effects of the node.
    pub(super) effects: VecDeque<Effect>,
    /// The write in progress, and those that wait for it.
    pub(super) writes: VecDeque<Writing>,
    /// Whether it is stopped (SIGSTOP).
    pub(super) is_stopped: bool,
    /// The steward's state machine.
    pub(super) steward: Steward,
    /// What it remembers of a rolling restart that it drives.
    pub(super) restarting: Restarting,
    /// The steward's sessions, by node.
    pub(super) sessions: BTreeMap<usize, u64>,
    /// The steward's open questions, by connection and request.
    pub(super) asked: BTreeMap<(u64, RequestId), Question>,
    /// Number of requests so far.
    pub(super) requests: u64,
    /// Number of assignments so far.
    pub(super) attempts: u64,
    /// The assignment that is being loaded or linked.
    pub(super) opening: Option<Opening>,
    /// The running engine.
    pub(super) run: Option<EngineRun>,
    /// Listening addresses reported by other nodes, by name.
    pub(super) heard: BTreeMap<String, String>,
    /// Whether it exits once its effects are done.
    pub(super) exits: bool,
}
