//! The threads that write and read the files of a rank. They end when the rank drops its side of the queues.
use std::{
    io::{self, ErrorKind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use common::limits::SLOTS_MAX;
use engine::kv_store::{
    Name,
    port::{Disk, Files, Found, Read, Write},
};

use super::folder::KvFolder;

/// Bytes that can be written at once, and bytes a second in the long run: 100 TB in nine months at the worst, where
/// nothing but new prompts arrives day and night. A chat writes a hundredth of that.
const BURST_BYTES: f64 = (2u64 << 30) as f64;
const BYTES_PER_SECOND: f64 = (4u64 << 20) as f64;
/// Nothing is written for this long after a disk was full or failed.
const PAUSE: Duration = Duration::from_secs(60);
/// Files that are read ahead of the rank.
const READ_AHEAD: usize = 4;

impl Files for KvFolder {
    fn has(&self, name: Name) -> bool {
        Self::has(self, name)
    }
}

/// Starts the threads of a rank that stores in this folder.
///
/// # Errors
/// No thread can be started.
pub fn start(folder: &Arc<KvFolder>) -> io::Result<Disk> {
    let (writes, to_write) = channel();
    let (reads, to_read) = sync_channel(usize::from(SLOTS_MAX));
    let (found, read) = sync_channel(READ_AHEAD);
    let waiting = Arc::new(AtomicUsize::new(0));
    let (into, count) = (Arc::clone(folder), Arc::clone(&waiting));
    thread::Builder::new().name("kv-write".into()).spawn(move || write_all(&into, &to_write, &count))?;
    let from = Arc::clone(folder);
    thread::Builder::new().name("kv-read".into()).spawn(move || read_all(&from, &to_read, &found))?;
    let files: Arc<dyn Files> = folder.clone();
    Ok(Disk { files, writes, waiting, reads, found: read })
}

/// Writes blocks and states, at a bounded rate.
fn write_all(folder: &KvFolder, writes: &Receiver<Write>, waiting: &AtomicUsize) {
    let (mut room, mut begin, mut paused): (f64, Instant, Option<Instant>) = (BURST_BYTES, Instant::now(), None);
    for Write { label, payload } in writes {
        let bytes = payload.len();
        room = (room + begin.elapsed().as_secs_f64() * BYTES_PER_SECOND).min(BURST_BYTES);
        begin = Instant::now();
        if room < bytes as f64 {
            thread::sleep(Duration::from_secs_f64((bytes as f64 - room) / BYTES_PER_SECOND));
        }
        room -= bytes as f64;
        if paused.is_none_or(|since| since.elapsed() > PAUSE) {
            paused = None;
            if let Err(error) = folder.write(&label, &payload) {
                tracing::warn!("cannot store keys and values, trying again in {} s: {error}", PAUSE.as_secs());
                paused = Some(Instant::now());
                if error.kind() == ErrorKind::StorageFull {
                    folder.shrink();
                }
            }
        }
        waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Reads files up to the first missing one.
fn read_all(folder: &KvFolder, reads: &Receiver<Read>, found: &SyncSender<Found>) {
    for Read { load, labels, is_ended } in reads {
        let mut labels = labels.iter();
        while let Some(label) = labels.next().filter(|_| !is_ended.load(Ordering::Relaxed)) {
            let was_there = folder.has(label.name());
            let Some(stored) = folder.read(label) else {
                // Where one is damaged, others may be, and must not keep the computed blocks from being stored.
                labels.filter(|_| was_there).for_each(|label| drop(folder.read(label)));
                break;
            };
            if found.send(Found { load, stored: Some((label.kind, stored)) }).is_err() {
                return;
            }
        }
        if found.send(Found { load, stored: None }).is_err() {
            return;
        }
    }
}
