//! What the rooms of the driver share: settings, identity and the queue of the driver's inputs.
use std::{sync::Arc, time::Instant};

use common::fault::{Fault, FaultKind};
use engine::Variant;
use kernels::Kernels;
use protocol::handshake::Identity;
use tokio::sync::mpsc::Sender;
use tokio_util::task::TaskTracker;

use super::{Input, pacemaker::Pacemaker};
use crate::{config::Config, kv_store::NodeStore};

/// Shared by all rooms; only a reload of the settings changes it.
#[derive(Clone, Debug)]
pub(super) struct DriverContext {
    pub(super) config: Arc<Config>,
    pub(super) identity: Identity,
    pub(super) kernels: &'static Kernels,
    /// The stored keys and values.
    pub(super) kv: Arc<NodeStore>,
    /// Deviations for benchmarks.
    pub(super) variant: Variant,
    /// The driver's inputs.
    pub(super) inputs: Sender<Input>,
    /// The runtime of the heartbeats.
    pub(super) pacemaker: Pacemaker,
    /// A random number that differs from that of the previous start.
    pub(super) instance: u64,
    /// Start of the daemon.
    pub(super) started: Instant,
}

impl DriverContext {
    /// A fault of this node.
    pub(super) fn fault(&self, kind: FaultKind) -> Fault {
        Fault::new(&self.config.name, kind)
    }
}

/// A tracker of tasks that are about to end: a wait ends as soon as there is none.
pub(super) fn ending() -> TaskTracker {
    let tracker = TaskTracker::new();
    tracker.close();
    tracker
}

/// A random number that differs from that of the previous start.
pub(super) fn instance() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // TOML integers are signed.
    RandomState::new().build_hasher().finish() >> 1
}
