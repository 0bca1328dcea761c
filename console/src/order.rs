//! What an operator orders to be done to nodes, requests and assignments: plain values that `update` makes and the client performs.

/// An order. Nodes are named by their place in the list of the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// About the rolling restart that the nodes drive among themselves.
    Roll(Roll),
    /// A node takes nothing new, or leaves.
    Out {
        /// Which.
        node: usize,
        /// Why, for whoever looks later.
        reason: String,
        /// How far it goes.
        how: How,
    },
    /// A node that is out, or takes nothing new, is in again.
    In {
        /// Which.
        node: usize,
    },
    /// What is being prepared is forgotten by all nodes.
    AbortAssignment,
    /// A head ends a request, whoever sent it.
    CancelRequest {
        /// The head.
        node: usize,
        /// The request's number there.
        number: u64,
    },
}

/// What becomes of the rolling restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roll {
    /// These nodes are restarted in this order.
    Begin(Vec<usize>),
    /// The node under way is the last for now.
    Pause,
    /// A paused one goes on.
    Resume,
    /// The node under way is the last.
    Abort,
}

/// How far a node is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Nothing new begins on its replica; what runs goes on.
    Cordon,
    /// As [`Self::Cordon`], and it is waited until nothing runs there.
    Drain,
    /// The rest is assigned anew without it, if there is a rest.
    Exclude,
}
