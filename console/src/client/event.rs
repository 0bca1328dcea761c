//! Events that the client sends to the rest of the console. Plain values; no sockets here.
use common::{
    chat::AnswerForm,
    fault::Fault,
    ids::{Epoch, MemberIndex},
};
use protocol::{
    handshake::Identity,
    inspect::LogLines,
    message::{Finished, TokenEvent},
    models::ModelFile,
};
use serde::{Deserialize, Serialize};
use telemetry::NodeReport;
use topology::{Exclusion, Rolling, Topology};

pub use assignment::event::AssignEvent;
use assignment::planner_query::PlannerAnswer;

use crate::operator::model_order::ModelEvent;

/// An event between the console and its nodes. `node` is the index in the list that the client was started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClientEvent {
    /// A session is open.
    Connected {
        /// Index of the node.
        node: usize,
        /// The identity that the node presented.
        identity: Identity,
    },
    /// A session could not be opened, or broke; the client redials by itself.
    Disconnected {
        /// Index of the node.
        node: usize,
        /// The reason.
        fault: Fault,
    },
    /// A node's report.
    Report {
        /// Index of the node.
        node: usize,
        /// The report.
        report: Box<NodeReport>,
    },
    /// Progress of an assignment.
    Assign(AssignEvent),
    /// Progress of the running generation.
    Generate(GenerateEvent),
    /// Progress of a restart or of an exclusion.
    Operate(OperateEvent),
    /// Lines of a node's log.
    Log {
        /// Index of the node.
        node: usize,
        /// The lines, or why there are none.
        answer: Result<LogLines, Fault>,
    },
    /// The model files of a node.
    Models {
        /// Index of the node.
        node: usize,
        /// The files, or why there are none.
        answer: Result<Vec<ModelFile>, Fault>,
    },
    /// Another answer to an order about model files.
    Model(ModelEvent),
    /// The result of the planner.
    // Not part of a recording, because it is computed from reports.
    #[serde(skip)]
    Planned(Result<Box<PlannerAnswer>, Fault>),
}

/// Steps of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GenerateEvent {
    /// The head accepted the request.
    Started {
        /// Token ids of the prompt.
        prompt_token_ids: Vec<u32>,
    },
    /// How to read the answer to a chat: where it thinks. Sent once, if it is not a plain text.
    Form(AnswerForm),
    /// A token.
    Token(TokenEvent),
    /// The generation ended.
    Finished(Box<Finished>),
    /// The generation failed.
    Failed(Fault),
    /// The head was lost or the topology changed, and no head that continues the answer has been found yet.
    Waits {
        /// The fault that interrupted the answer.
        fault: Fault,
        /// Seconds until the search ends.
        seconds: u32,
    },
    /// Another head continues the answer, or the same head in another topology.
    Moved {
        /// The fault that interrupted the answer.
        fault: Fault,
        /// The epoch of the topology.
        epoch: Epoch,
        /// The topology that continues the answer.
        topology: Box<Topology>,
        /// The head in that topology.
        head: MemberIndex,
    },
}

/// Steps of a restart, an exclusion or an inclusion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OperateEvent {
    /// A node restarts.
    Restart {
        /// Index of the node.
        node: usize,
        /// Progress of the restart.
        step: RestartStep,
    },
    /// The nodes receive an exclusion or an inclusion.
    Told {
        /// The node's name.
        node: String,
        /// Whether the node is excluded.
        out: bool,
    },
    /// The operation waits for running requests to finish.
    WaitsForRequests {
        /// Number of running requests.
        count: u32,
    },
    /// The topology is assigned again.
    Assign(AssignEvent),
    /// The entry that was sent to the nodes; their reports contain it a moment later.
    Said(Exclusion),
    /// The state of the rolling restart that the nodes store.
    Rolled(Box<Rolling>),
    /// A node is cordoned.
    Cordoned {
        /// The node's name.
        node: String,
        /// Whether its requests have finished; `None` if the operation did not wait for them.
        drained: Option<bool>,
    },
    /// A node is excluded or included, and the topology was assigned again if necessary.
    Excluded {
        /// The node's name.
        node: String,
        /// Whether the node is excluded.
        out: bool,
        /// The new topology, if it changed.
        running: Option<(Epoch, Box<Topology>)>,
    },
    /// The assignment failed: the node is excluded or included, but the running topology may not match.
    ExcludeFailed(Fault),
    /// A head cancels a request.
    RequestCancelled {
        /// The head's name.
        node: String,
    },
    /// A node could not be cordoned or drained; nothing changed.
    Refused(Fault),
    /// A request could not be cancelled, or a rolling restart not be changed. A cordon, drain, exclusion or inclusion
    /// under way continues.
    CommandRefused(Fault),
    /// A node cannot store the list of excluded nodes. Enough other nodes do.
    NotKept(Fault),
}

/// Progress of the restart of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RestartStep {
    /// The node finishes its requests.
    Draining,
    /// The node has stopped and is starting again.
    Starting,
    /// The node is back; the topology is assigned again.
    Assigning,
    /// The node serves again.
    Done {
        /// Seconds since the restart began.
        seconds: f64,
    },
}
