//! Ends an engine's waits from another thread: a flag, and an eventfd that wakes a poll.
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::clocks::Clocks;

/// State shared between an engine and its watchers.
#[derive(Debug)]
pub struct Abort {
    raised: AtomicBool,
    wake: EventFd,
    progress: AtomicU64,
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
            progress: AtomicU64::new(0),
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

    /// Counts one finished collective.
    pub fn advance(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Collectives finished so far.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
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
