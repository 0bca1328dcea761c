//! A daemon in a simulation: its pure machines and what its driver holds.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use daemon::{
    engine::RequestKey,
    node::{
        Effect, Node, SessionId,
        event::Event as NodeEvent,
        pulse::Peer,
        steward::{Question, Steward},
    },
};
use shared::{
    ids::{Epoch, MemberIndex, Rank, RequestId, TopologyHash},
    protocol::message::{Generate, ResponseBody},
    topology::{Exclusions, Topology},
};

use super::disk::Entry;

/// Something for the driver.
#[derive(Debug)]
pub(super) enum Input {
    /// For the node.
    Event(NodeEvent),
    /// For the node, of a run; nothing of an earlier run counts.
    Run(u64, NodeEvent),
    /// The steward looks.
    Look,
}

/// A write under way: the driver waits for it.
#[derive(Debug)]
pub(super) struct Writing {
    /// What is written.
    pub(super) entries: Vec<Entry>,
    /// What follows.
    pub(super) then: AfterWrite,
}

/// What follows a write.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a simulation holds few of them at a time")]
pub(super) enum AfterWrite {
    /// An answer, if one is due.
    Respond(Option<(SessionId, RequestId, ResponseBody)>),
    /// The node hears of it.
    Persisted(Epoch),
    /// The node hears of it.
    Exclusions(SessionId, RequestId, Exclusions),
}

/// Both links to a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    /// Data link.
    pub(super) data: Option<u64>,
    /// Control link.
    pub(super) control: Option<u64>,
}

/// An assignment between its load and its start.
#[derive(Debug)]
pub(super) struct Opening {
    /// Which of this process.
    pub(super) attempt: u64,
    /// Its epoch.
    pub(super) epoch: Epoch,
    /// Its hash.
    pub(super) hash: TopologyHash,
    /// Who holds what.
    pub(super) topology: Topology,
    /// The own place.
    pub(super) member: MemberIndex,
    /// Links by member.
    pub(super) links: BTreeMap<MemberIndex, Pair>,
    /// Whether links are being opened, and which are still to be dialled.
    pub(super) dials: Option<VecDeque<(MemberIndex, bool)>>,
    /// The dial under way.
    pub(super) dialling: Option<u64>,
}

/// A rank of the own replica.
#[derive(Debug)]
pub(super) struct Linked {
    /// Its member.
    pub(super) member: MemberIndex,
    /// Its links.
    pub(super) pair: Pair,
    /// What its heartbeats say.
    pub(super) peer: Peer,
    /// It counts as lost: no more heartbeats go to it.
    pub(super) is_lost: bool,
}

/// A running engine and its heartbeats.
#[derive(Debug)]
pub(super) struct Run {
    /// Which of this process.
    pub(super) attempt: u64,
    /// Its number in the whole history.
    pub(super) number: u64,
    /// Its epoch.
    pub(super) epoch: Epoch,
    /// Its hash.
    pub(super) hash: TopologyHash,
    /// Who holds what.
    pub(super) topology: Topology,
    /// The own place.
    pub(super) member: MemberIndex,
    /// When it began, on the world's clock.
    pub(super) since: Duration,
    /// Other ranks of the replica.
    pub(super) ranks: BTreeMap<Rank, Linked>,
    /// Links to other groups, by replica.
    pub(super) across: BTreeMap<u16, u64>,
    /// The fault that heartbeats tell.
    pub(super) failed: Option<Rank>,
    /// Heartbeats say that it drains.
    pub(super) draining: bool,
    /// The engine has ended its waits.
    pub(super) is_aborted: bool,
    /// Steps.
    pub(super) progress: u64,
    /// Requests with the tokens that they have.
    pub(super) requests: BTreeMap<RequestKey, (Generate, Vec<u32>)>,
    /// Whether a step is scheduled.
    pub(super) steps: bool,
}

/// A daemon.
#[derive(Debug)]
pub(super) struct Process {
    /// Which start of it.
    pub(super) life: u64,
    /// When it was started.
    pub(super) since: Duration,
    /// The node's machine.
    pub(super) node: Node,
    /// What waits for the driver.
    pub(super) inbox: VecDeque<Input>,
    /// What the node wants done.
    pub(super) effects: VecDeque<Effect>,
    /// The write under way.
    pub(super) writing: Option<Writing>,
    /// It is stopped (SIGSTOP).
    pub(super) is_stopped: bool,
    /// The steward's machine.
    pub(super) steward: Steward,
    /// Its sessions by node.
    pub(super) sessions: BTreeMap<usize, u64>,
    /// Its open questions by connection and request.
    pub(super) asked: BTreeMap<(u64, RequestId), Question>,
    /// Requests so far.
    pub(super) requests: u64,
    /// Assignments so far.
    pub(super) attempts: u64,
    /// The assignment that is loaded or linked.
    pub(super) opening: Option<Opening>,
    /// The running engine.
    pub(super) run: Option<Run>,
    /// Where other nodes said that they listen.
    pub(super) heard: BTreeMap<String, String>,
    /// It ends when its effects are done.
    pub(super) exits: bool,
}
