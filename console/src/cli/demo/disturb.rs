//! What goes wrong in a tour, done to real processes: one that is stopped for half of the time, and texts that keep all of them busy.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shared::protocol::message::Generate;
use tokio::{sync::mpsc::channel, task::JoinHandle as Task};
use tokio_util::sync::CancellationToken;

use crate::client::{generate::generate, session::Session};

/// Of each of these a slowed process runs one and stands still for the other.
const PART: Duration = Duration::from_millis(5);

/// A process that is slowed until this is dropped.
#[derive(Debug)]
pub(super) struct Slowed {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    /// Slows a process.
    pub(super) fn begin(pid: Pid) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Acquire) {
                for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
                    if kill(pid, signal).is_err() {
                        return;
                    }
                    std::thread::sleep(PART);
                }
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // The last signal is the one that lets it run on.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Texts one after the other, until this is dropped.
#[derive(Debug)]
pub(super) struct Load(Task<()>, CancellationToken);

impl Load {
    /// Asks the head again and again; a text that fails ends it.
    pub(super) fn begin(head: Arc<Session>, request: Generate) -> Self {
        let cancel = CancellationToken::new();
        let ended = cancel.clone();
        let task = tokio::spawn(async move {
            while !ended.is_cancelled() && !head.is_broken() {
                let (events, mut received) = channel(64);
                let sessions = [Arc::clone(&head)];
                let reading = async { while received.recv().await.is_some() {} };
                let asking = async {
                    generate(&sessions, request.clone(), &ended, &events).await;
                    drop(events);
                };
                tokio::join!(asking, reading);
            }
        });
        Self(task, cancel)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.1.cancel();
        self.0.abort();
    }
}
