//! What the Models page asks of the client, and its answers, as plain values. Nodes are identified by their index in the
//! dashboard's list.
use common::{fault::Fault, ids::Epoch, units::Bytes};
use planner::search::Goal;
use protocol::models::Step;
use serde::{Deserialize, Serialize};
use topology::Topology;

use super::{fit::Fit, planner_query::PlannerNode};

/// An order about model files.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelOrder {
    /// List the files of these nodes.
    List(Vec<usize>),
    /// Plan all models of the catalogue on these nodes.
    Fit {
        /// The nodes.
        nodes: Vec<PlannerNode>,
        /// The goal by which layouts are ranked.
        goal: Goal,
    },
    /// Put a file of the catalogue on these nodes.
    Pull {
        /// `hf:OWNER/REPO:FILE`.
        source: &'static str,
        /// The nodes.
        nodes: Vec<usize>,
    },
    /// End the transfer; the bytes that have arrived are kept for the next one.
    CancelPull,
    /// Delete a model on these nodes.
    Remove {
        /// Its file name.
        model: String,
        /// The nodes.
        nodes: Vec<usize>,
    },
    /// Unload a topology that runs no requests.
    Unload {
        /// Its epoch.
        epoch: Epoch,
        /// The topology.
        topology: Box<Topology>,
    },
}

impl ModelOrder {
    /// Whether the order changes something on nodes.
    pub fn acts(&self) -> bool {
        !matches!(self, Self::List(_) | Self::Fit { .. } | Self::CancelPull)
    }
}

/// An answer to a [`ModelOrder`] other than `List`, whose answers are events of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModelEvent {
    /// How a model of the catalogue would run.
    Fits {
        /// Its short name.
        name: String,
        /// The planner's answer.
        fit: Fit,
    },
    /// Progress of the transfer on a node.
    Pulling {
        /// Index of the node.
        node: usize,
        /// What it does.
        step: Step,
        /// Bytes that have arrived.
        done: Bytes,
        /// All bytes, if known.
        total: Option<Bytes>,
    },
    /// The transfer ended; the number of files that were transferred.
    Pulled(Result<usize, Fault>),
    /// The transfer was cancelled.
    Cancelled,
    /// A model was deleted on the named nodes.
    Removed {
        /// Its file name.
        model: String,
        /// Names of the nodes that had it.
        answer: Result<Vec<String>, Fault>,
    },
    /// A model was unloaded.
    Unloaded {
        /// Its file name.
        model: String,
        /// Whether the nodes did.
        answer: Result<(), Fault>,
    },
}
