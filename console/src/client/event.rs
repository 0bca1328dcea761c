//! What the client tells the rest of the console. Plain values; no sockets here.
use shared::{
    ids::Epoch,
    protocol::{
        error::Fault,
        handshake::Identity,
        message::{Finished, TokenEvent},
    },
    telemetry::{LoadProgress, NodeReport},
    topology::Topology,
};

/// Something that happened between the console and its nodes. `node` is the index in the list that the client was started with.
#[derive(Clone, Debug, PartialEq)]
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
}

/// Steps of an assignment.
#[derive(Clone, Debug, PartialEq)]
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
}

/// Steps of a generation.
#[derive(Clone, Debug, PartialEq)]
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
}
