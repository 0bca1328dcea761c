//! The threads that write, copy and read the files of a rank. They end when the rank drops its side of the queues.
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
    Name, Part,
    label::{Kind, Label, Stored},
    port::{Disk, Files, Found, Read, Write},
};
use protocol::kv::KV_FILE_BYTES_MAX;

use super::{folder::KvFolder, peers::KvPeers};

/// Bytes that can be written at once to a disk, and bytes a second in the long run: 100 TB in nine months at the worst,
/// where nothing but new prompts arrives day and night. A chat writes a hundredth of that.
const BURST_BYTES: f64 = (2u64 << 30) as f64;
const BYTES_PER_SECOND: f64 = (4u64 << 20) as f64;
/// Nothing is written for this long after a disk was full or failed.
const PAUSE: Duration = Duration::from_secs(60);
/// Files that are read ahead of the rank, and files that wait to be copied to another node.
const AHEAD: usize = 4;

/// The files of a rank: its own part of blocks and states, here and on other nodes.
#[derive(Clone, Debug)]
pub struct RankFiles {
    folder: Arc<KvFolder>,
    part: Part,
    /// `None`: there are no other nodes.
    peers: Option<Arc<KvPeers>>,
}

impl Files for RankFiles {
    fn has(&self, name: Name) -> bool {
        let Some(size) = self.folder.size(name, &self.part) else { return false };
        // Files that are too large for the network are kept here only.
        size > KV_FILE_BYTES_MAX as u64 || self.peers.as_ref().is_none_or(|peers| peers.is_copied(name, &self.part))
    }

    fn finds(&self, name: Name, kind: Kind) -> bool {
        !self.sources(name, kind).is_empty()
    }
}

/// A file that can be read: its part, and the number of the node that has it, if not this one.
type Source = (Option<usize>, Part);

impl RankFiles {
    /// The files of a rank with this part of the model.
    pub fn new(folder: Arc<KvFolder>, part: Part, peers: Option<Arc<KvPeers>>) -> Self {
        Self { folder, part, peers }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self) -> io::Result<Disk> {
        let (writes, to_write) = channel();
        let (reads, to_read) = sync_channel(usize::from(SLOTS_MAX));
        let (found, read) = sync_channel(AHEAD);
        let (copies, to_copy) = sync_channel(AHEAD);
        let waiting = Arc::new(AtomicUsize::new(0));
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name.into()).spawn(work);
        let (files, count) = (self.clone(), Arc::clone(&waiting));
        spawn("kv-write", Box::new(move || files.write_all(&to_write, &copies, &count)))?;
        let files = self.clone();
        spawn("kv-copy", Box::new(move || files.copy_all(&to_copy)))?;
        let files = self.clone();
        spawn("kv-read", Box::new(move || files.read_all(&to_read, &found)))?;
        Ok(Disk { files: Arc::new(self), writes, waiting, reads, found: read })
    }

    /// Files that together have this rank's part of a block or state; none if something is missing.
    fn sources(&self, name: Name, kind: Kind) -> Vec<Source> {
        let mut sources: Vec<Source> = self.folder.parts(name).into_iter().map(|part| (None, part)).collect();
        let is_here = sources.iter().any(|(_, part)| *part == self.part);
        let peers = self.peers.iter().filter(|_| !is_here).flat_map(|peers| peers.parts(name));
        sources.extend(peers.map(|(peer, part)| (Some(peer), part)));
        let parts: Vec<&Part> = sources.iter().map(|(_, part)| part).collect();
        let used = self.part.covered_by(kind, &parts).unwrap_or_default();
        used.into_iter().map(|index| sources[index].clone()).collect()
    }

    /// Writes blocks and states, to a disk at a bounded rate, and passes them on to be copied.
    fn write_all(&self, writes: &Receiver<Write>, copies: &SyncSender<(Name, Arc<Vec<u8>>)>, waiting: &AtomicUsize) {
        let (mut room, mut begin, mut paused): (f64, Instant, Option<Instant>) = (BURST_BYTES, Instant::now(), None);
        for Write { label, payload } in writes {
            let bytes = payload.len();
            if self.folder.is_on_disk() {
                room = (room + begin.elapsed().as_secs_f64() * BYTES_PER_SECOND).min(BURST_BYTES) - bytes as f64;
                begin = Instant::now();
                thread::sleep(Duration::from_secs_f64((-room).max(0.0) / BYTES_PER_SECOND));
            }
            let file = Arc::new([&label.header(&payload)[..], &payload].concat());
            drop(payload);
            if paused.is_none_or(|since| since.elapsed() > PAUSE) {
                paused = None;
                if let Err(error) = self.folder.write(&label, &self.part, &file) {
                    tracing::warn!("cannot store keys and values, trying again in {} s: {error}", PAUSE.as_secs());
                    paused = Some(Instant::now());
                    if error.kind() == ErrorKind::StorageFull {
                        self.folder.shrink();
                    }
                }
            }
            // The thread that copies ends with this one.
            drop(copies.send((label.name(), file)));
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Copies files to the buddy.
    fn copy_all(&self, copies: &Receiver<(Name, Arc<Vec<u8>>)>) {
        let mut is_logged = false;
        for (name, file) in copies {
            let Some(peers) = &self.peers else { continue };
            let Some(reason) = why_not_copied(file.len()) else {
                peers.copy(name, &self.part, &file);
                continue;
            };
            // It is the same for all states of this rank.
            if !std::mem::replace(&mut is_logged, true) {
                tracing::info!("{reason}");
            }
        }
    }

    /// Reads files up to the first missing one.
    fn read_all(&self, reads: &Receiver<Read>, found: &SyncSender<Found>) {
        for Read { load, labels, is_ended } in reads {
            let (mut labels, mut is_hit) = (labels.iter(), false);
            while let Some(label) = labels.next().filter(|_| !is_ended.load(Ordering::Relaxed)) {
                let was_there = self.finds(label.name(), label.kind);
                let Some(files) = self.read(label) else {
                    // Where one is damaged, others may be, and must not keep the computed blocks from being stored.
                    labels.filter(|_| was_there).for_each(|label| drop(self.folder.read(label, &self.part)));
                    break;
                };
                if !std::mem::replace(&mut is_hit, true) {
                    self.folder.count_hit();
                }
                if found.send(Found { load, stored: Some((label.kind, files)) }).is_err() {
                    return;
                }
            }
            if found.send(Found { load, stored: None }).is_err() {
                return;
            }
        }
    }

    /// Reads a block or state: this rank's file, or those of others that together have its part.
    fn read(&self, label: &Label) -> Option<Vec<Stored>> {
        // What cannot be read is forgotten, and there may be other copies.
        for _ in 0..AHEAD {
            let sources = self.sources(label.name(), label.kind);
            let files: Option<Vec<Stored>> = sources.iter().map(|source| self.read_source(label, source)).collect();
            if sources.is_empty() || files.is_some() {
                return files.filter(|files| !files.is_empty());
            }
        }
        None
    }

    fn read_source(&self, label: &Label, source: &Source) -> Option<Stored> {
        let (peer, part) = source;
        let label = Label { part: part.hash(), ..*label };
        let Some(peer) = peer else { return self.folder.read(&label, part) };
        let peers = self.peers.as_ref()?;
        let file = peers.fetch(*peer, label.name(), part)?;
        let stored = Stored::check(Arc::new(file), &label);
        if stored.is_none() {
            tracing::warn!("keys and values {} of another node are damaged; they are not used", label.name());
            peers.forget(*peer, label.name(), part);
        }
        stored
    }
}

/// Why a file of this size is not copied to another node; `None` if it is.
fn why_not_copied(bytes: usize) -> Option<String> {
    let [size, most] = [bytes, KV_FILE_BYTES_MAX].map(|bytes| bytes.div_ceil(1 << 20));
    (bytes > KV_FILE_BYTES_MAX).then(|| {
        format!(
            "the state of a sequence takes {size} MiB here, at most {most} MiB are copied to another node: if this node is \
             lost, prompts are computed again"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_why_a_state_is_not_copied_names_both_sizes() {
        assert_eq!(why_not_copied(KV_FILE_BYTES_MAX), None);
        let reason = why_not_copied(KV_FILE_BYTES_MAX + 1).expect("it is too large");
        assert!(reason.contains("takes 65 MiB") && reason.contains("at most 64 MiB"), "{reason}");
    }
}
