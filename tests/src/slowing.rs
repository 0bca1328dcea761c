//! Slows a process down by stopping it repeatedly for a moment.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Slows a process down until it is dropped.
#[derive(Debug)]
pub struct Slowed {
    end: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Slowed {
    /// Stops the process for `stopped_ms` of every `of_ms` milliseconds.
    pub fn begin(pid: Pid, stopped_ms: u64, of_ms: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&end);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Acquire) {
                for (signal, pause) in [(Signal::SIGSTOP, stopped_ms), (Signal::SIGCONT, of_ms - stopped_ms)] {
                    if kill(pid, signal).is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(pause));
                }
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
