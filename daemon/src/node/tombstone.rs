//! What a node remembers of an unloaded topology.
use common::ids::{Epoch, TopologyHash};

/// The topology that was last unloaded, until another one is committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tombstone {
    /// The topology that the unload named.
    pub(super) named: (Epoch, TopologyHash),
    /// The latest topology that it ended: `named`, or one that a vote had chosen to follow it. Only this one is on the
    /// disk: the record of votes keeps earlier ones away.
    pub(super) latest: (Epoch, TopologyHash),
}

impl Tombstone {
    /// Of a topology that nothing followed.
    pub(super) fn of(named: (Epoch, TopologyHash)) -> Self {
        Self { named, latest: named }
    }
}
