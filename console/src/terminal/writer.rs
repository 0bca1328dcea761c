//! Terminal output on its own thread, one frame at a time. A terminal that accepts bytes slowly, over ssh, delays only
//! this thread; meanwhile no frame is rendered, and so none is queued.
use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Bytes per write; between two writes the thread checks whether the terminal has been given back.
const CHUNK_BYTES: usize = 4096;

/// The buffer that a frame is rendered into until it is complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame(Arc<Mutex<Vec<u8>>>);

impl Frame {
    /// Takes the bytes of the frame and leaves it empty.
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Frame {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Does nothing: a frame is sent as a whole once it is rendered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Shared {
    is_busy: AtomicBool,
    idle: Notify,
    failure: Mutex<Option<io::Error>>,
    bytes: std::sync::atomic::AtomicU64,
}

/// The handle to the writer thread.
#[derive(Debug)]
pub(crate) struct TerminalWriter {
    frames: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
}

impl TerminalWriter {
    /// Starts the thread on standard output. It stops writing as soon as `is_ours` is false.
    ///
    /// # Errors
    /// No file descriptor or thread is available.
    pub(crate) fn start(is_ours: &'static AtomicBool) -> io::Result<Self> {
        // Not the locked `Stdout` of std: restoring the terminal must not wait for a write that hangs.
        let terminal = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Self::on(terminal, is_ours)
    }

    fn on(terminal: impl Write + Send + 'static, is_ours: &'static AtomicBool) -> io::Result<Self> {
        let (frames, waiting) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let other = Arc::clone(&shared);
        thread::Builder::new().name("screen".to_owned()).spawn(move || write(&waiting, terminal, is_ours, &other))?;
        Ok(Self { frames, shared })
    }

    /// Whether the last frame has been written to the terminal.
    pub(crate) fn is_idle(&self) -> bool {
        !self.shared.is_busy.load(Ordering::Acquire)
    }

    /// Waits until the last frame has been written to the terminal.
    pub(crate) async fn idle(&self) {
        while !self.is_idle() {
            self.shared.idle.notified().await;
        }
    }

    /// As [`Self::idle`] without a runtime, for at most `most`. Returns whether the frame has been written.
    pub(crate) fn wait_idle(&self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        while !self.is_idle() && Instant::now() < deadline {
            thread::park_timeout(Duration::from_millis(2));
        }
        self.is_idle()
    }

    /// Sends a frame's bytes. Call it only while idle.
    ///
    /// # Errors
    /// An earlier frame could not be written.
    pub(crate) fn send(&self, frame: &Frame) -> io::Result<()> {
        if let Some(error) = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let bytes = frame.take();
        if bytes.is_empty() {
            return Ok(());
        }
        self.shared.is_busy.store(true, Ordering::Release);
        self.frames.try_send(bytes).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

fn write(frames: &Receiver<Vec<u8>>, mut terminal: impl Write, is_ours: &AtomicBool, shared: &Shared) {
    while let Ok(frame) = frames.recv() {
        for chunk in frame.chunks(CHUNK_BYTES) {
            if !is_ours.load(Ordering::SeqCst) {
                break;
            }
            if let Err(error) = terminal.write_all(chunk) {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                break;
            }
            shared.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        shared.is_busy.store(false, Ordering::Release);
        shared.idle.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, mpsc};

    use super::*;

    /// A terminal that accepts a chunk only when the test permits it.
    struct Slow(Arc<(Mutex<usize>, Condvar)>, mpsc::Sender<usize>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (room, changed) = &*self.0;
            let mut room = room.lock().expect("no panic while locked");
            while *room == 0 {
                room = changed.wait(room).expect("no panic while locked");
            }
            *room -= 1;
            self.1.send(bytes.len()).expect("test receives");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pending_frame_is_reported_and_the_next_one_follows() {
        static OURS: AtomicBool = AtomicBool::new(true);
        let (sender, written) = mpsc::channel();
        let room = Arc::new((Mutex::new(1), Condvar::new()));
        let writer = TerminalWriter::on(Slow(Arc::clone(&room), sender), &OURS).expect("a thread");
        let mut frame = Frame::default();
        assert!(writer.is_idle());
        frame.write_all(&[b'x'; CHUNK_BYTES + 10]).expect("writing to memory succeeds");
        writer.send(&frame).expect("no earlier error");
        assert_eq!(written.recv().expect("a chunk"), CHUNK_BYTES);
        assert!(!writer.is_idle() && !writer.wait_idle(Duration::from_millis(1)));
        *room.0.lock().expect("no panic while locked") += 2;
        room.1.notify_all();
        assert_eq!(written.recv().expect("the rest"), 10);
        assert!(writer.wait_idle(Duration::from_secs(10)));
        frame.write_all(b"next").expect("writing to memory succeeds");
        writer.send(&frame).expect("no earlier error");
        assert_eq!(written.recv().expect("the next frame"), 4);
        assert!(writer.wait_idle(Duration::from_secs(10)));
        assert_eq!(writer.bytes(), CHUNK_BYTES as u64 + 14);
        writer.send(&frame).expect("no earlier error");
        assert!(writer.is_idle(), "an unchanged frame has no bytes");
    }
}
