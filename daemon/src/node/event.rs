//! What happens to a node and what it wants done. Plain values.
use std::{sync::Arc, time::Duration};

use shared::{
    ids::{Epoch, Rank, RequestId, TopologyHash},
    protocol::{
        across::Across,
        bench::{Bench, BenchLinks},
        error::{Fault, Loss},
        inspect::Inspect,
        message::{Finished, Generate, Prepare, Request, ResponseBody, TokenEvent, ToolFormat},
        models::ModelsRequest,
        pairing::Rekeying,
        recovery::Committed,
    },
    telemetry::{BenchFound, BenchProgress, KvUse, LinkBench, LoadProgress},
    topology::{Exclusions, Rolling},
    units::Bytes,
};

use super::quorum::{Forgot, Votes};
use crate::engine::RequestKey;

/// A console's session on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A bench of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchKey(pub u64);

/// Something that happened. `now` in those that need it is the time since the daemon started.
#[derive(Debug)]
pub enum Event {
    /// A console's request.
    Request {
        /// From which session.
        session: SessionId,
        /// Who the session's console is.
        by: String,
        /// The request.
        request: Request,
    },
    /// A session ended.
    SessionClosed(SessionId),
    /// A session's reader cannot keep up.
    SessionSlow(SessionId),
    /// A load moves on.
    LoadProgress(Epoch, LoadProgress),
    /// A load ended; on success the bytes that the shard holds.
    Loaded(Epoch, Result<Bytes, Fault>),
    /// (epoch, hash) are on the disk, or not.
    Persisted(Epoch, Result<(), Fault>),
    /// The links to all ranks are open and the engine runs, or not.
    Connected(Epoch, Result<(), Fault>),
    /// The engine says something.
    Engine(Epoch, Progress),
    /// A rank of the running topology is gone.
    PeerLost(Epoch, Rank, Loss),
    /// A rank of the running topology says that it broke there: the rank that it lost, or itself.
    PeerFailed(Epoch, Rank, Rank),
    /// A rank wants to leave, or the head says that it takes no new work.
    PeerDrains(Epoch, Rank, PeerDrain),
    /// The head of another group says something (`None`: it is gone).
    Across(Epoch, u16, Option<Across>),
    /// A list of exclusions is on the disk, or not.
    ExclusionsKept(ExclusionsKept),
    /// A bench moves on.
    BenchProgress(BenchKey, BenchProgress),
    /// A bench ended.
    BenchEnded(BenchKey, Result<BenchFound, Fault>),
    /// Time passes.
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

/// The end of [`Effect::KeepExclusions`].
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

/// What a peer's heartbeat says about draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDrain {
    /// It takes no new work.
    pub draining: bool,
    /// Its engine still has work.
    pub busy: bool,
}

/// What an engine says.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A request was taken.
    Started(RequestKey, Vec<u32>, ToolFormat),
    /// It has a slot and KV memory for its tokens: from now on it computes.
    Dispatched(RequestKey),
    /// A token.
    Token(RequestKey, TokenEvent),
    /// A request ended.
    Finished(RequestKey, Box<Finished>),
    /// Other KV blocks are in use than before.
    Kv(KvUse),
    /// All-reduces were timed.
    LinksBenched(RequestKey, LinkBench),
    /// Something for the head of another group.
    Across(u16, Across),
    /// A request cannot be run.
    Refused(RequestKey, Fault),
    /// The engine cannot go on; `rank` is the one that was lost, if one was.
    Broken {
        /// The lost rank.
        rank: Option<Rank>,
        /// What happened, for the log.
        reason: String,
    },
    /// The engine cannot go on: the model's file cannot be read, or holds something else by now.
    Unreadable(String),
}

/// What is to be told to an engine; the driver ends it.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineCommand {
    /// Prepare a request and run it.
    Submit(RequestKey, Arc<Generate>),
    /// End a request; it finishes as cancelled.
    Cancel(RequestKey),
    /// The head of another group says something.
    Across(u16, Across),
    /// Another group is gone.
    AcrossLost(u16),
    /// Time all-reduces between the ranks of the stage.
    BenchLinks(RequestKey, BenchLinks),
}

/// Something for the disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Highest epoch promised, and the topology that it was promised for.
    Promise(Epoch, TopologyHash),
    /// The topology that comes back after a loss; `None`: none does.
    Committed(Option<Committed>),
    /// What was said in a vote.
    Votes(Votes),
    /// What is unknown about earlier votes; `None`: nothing.
    Forgot(Option<Forgot>),
    /// The latest rolling restart.
    Rolling(Rolling),
}

/// Something to do.
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
    /// Send lines of the log, or the settings that count.
    Inspect {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// Which.
        what: Inspect,
    },
    /// Send reports at an interval.
    Watch {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// Between two reports.
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
    /// Look at model files or change them, and answer.
    Models {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// What is asked.
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
    /// Run a bench in a process of its own.
    Bench(BenchKey, Box<Bench>),
    /// Kill a bench; nothing of it is wanted any more, and nothing is loaded before its memory is back.
    StopBench(BenchKey),
    /// Keep the cluster's next key and use it.
    Rekey {
        /// Who asked.
        session: SessionId,
        /// For which request.
        id: RequestId,
        /// The key.
        rekey: Rekeying,
    },
    /// Load the shard of an assignment.
    Load(Box<Prepare>),
    /// Give up a load, or drop a shard that was not committed.
    Discard(Epoch),
    /// Write (epoch, hash) to the disk and sync.
    Persist(Epoch, TopologyHash),
    /// Write records to the disk and sync, then answer; without an answer to give, one that cannot be written is a warning.
    Write {
        /// What.
        records: Vec<Record>,
        /// Session, request and answer.
        then: Option<(SessionId, RequestId, ResponseBody)>,
    },
    /// Say what this node holds, and remember where the caller listens.
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
    /// Tell the head of another group.
    SendAcross(u16, Across),
    /// Tell the running engine.
    Command(EngineCommand),
    /// End every wait of the running engine, stop it and drop its shard.
    StopEngine(Epoch),
    /// End every wait of the running engine, but keep its links open: others must not take us for the lost one.
    AbortEngine(Epoch),
    /// Say in heartbeats that the topology broke here, and which rank was lost.
    AnnounceFault(Epoch, Rank),
    /// Say in heartbeats that this node takes no new work.
    AnnounceDraining,
    /// Say goodbye to peers, then end the process with this code.
    Exit(i32),
}
