//! Events of the node's state machine, and the values that they share with its effects. Plain values.
use std::{collections::VecDeque, sync::Arc, time::Duration};

use common::{
    fault::{Fault, Loss},
    ids::{Epoch, Rank, RequestId, TopologyHash},
    units::Bytes,
};
use engine::{RequestKey, port::ReplicaEvent};
use protocol::{
    across::Across,
    bench::BenchLinks,
    message::{Generate, Request},
    recovery::Committed,
};
use telemetry::{BenchFound, BenchProgress, LoadProgress};
use topology::{Exclusions, Rolling};

use super::quorum::{VoteGap, Votes};
use crate::text::AnswerEvent;

/// A console's session on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Where the answer to a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The session that sent the request.
    pub session: SessionId,
    /// The request.
    pub id: RequestId,
}

/// Identifies a benchmark of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchKey(pub u64);

/// An event for the node. `now` is the time since the daemon started.
#[derive(Debug)]
pub enum Event {
    /// A console's request.
    Request {
        /// The session.
        session: SessionId,
        /// Name of the session's console.
        by: String,
        /// The request.
        request: Request,
    },
    /// A session ended.
    SessionClosed(SessionId),
    /// A session's reader cannot keep up.
    SessionSlow(SessionId),
    /// Progress of a load.
    LoadProgress(Epoch, LoadProgress),
    /// A load ended; on success the bytes that the shard holds.
    Loaded(Epoch, Result<Bytes, Fault>),
    /// (epoch, hash) was written to the disk, or could not be.
    Persisted(Epoch, TopologyHash, Result<(), Fault>),
    /// The links to all ranks are open and the engine runs, or not.
    Connected(Epoch, Result<(), Fault>),
    /// An event of a request that the engine runs.
    Answer(Epoch, RequestKey, AnswerEvent),
    /// An event of the engine.
    Engine(Epoch, ReplicaEvent),
    /// A rank of the running topology is gone.
    PeerLost(Epoch, Rank, Loss),
    /// A rank of the running topology reports that the topology broke.
    PeerFailed {
        /// Epoch of the topology.
        epoch: Epoch,
        /// The rank that reports it.
        reporter: Rank,
        /// Where it broke: the rank that the reporter lost, or the reporter itself.
        failed: Rank,
        /// How the failed rank was lost, judged by this node's own link to it.
        how: Loss,
    },
    /// A rank wants to leave, or the head takes no new work.
    PeerDrains(Epoch, Rank, PeerDrain),
    /// A message of another group's head (`None`: the head is lost).
    Across(Epoch, u16, Option<Across>),
    /// A list of exclusions was written to the disk, or could not be.
    ExclusionsKept(ExclusionsKept),
    /// Progress of a benchmark.
    BenchProgress(BenchKey, BenchProgress),
    /// A benchmark ended.
    BenchEnded(BenchKey, Result<BenchFound, Fault>),
    /// Time has passed.
    Tick {
        /// Since the daemon started.
        now: Duration,
    },
    /// SIGTERM: drain, then leave.
    Terminate {
        /// Since the daemon started.
        now: Duration,
    },
}

/// The result of [`DiskEffect::KeepExclusions`](super::effect::DiskEffect::KeepExclusions).
#[derive(Clone, Debug, PartialEq)]
pub struct ExclusionsKept {
    /// The session that sent the list.
    pub session: SessionId,
    /// The request.
    pub id: RequestId,
    /// The list that was to be written.
    pub list: Exclusions,
    /// Whether it could be written.
    pub result: Result<(), Fault>,
}

/// Lists of exclusions are written one after another: each is merged with what the previous write has made valid.
#[derive(Debug, Default)]
pub(super) struct ExclusionWrites {
    /// A list is being written.
    pub(super) is_writing: bool,
    /// Lists that wait for it.
    pub(super) waiting: VecDeque<(ReplyTo, Exclusions)>,
}

/// The drain state in a peer's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDrain {
    /// It takes no new work.
    pub draining: bool,
    /// Its engine still has work.
    pub busy: bool,
}

/// Commands for an engine. The driver stops it, so there is no command for that.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineCommand {
    /// Prepare a request and run it.
    Submit(RequestKey, Arc<Generate>),
    /// End a request; it finishes as cancelled.
    Cancel(RequestKey),
    /// A message of another group's head.
    Across(u16, Across),
    /// Another group is lost.
    AcrossLost(u16),
    /// Time all-reduces between the ranks of the stage.
    BenchLinks(RequestKey, BenchLinks),
}

/// A record for the disk.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a record is moved once, to the disk")]
pub enum Record {
    /// Highest epoch promised, and the topology that it was promised for.
    Promise(Epoch, TopologyHash),
    /// The topology that recovery brings back after a loss; `None`: none.
    Committed(Option<Committed>),
    /// The node's votes.
    Votes(Votes),
    /// Its votes as the witness of other groups.
    Witnessed(Vec<Votes>),
    /// The gap in the record of earlier votes; `None`: none.
    VoteGap(Option<VoteGap>),
    /// The latest rolling restart.
    Rolling(Rolling),
    /// The topology that was last unloaded; `None`: none since the latest assignment.
    Unloaded(Option<(Epoch, TopologyHash)>),
    /// Addresses of other nodes of the cluster.
    Neighbours(Vec<String>),
}
