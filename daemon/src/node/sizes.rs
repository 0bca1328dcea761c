//! The sizes of everything in a node that grows with its use, so that a test can compare them with their bounds.
use common::limits::NODES_MAX;
use telemetry::request::OVER_MAX;
use topology::exclusion::EXCLUSIONS_MAX;

use super::{
    machine::{Node, QUEUE_MAX},
    operate::EXCLUSION_WRITES_MAX,
    quorum::WITNESSED_MAX,
};

/// The size of a queue or a map, and its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundedSize {
    /// What it holds.
    pub what: &'static str,
    /// Number of entries.
    pub count: usize,
    /// Most entries.
    pub most: usize,
}

impl Node {
    /// The sizes of its queues and maps.
    pub fn sizes(&self) -> [BoundedSize; 6] {
        let (running, over) = self.running.as_ref().map_or((0, 0), |running| running.requests.sizes());
        let of = |what, count, most| BoundedSize { what, count, most };
        [
            of("running requests", running, QUEUE_MAX),
            of("finished requests", over, OVER_MAX),
            of("exclusions", self.exclusions.0.len(), EXCLUSIONS_MAX),
            of("exclusions that wait for the disk", self.exclusion_writes.waiting.len(), EXCLUSION_WRITES_MAX),
            of("neighbours", self.neighbours.count(), NODES_MAX),
            of("groups with this witness", self.voter.witnessed.len(), WITNESSED_MAX),
        ]
    }
}
