//! Positions of a subscription in the engine's records.

/// Positions up to which a subscription has read the engine's records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursors {
    pub(super) all_reduces: u64,
    pub(super) hops: u64,
}
