//! Inputs and outputs of the node's state machine. Plain values.
use std::{sync::Arc, time::Duration};

use common::{
    fault::{Fault, Loss},
    ids::{Epoch, Rank, RequestId, TopologyHash},
    units::Bytes,
};
use engine::{RequestKey, port::Progress};
use protocol::{
    across::Across,
    bench::{Bench, BenchLinks},
    inspect::Inspect,
    message::{Generate, Prepare, Request, ResponseBody},
    models::ModelsRequest,
    pairing::Rekeying,
    recovery::Committed,
};
use telemetry::{BenchFound, BenchProgress, LoadProgress};
use topology::{Exclusions, Rolling};

use super::quorum::{Forgot, Votes};

/// A console's session on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

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
    Persisted(Epoch, Result<(), Fault>),
    /// The links to all ranks are open and the engine runs, or not.
    Connected(Epoch, Result<(), Fault>),
    /// An event of the engine.
    Engine(Epoch, Progress),
    /// A rank of the running topology is gone.
    PeerLost(Epoch, Rank, Loss),
    /// A rank of the running topology reports that the topology broke: at the rank that it lost, or at itself.
    PeerFailed(Epoch, Rank, Rank),
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

/// The result of [`Effect::KeepExclusions`].
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
pub enum Record {
    /// Highest epoch promised, and the topology that it was promised for.
    Promise(Epoch, TopologyHash),
    /// The topology that recovery brings back after a loss; `None`: none.
    Committed(Option<Committed>),
    /// The node's votes.
    Votes(Votes),
    /// The gap in the record of earlier votes; `None`: none.
    Forgot(Option<Forgot>),
    /// The latest rolling restart.
    Rolling(Rolling),
}

/// Effects that the driver executes.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer a request.
    Respond {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The answer.
        body: ResponseBody,
    },
    /// Send a report now.
    Report {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
    },
    /// Send the latest all-reduces one by one.
    Records {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
    },
    /// Send lines of the log, or the effective settings.
    Inspect {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The kind.
        what: Inspect,
    },
    /// Send reports at an interval.
    Watch {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// Interval between two reports.
        interval: Duration,
    },
    /// Read a model's identity and answer.
    Identify {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The file's name.
        model: String,
    },
    /// Execute a request about model files, and answer.
    Models {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The request about model files.
        request: Box<ModelsRequest>,
    },
    /// Write the list of exclusions to the disk.
    KeepExclusions {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The list.
        list: Exclusions,
    },
    /// Run a benchmark in a process of its own.
    Bench(BenchKey, Box<Bench>),
    /// Kill a benchmark and ignore its result. A later load waits until its memory is free.
    StopBench(BenchKey),
    /// Store the cluster's next key and use it.
    Rekey {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The key.
        rekey: Rekeying,
    },
    /// Load the shard of an assignment.
    Load(Box<Prepare>),
    /// Abandon a load, or drop a shard that was not committed.
    Discard(Epoch),
    /// Write (epoch, hash) to the disk and sync.
    Persist(Epoch, TopologyHash),
    /// Write records to the disk and sync, then answer. Without an answer, a failure is only a warning.
    Write {
        /// The records.
        records: Vec<Record>,
        /// Session, request and answer.
        then: Option<(SessionId, RequestId, ResponseBody)>,
    },
    /// Report this node's standing, and store the address at which the caller listens.
    Standing {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// A node's name and address.
        caller: Option<(String, String)>,
    },
    /// Open links to all ranks and start the engine on the prepared shard.
    Connect(Epoch),
    /// Send a message to the head of another group.
    SendAcross(u16, Across),
    /// Send a command to the running engine.
    Command(EngineCommand),
    /// End all waits of the running engine, stop it and drop its shard.
    StopEngine(Epoch),
    /// End all waits of the running engine, but keep its links open, so that peers do not mistake this node for the
    /// lost one.
    AbortEngine(Epoch),
    /// Announce in heartbeats that the topology broke here, and which rank was lost.
    AnnounceFault(Epoch, Rank),
    /// Announce in heartbeats that this node takes no new work.
    AnnounceDraining,
    /// Say goodbye to peers, then end the process with this code.
    Exit(i32),
}
