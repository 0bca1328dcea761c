//! What a pool's caller spends on the other threads; read by the accounting of a rank.
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// What the caller's thread spent on the others, and not on work: waking them, and waiting for the last of them.
#[derive(Debug, Default)]
pub struct PoolClock(AtomicU64);

impl PoolClock {
    /// Nanoseconds since the pool was made.
    pub fn nanoseconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, begun: Instant) {
        // The caller alone writes it: no read-modify-write is needed.
        let sum = self.nanoseconds() + begun.elapsed().as_nanos() as u64;
        self.0.store(sum, Ordering::Relaxed);
    }
}
