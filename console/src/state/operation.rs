//! What an operator does to nodes: the question before it, how far it is, what is left of it when it stopped.
use std::time::Duration;

use shared::protocol::error::Fault;

use crate::{event::RestartStep, state::editor::Editor};

/// A question that takes all keys until it is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    /// Restart these nodes, one by one?
    Restart {
        /// Places in the list of nodes.
        which: Vec<usize>,
        /// Whether an earlier restart goes on with them.
        continues: bool,
    },
    /// Take this node out, and why?
    Exclude {
        /// Place in the list of nodes.
        node: usize,
        /// The reason as typed so far.
        reason: Editor,
    },
    /// Assign this candidate?
    Assign {
        /// Its key among the candidates.
        candidate: String,
    },
    /// Take this node in again?
    Include {
        /// Place in the list of nodes.
        node: usize,
    },
}

/// A rolling restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Restart {
    /// All nodes of it, in order.
    pub which: Vec<usize>,
    /// How many of them are done.
    pub done: usize,
    /// The node under way, how far it is, and since when.
    pub current: Option<(usize, RestartStep, Duration)>,
    /// Whether it ends before the next node.
    pub stops: bool,
}

/// What is under way, or stopped half-way.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A rolling restart.
    Restart(Restart),
    /// A rolling restart that stopped.
    Paused {
        /// Why; `None`: the operator said so.
        fault: Option<Fault>,
        /// Nodes that were not restarted.
        remaining: Vec<usize>,
    },
    /// A node is taken out, or in.
    Change {
        /// Its place in the list of nodes.
        node: usize,
        /// Whether it is taken out.
        out: bool,
        /// Requests that may finish first.
        requests: u32,
    },
}

impl Operation {
    /// Whether something goes on.
    pub fn is_under_way(&self) -> bool {
        !matches!(self, Self::Paused { .. })
    }
}
