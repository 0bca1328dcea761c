//! What the client tells the rest of the console. Plain values; no sockets here.
use serde::{Deserialize, Serialize};
use shared::{
    ids::{Epoch, MemberIndex},
    protocol::{
        error::Fault,
        handshake::Identity,
        inspect::LogLines,
        message::{Finished, TokenEvent},
    },
    telemetry::{LoadProgress, NodeReport},
    topology::{Exclusion, Rolling, Topology},
};

use crate::planned::Planned;

/// Something that happened between the console and its nodes. `node` is the index in the list that the client was started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClientEvent {
    /// A session is open.
    Connected {
        /// Which node.
        node: usize,
        /// Who answered.
        identity: Identity,
    },
    /// A session could not be opened or broke; the client dials again by itself.
    Disconnected {
        /// Which node.
        node: usize,
        /// Why.
        fault: Fault,
    },
    /// A node's report.
    Report {
        /// Which node.
        node: usize,
        /// The report.
        report: Box<NodeReport>,
    },
    /// An assignment moves on.
    Assign(AssignEvent),
    /// The running generation moves on.
    Generate(GenerateEvent),
    /// A restart or an exclusion moves on.
    Operate(OperateEvent),
    /// Lines of a node's log.
    Log {
        /// Which node.
        node: usize,
        /// The lines, or why there are none.
        answer: Result<LogLines, Fault>,
    },
    /// The planner answered.
    // Not part of a recording: it is computed from what the nodes said.
    #[serde(skip)]
    Planned(Result<Box<Planned>, Fault>),
}

/// Steps of an assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AssignEvent {
    /// A node loads its shard.
    Loading {
        /// Which node.
        node: usize,
        /// How far.
        progress: LoadProgress,
    },
    /// All nodes are prepared; commits are under way.
    Committing,
    /// The topology runs.
    Running {
        /// Its epoch.
        epoch: Epoch,
        /// What runs.
        topology: Box<Topology>,
        /// Whether it ran already and was used again.
        reused: bool,
    },
    /// It failed; what was prepared is aborted.
    Failed(Fault),
    /// Answers pause: a node unloads its shard before it loads the next one, because its memory does not hold both.
    Pauses {
        /// Its name.
        node: String,
        /// Time to read the next shard; `None`: the node has not measured its disk.
        seconds: Option<u32>,
    },
}

impl AssignEvent {
    /// The pause in words, if this is one.
    pub fn pause(&self) -> Option<String> {
        let Self::Pauses { node, seconds } = self else { return None };
        let long = seconds.map_or_else(String::new, |seconds| format!(" for about {} s", seconds.max(1)));
        Some(format!("answers pause{long}: {node} has no memory for its next shard next to the current one"))
    }
}

/// Steps of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GenerateEvent {
    /// The head took it.
    Started {
        /// Tokens of the prompt.
        prompt_token_ids: Vec<u32>,
    },
    /// A token.
    Token(TokenEvent),
    /// The end.
    Finished(Box<Finished>),
    /// The end by a fault.
    Failed(Fault),
    /// The head was lost or the topology changed, and no head that continues the answer has been found yet.
    Waits {
        /// What interrupted the answer.
        fault: Fault,
        /// Seconds until the search ends.
        seconds: u32,
    },
    /// Another head continues the answer, or the same head in another topology.
    Moved {
        /// What interrupted the answer.
        fault: Fault,
        /// The epoch of the topology.
        epoch: Epoch,
        /// The topology that continues the answer.
        topology: Box<Topology>,
        /// The head in that topology.
        head: MemberIndex,
    },
}

/// Steps of a restart, or of taking a node out or in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OperateEvent {
    /// A node restarts.
    Restart {
        /// Which node.
        node: usize,
        /// How far it is.
        step: RestartStep,
    },
    /// The nodes are told that one is out, or in again.
    Told {
        /// The node's name.
        node: String,
        /// Whether it is out.
        out: bool,
    },
    /// Requests that run may finish first.
    WaitsForRequests {
        /// How many run.
        count: u32,
    },
    /// The topology is assigned anew.
    Assign(AssignEvent),
    /// What the nodes have been told of a node; they report it a moment later.
    Said(Exclusion),
    /// What the nodes keep of the rolling restart now.
    Rolled(Box<Rolling>),
    /// A node takes nothing new.
    Cordoned {
        /// The node's name.
        node: String,
        /// Whether nothing runs there any more, if that was waited for.
        drained: Option<bool>,
    },
    /// A node is out, or in again, and what runs has been assigned anew where it had to be.
    Excluded {
        /// The node's name.
        node: String,
        /// Whether it is out.
        out: bool,
        /// What runs now, if that changed.
        running: Option<(Epoch, Box<Topology>)>,
    },
    /// That failed: the node is out, or in, and what runs may not fit that.
    ExcludeFailed(Fault),
    /// A head ends a request.
    RequestCancelled {
        /// The head's name.
        node: String,
    },
    /// An order could not be carried out; nothing changed.
    Refused(Fault),
    /// A node cannot keep the list of nodes that are out. Enough others do.
    NotKept(Fault),
}

/// How far the restart of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RestartStep {
    /// It finishes what runs.
    Draining,
    /// It has ended and is started again.
    Starting,
    /// It is back; the topology is assigned anew.
    Assigning,
    /// It serves again.
    Done {
        /// Since its restart began.
        seconds: f64,
    },
}
