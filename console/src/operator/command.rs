//! Operator commands on nodes, requests and assignments: plain values that `update` creates and the client executes.

/// An operator command. Nodes are identified by their index in the dashboard's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorCommand {
    /// Control the rolling restart, which the nodes drive themselves.
    Roll(RollingCommand),
    /// Cordon, drain or exclude a node.
    Out {
        /// Index of the node.
        node: usize,
        /// The reason, stored with the exclusion.
        reason: String,
        /// How far the node is removed from service.
        how: Removal,
    },
    /// Include a node that is excluded, drained or cordoned.
    In {
        /// Index of the node.
        node: usize,
    },
    /// Abort the assignment that the nodes are preparing.
    AbortAssignment,
    /// Cancel a request on its head, regardless of the client that sent it.
    CancelRequest {
        /// Index of the head.
        node: usize,
        /// The request's number on that head.
        number: u64,
    },
}

/// Control of the rolling restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollingCommand {
    /// Restart these nodes in this order.
    Begin(Vec<usize>),
    /// Pause after the current node.
    Pause,
    /// Resume a paused restart.
    Resume,
    /// End the restart after the current node.
    Abort,
}

/// How far a node is removed from service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Stop scheduling new requests on the node's replica; running ones finish.
    Cordon,
    /// As [`Self::Cordon`], then wait until no request is running there.
    Drain,
    /// Remove the node from the topology and assign the rest without it, if any nodes remain.
    Exclude,
}
