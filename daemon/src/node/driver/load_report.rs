//! The progress of a load, on its way from the thread that loads to the driver.
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use telemetry::LoadProgress;
use tokio::sync::mpsc::Sender;

use super::Input;
use crate::store::DiskProgress;

/// Progress of a load; that of an earlier attempt at the same epoch is ignored.
#[derive(Clone, Copy, Debug)]
pub struct AttemptProgress {
    pub(super) attempt: u64,
    pub(super) progress: LoadProgress,
}

/// Reports the progress of a load: at most ten times a second, and at its end. Without any, it reports nothing: the leader
/// must notice a disk that does not answer.
pub(super) struct LoadReport<'a> {
    attempt: u64,
    inputs: &'a Sender<Input>,
    begun: Instant,
    /// When progress was reported last, after `begun`.
    sent_ms: AtomicU64,
    disk: DiskProgress,
}

impl<'a> LoadReport<'a> {
    /// Of a load that begins.
    pub(super) fn new(attempt: u64, inputs: &'a Sender<Input>) -> Self {
        Self { attempt, inputs, begun: Instant::now(), sent_ms: AtomicU64::new(0), disk: DiskProgress::default() }
    }

    pub(super) fn elapsed_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    pub(super) fn send(&self, progress: LoadProgress) {
        if !self.disk.moves(progress.done.0) {
            return;
        }
        let (now, last) = (self.elapsed_ms(), self.sent_ms.load(Ordering::Relaxed));
        if (now >= last + 100 || progress.done == progress.total)
            && self.sent_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            // If the queue is full, only a progress line is lost.
            let _ = self.inputs.try_send(Input::Loading(AttemptProgress { attempt: self.attempt, progress }));
        }
    }
}
