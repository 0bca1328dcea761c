//! Effects of the node's state machine, grouped by the room of the driver that performs them. Plain values.
use std::time::Duration;

use common::ids::{Epoch, Rank, RequestId, TopologyHash};
use protocol::{
    across::Across,
    bench::Bench,
    inspect::Inspect,
    kv::KvRequest,
    message::{Prepare, ResponseBody},
    models::ModelsRequest,
    pairing::Rekeying,
    texts::TextRequest,
};
use topology::Exclusions;

use super::event::{BenchKey, EngineCommand, Record, ReplyTo, SessionId};

/// Effects that the driver executes.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// For the sessions of consoles and other nodes.
    Session(SessionEffect),
    /// Answer with measurements of this node.
    Report(ReportEffect),
    /// Answer a request that concerns the whole cluster.
    Cluster(ClusterEffect),
    /// Execute a request about model files, and answer.
    Model(ModelEffect),
    /// Read or keep keys and values of other nodes, and answer.
    Kv(ReplyTo, Box<KvRequest>),
    /// Write to the state folder. Writes keep their order.
    Disk(DiskEffect),
    /// Execute a step of an assignment that does not run yet.
    Assignment(AssignmentEffect),
    /// For the running engine.
    Engine(EngineEffect),
    /// For the benchmark process.
    Bench(BenchEffect),
    /// Announce the end to peers, then end the process with this code.
    Exit(i32),
}

impl Effect {
    /// Answers a request at once.
    pub fn respond(to: ReplyTo, body: ResponseBody) -> Self {
        let ReplyTo { session, id } = to;
        Self::Session(SessionEffect::Respond { session, id, body })
    }

    /// Answers a request when all earlier writes have ended: for answers that rely on them.
    pub fn respond_after_writes(to: ReplyTo, body: ResponseBody) -> Self {
        Self::Disk(DiskEffect::Write { records: Vec::new(), then: Some(PendingAnswer { to, body }) })
    }
}

/// An answer that waits for the disk.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingAnswer {
    /// Where it goes.
    pub to: ReplyTo,
    /// The answer, unless the write fails.
    pub body: ResponseBody,
}

/// Effects on sessions.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an effect is moved once, to the room that performs it")]
pub enum SessionEffect {
    /// Answer a request.
    Respond {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The answer.
        body: ResponseBody,
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
    /// Send lines of the log, or the effective settings.
    Inspect {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The kind.
        what: Inspect,
    },
    /// Delete the stored keys and values, then answer.
    ClearStore {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
    },
}

/// Answers with measurements.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportEffect {
    /// Send a report now.
    Current {
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
}

/// Answers about the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterEffect {
    /// Report this node's standing, and store the address at which the caller listens.
    Standing {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// A node's name and address.
        caller: Option<(String, String)>,
    },
    /// Store the cluster's next key and use it.
    Rekey {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The key.
        rekey: Rekeying,
    },
}

/// Requests about model files.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEffect {
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
    Files {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The request about model files.
        request: Box<ModelsRequest>,
    },
    /// Forget the stored content hash of a model whose file could not be read while it served: before the next load, the
    /// whole file is read.
    Distrust {
        /// The file's name.
        model: String,
    },
}

/// Writes to the state folder. Each is synced before its answer is sent.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an effect is moved once, to the room that performs it")]
pub enum DiskEffect {
    /// Write (epoch, hash); the result is [`Event::Persisted`](super::Event::Persisted).
    Persist(Epoch, TopologyHash),
    /// Write the list of exclusions; the result is [`Event::ExclusionsKept`](super::Event::ExclusionsKept).
    KeepExclusions {
        /// The session.
        session: SessionId,
        /// The request.
        id: RequestId,
        /// The list.
        list: Exclusions,
    },
    /// Write records, then answer. An answer without records is sent after all earlier writes. Without an answer, a
    /// failure is only a warning.
    Write {
        /// The records.
        records: Vec<Record>,
        /// The answer.
        then: Option<PendingAnswer>,
    },
}

/// Steps of an assignment.
#[derive(Clone, Debug, PartialEq)]
pub enum AssignmentEffect {
    /// Load the shard of an assignment.
    Load(Box<Prepare>),
    /// Abandon a load, or drop a shard that was not committed.
    Discard(Epoch),
    /// Open links to all ranks and start the engine on the prepared shard.
    Connect(Epoch),
}

/// Effects on the running engine and its peers.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEffect {
    /// Send a command to the running engine.
    Command(EngineCommand),
    /// Answer a question about the model's texts.
    Text(ReplyTo, Box<TextRequest>),
    /// Send a message to the head of another group.
    SendAcross(u16, Across),
    /// End all waits of the running engine, stop it and drop its shard.
    Stop(Epoch),
    /// End all waits of the running engine, but keep its links open, so that peers do not mistake this node for the
    /// lost one.
    Abort(Epoch),
    /// Announce in heartbeats that the topology broke here, and which rank was lost.
    AnnounceFault(Epoch, Rank),
    /// Announce in heartbeats that this node takes no new work.
    AnnounceDraining,
}

/// Effects on the benchmark.
#[derive(Clone, Debug, PartialEq)]
pub enum BenchEffect {
    /// Run a benchmark in a process of its own.
    Start(BenchKey, Box<Bench>),
    /// Kill a benchmark and ignore its result. A later load waits until its memory is free.
    Stop(BenchKey),
}
