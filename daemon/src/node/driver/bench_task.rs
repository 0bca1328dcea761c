//! A benchmark that runs: its task, what it needs to start, and its end.
use std::time::Duration;

use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{context::DriverContext, running::RunningEngine};
use crate::node::{BenchKey, Node};

/// Deadline for a killed process or a stopped engine to end and free its memory.
pub(super) const GONE: Duration = Duration::from_secs(5);

/// A running benchmark, or one that is being killed.
#[derive(Debug)]
pub(super) struct BenchTask {
    pub(super) key: BenchKey,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl BenchTask {
    /// Wraps a running task that ends when `cancel` is cancelled.
    pub(super) fn new(key: BenchKey, cancel: CancellationToken, task: JoinHandle<()>) -> Self {
        Self { key, cancel, task }
    }

    /// Kills the process.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Waits for the process to end.
    pub(super) async fn gone(self) {
        // A process that cannot be killed hangs in the kernel. The next operation checks the free memory itself.
        let _ = timeout(GONE, self.task).await;
    }
}

/// Facts about this node that a benchmark needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchSources<'a> {
    pub(super) context: &'a DriverContext,
    pub(super) node: &'a Node,
    pub(super) engine: Option<&'a RunningEngine>,
}

/// A benchmark to start.
#[derive(Debug)]
pub(super) struct BenchStart {
    pub(super) key: BenchKey,
    /// The previous benchmark, whose end it awaits.
    pub(super) before: Option<BenchTask>,
}
