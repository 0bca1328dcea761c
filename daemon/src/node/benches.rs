//! The bench that runs on a node.
use common::ids::RequestId;

use crate::node::event::{BenchKey, SessionId};

/// A running benchmark.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunningBench {
    pub(super) key: BenchKey,
    pub(super) session: SessionId,
    pub(super) id: RequestId,
    pub(super) by: String,
}

/// The node's benchmark, and the number of the latest one.
#[derive(Debug, Default)]
pub(super) struct Benches {
    pub(super) latest: u64,
    pub(super) running: Option<RunningBench>,
}

impl Benches {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}
