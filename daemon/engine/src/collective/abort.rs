//! Ends an engine's waits from another thread: a flag, and an eventfd that wakes a poll. Shows watchers whether the
//! engine has work and proceeds. Progress is counted in pieces that even a slow node finishes within a second, not in
//! layers: of a large prompt or behind a long context, a layer may take longer than watchers wait.
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use kernels::PoolProgress;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::clocks::Clocks;

/// Counts finished pieces of an engine's work that its pool of threads does not count: collectives, reads from a file,
/// waits of a paced model, turns in which the head waits for keys and values. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct WorkCounter(Arc<AtomicU64>);

impl WorkCounter {
    /// Counts a finished piece.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// State shared between an engine and its watchers.
#[derive(Debug)]
pub struct Abort {
    raised: AtomicBool,
    wake: EventFd,
    work: WorkCounter,
    threads: OnceLock<PoolProgress>,
    busy: AtomicBool,
    waiting: AtomicBool,
    clocks: Clocks,
}

impl Abort {
    /// Creates an unraised flag.
    ///
    /// # Errors
    /// The system cannot create an eventfd.
    pub fn new() -> nix::Result<Self> {
        Ok(Self {
            raised: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            work: WorkCounter::default(),
            threads: OnceLock::new(),
            busy: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            clocks: Clocks::default(),
        })
    }

    /// Aborts every present and future wait.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        // Fails only if the counter is full, and then the poll is awake already.
        let _ = self.wake.write(1);
    }

    /// Whether waits are to be aborted.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// The descriptor that becomes readable when the flag is raised.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Counts one finished piece of work.
    pub fn advance(&self) {
        self.work.advance();
    }

    /// The counter of finished pieces, for those that do them.
    pub fn work(&self) -> &WorkCounter {
        &self.work
    }

    /// From now on, what a pool of threads computes is progress, too; only the first pool counts.
    pub fn watch(&self, threads: PoolProgress) {
        let _ = self.threads.set(threads);
    }

    /// A number that changes with every piece of work.
    pub fn progress(&self) -> u64 {
        let computed = self.threads.get().map_or(0, PoolProgress::number);
        self.work.0.load(Ordering::Relaxed).wrapping_add(computed)
    }

    /// Sets whether the engine has work.
    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Whether the engine has work.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// The clocks of the other ranks relative to this one, as measured by heartbeats.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Sets whether the engine waits for another rank.
    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Whether the engine waits for another rank.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use kernels::{Pool, PoolOptions};

    use super::*;

    #[test]
    fn reads_and_pieces_of_products_are_progress() {
        let abort = Abort::new().expect("a descriptor");
        let reader = abort.work().clone();
        reader.advance();
        abort.advance();
        assert_eq!(abort.progress(), 2);
        let pool = Pool::new(PoolOptions { threads: 2, cores: Vec::new(), spin: false });
        let pool = pool.expect("threads can be started");
        abort.watch(pool.progress());
        let before = abort.progress();
        pool.chunks(&mut [0_u8; 8], 1, |_, _| ());
        assert_ne!(abort.progress(), before);
    }
}
