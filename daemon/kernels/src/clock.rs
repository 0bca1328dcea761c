//! Time that a pool's caller spends on the other threads; read by the time accounting of a rank.
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// Time that the caller's thread spent waking the other threads and waiting for the last of them.
#[derive(Debug, Default)]
pub struct PoolClock(AtomicU64);

impl PoolClock {
    /// Nanoseconds since the pool was created.
    pub fn nanoseconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, begun: Instant) {
        // Only the caller writes it, so no read-modify-write is needed.
        let sum = self.nanoseconds() + begun.elapsed().as_nanos() as u64;
        self.0.store(sum, Ordering::Relaxed);
    }
}
