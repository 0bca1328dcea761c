//! Progress of an assignment, as plain values.
use common::{fault::Fault, ids::Epoch};
use serde::{Deserialize, Serialize};
use telemetry::LoadProgress;
use topology::Topology;

/// Steps of an assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AssignEvent {
    /// A node loads its shard.
    Loading {
        /// Index of the node.
        node: usize,
        /// Progress of the load.
        progress: LoadProgress,
    },
    /// All nodes are prepared and are committing.
    Committing,
    /// The topology runs.
    Running {
        /// Its epoch.
        epoch: Epoch,
        /// The running topology.
        topology: Box<Topology>,
        /// Whether it was already running.
        reused: bool,
    },
    /// The assignment failed and was aborted.
    Failed(Fault),
    /// Answers pause: a node unloads its shard before it loads the next one, because its memory cannot hold both.
    Pauses {
        /// Name of the node.
        node: String,
        /// Estimated time to read the next shard; `None` if the node has not measured its disk.
        seconds: Option<u32>,
    },
}

impl AssignEvent {
    /// The pause as a sentence, if this is one.
    pub fn pause(&self) -> Option<String> {
        let Self::Pauses { node, seconds } = self else { return None };
        let long = seconds.map_or_else(String::new, |seconds| format!(" for about {} s", seconds.max(1)));
        Some(format!(
            "answers pause{long}: {node} cannot hold its current and its next shard in memory at the same time"
        ))
    }
}
