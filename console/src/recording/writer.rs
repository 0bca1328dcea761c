//! Writes a session on a separate thread, so that the dashboard never waits for a disk. The queue is bounded;
//! events beyond it are dropped and counted. A full disk ends the recording with a reason, and affects nothing else.
use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Header, RecordingError, line::Encoder};
use crate::update::event::Event;

/// Largest number of queued lines.
const LINES_MAX: usize = 1024;
/// Largest number of queued bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Longest time until a recorded event is written to the file.
const FLUSH: Duration = Duration::from_secs(1);
/// Longest wait for the disk when the recording ends.
const END_WAIT: Duration = Duration::from_secs(2);

/// State shared between the writer thread and the dashboard.
#[derive(Debug, Default)]
struct Progress {
    /// Number of queued bytes.
    waiting: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// A running recording. Dropping it ends it.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    encoder: Encoder,
    lines: Option<SyncSender<Vec<u8>>>,
    done: Receiver<()>,
    progress: Arc<Progress>,
    events: u64,
    lost: u64,
}

impl Recorder {
    /// Starts a recording in a new file that only its owner can read, because it contains prompts.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn create(path: &Path, header: &Header) -> Result<Self, RecordingError> {
        let failed = |reason: io::Error| match reason.kind() {
            io::ErrorKind::AlreadyExists => RecordingError::Exists(path.into()),
            _ => RecordingError::Io { path: path.into(), reason },
        };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        Self::on(path, file, header).map_err(failed)
    }

    /// Starts a recording in an open file.
    pub(super) fn on(path: &Path, mut file: impl Write + Send + 'static, header: &Header) -> io::Result<Self> {
        let mut first = serde_json::to_vec(header)?;
        first.push(b'\n');
        file.write_all(&first)?;
        let (lines, waiting) = sync_channel(LINES_MAX);
        let (ended, done) = sync_channel(1);
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        thread::Builder::new().name("recording".to_owned()).spawn(move || {
            if let Err(reason) = write(&waiting, BufWriter::new(file), &shared) {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_string());
            }
            // The receiver may be gone.
            let _ = ended.try_send(());
        })?;
        let encoder = Encoder::new(header.nodes.len());
        Ok(Self { path: path.into(), encoder, lines: Some(lines), done, progress, events: 0, lost: 0 })
    }

    /// Records that time advanced to `at`, and the event that happened then, if any. Never blocks.
    pub fn record(&mut self, at: Duration, event: Option<&Event>) {
        let Some(lines) = &self.lines else { return };
        let waiting = self.progress.waiting.load(Ordering::Relaxed);
        let line = match self.encoder.line(at, event) {
            Ok(line) if waiting + line.len() as u64 <= BYTES_MAX => line,
            _ => return self.lose(),
        };
        let bytes = line.len() as u64;
        self.progress.waiting.fetch_add(bytes, Ordering::Relaxed);
        match lines.try_send(line) {
            Ok(()) => self.events += u64::from(event.is_some()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.progress.waiting.fetch_sub(bytes, Ordering::Relaxed);
                self.lose();
            }
        }
    }

    /// Why the recording stopped, if it did.
    pub fn failure(&self) -> Option<String> {
        let reason = self.progress.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!("{}: {reason}; recording stopped", self.path.display()))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of recorded events, and of events dropped because the disk was too slow.
    pub fn counts(&self) -> (u64, u64) {
        (self.events, self.lost)
    }

    /// Ends the recording; waits up to [`END_WAIT`] for the disk.
    ///
    /// # Errors
    /// Some events are not in the file.
    pub fn finish(mut self) -> Result<(), String> {
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        if self.lines.take().is_none() {
            return Ok(());
        }
        match self.done.recv_timeout(END_WAIT) {
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{}: the disk is too slow; the recording is incomplete", self.path.display()))
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => self.failure().map_or(Ok(()), Err),
        }
    }

    pub(super) fn lose(&mut self) {
        self.lost += 1;
        self.encoder.lost(1);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Errors are reported by `finish` only.
        let _ = self.end();
    }
}

/// Writes lines until the sender is dropped, and flushes at an interval.
fn write(lines: &Receiver<Vec<u8>>, mut file: BufWriter<impl Write>, progress: &Progress) -> io::Result<()> {
    let mut flush_due = Instant::now() + FLUSH;
    loop {
        match lines.recv_timeout(flush_due.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                progress.waiting.fetch_sub(line.len() as u64, Ordering::Relaxed);
                file.write_all(&line)?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
        if Instant::now() >= flush_due {
            file.flush()?;
            flush_due = Instant::now() + FLUSH;
        }
    }
}
