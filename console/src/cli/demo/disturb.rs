//! Disturbances of a tour, applied to real processes: a process that is stopped for half of the time, and requests that
//! keep all nodes busy.
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
use protocol::message::Generate;
use tokio::{sync::mpsc::channel, task::JoinHandle as Task};
use tokio_util::sync::CancellationToken;

use crate::client::{generate::generate, session::Session};

/// A slowed process alternately runs and is stopped for this long. On a busy machine, where every process waits for some
/// milliseconds, shorter stops would hardly slow it.
const PART: Duration = Duration::from_millis(20);

/// Slows a process until dropped.
#[derive(Debug)]
pub(super) struct Slowed {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    /// Starts to slow a process.
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
        // The last signal of the thread is SIGCONT.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends requests one after another until dropped.
#[derive(Debug)]
pub(super) struct Load(Task<()>, CancellationToken);

impl Load {
    /// Sends `request` to the head repeatedly, until the connection breaks.
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
