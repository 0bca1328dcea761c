//! Stored blocks and states: one file each, found by name and part of the model, bounded in bytes and number; in a folder
//! on the disk, or in memory. All ranks of this machine that serve share it, one after another, and other nodes keep
//! copies of their files in it.
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    ops::Range,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use common::{limits::KV_BLOCK_LENGTH, units::Bytes};
use engine::kv_store::{
    Name, Part,
    label::{Kind, Label, Stored},
};
use protocol::kv::{KV_FILE_BYTES_MAX, KV_FILES_MAX, KvList};
use smallvec::SmallVec;
use telemetry::{StoreCleared, StoreUse};

use super::index::{Entry, FileKey, Index};
use crate::health::memory;

/// End of the name of a file that is being written.
const PART: &str = ".part";
/// Most bytes of a file: three times the largest state of known models.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Where the files are.
#[derive(Debug)]
enum Place {
    Disk(PathBuf),
    Memory(Mutex<HashMap<FileKey, Arc<Vec<u8>>>>),
}

/// Stored blocks and states.
#[derive(Debug)]
pub struct KvFolder {
    place: Place,
    bytes_max: u64,
    index: Mutex<Index>,
    counts: FileCounts,
    /// Number of files whose writing has begun.
    begun: AtomicU64,
}

/// Use since the folder was opened.
#[derive(Debug, Default)]
struct FileCounts {
    hits: AtomicU64,
    blocks_read: AtomicU64,
    blocks_written: AtomicU64,
    refused: AtomicU64,
}

impl KvFolder {
    /// An empty store in memory.
    pub fn in_memory(bytes_max: u64) -> Self {
        Self {
            place: Place::Memory(Mutex::default()),
            bytes_max,
            index: Mutex::default(),
            counts: FileCounts::default(),
            begun: AtomicU64::default(),
        }
    }

    /// Opens the folder, creates it if needed, and finds its files; those beyond `bytes_max` bytes are deleted.
    ///
    /// # Errors
    /// It cannot be created or listed.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let place = Place::Disk(path.into());
        let folder = Self { place, ..Self::in_memory(bytes_max) };
        let mut found: Vec<(SystemTime, Name, Part, Name, u64)> = Vec::new();
        for file in fs::read_dir(path)? {
            let file = file?;
            let Some(parsed) = OwnName::parse(&file.file_name().to_string_lossy()) else { continue };
            match (parsed, file.metadata()) {
                (OwnName::Whole(name, part, needs), Ok(data)) if data.is_file() => {
                    found.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), name, part, needs, data.len()));
                }
                (OwnName::Useless, _) => drop(fs::remove_file(file.path())),
                _ => {}
            }
        }
        found.sort_unstable();
        for (_, name, part, needs, bytes) in found {
            let mut index = folder.index();
            let removed = index.make_room(bytes, bytes_max);
            match index.number(&part) {
                Some(number) => index.insert((name, number), needs, bytes),
                None => drop(fs::remove_file(path.join(file_name(name, &part, needs)))),
            }
            drop(index);
            folder.delete_all_of(removed);
        }
        let removed = folder.index().make_room(0, bytes_max);
        folder.delete_all_of(removed);
        Ok(folder)
    }

    /// Deletes a folder that an earlier daemon filled, if there is one.
    ///
    /// # Errors
    /// It exists and cannot be deleted.
    pub fn delete_all(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(data) if data.is_dir() => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(()),
        }
        Self::open(path, u64::MAX)?.clear()?;
        // A folder with files of others stays.
        drop(fs::remove_dir(path));
        Ok(())
    }

    /// Deletes everything in it, also files that are being written.
    ///
    /// # Errors
    /// Some files cannot be deleted: they stay stored.
    pub fn clear(&self) -> io::Result<StoreCleared> {
        let before = self.index().clear();
        let (mut deleted, mut failed) = (StoreCleared::default(), None);
        for (key, entry) in before {
            match self.remove_file(key, entry) {
                Ok(()) => {
                    deleted.files += 1;
                    deleted.bytes.0 += entry.bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.index().insert(key, entry.needs, entry.bytes);
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(deleted), Err)
    }

    /// Size and use.
    pub fn statistics(&self) -> StoreUse {
        let (bytes, files) = self.usage();
        let FileCounts { hits, blocks_read, blocks_written, refused } = &self.counts;
        let tokens = |blocks: &AtomicU64| blocks.load(Relaxed) * KV_BLOCK_LENGTH as u64;
        StoreUse {
            in_memory: !self.is_on_disk(),
            bytes: Bytes(bytes),
            bytes_max: Bytes(self.bytes_max),
            files: files as u32,
            hits: hits.load(Relaxed),
            tokens_read: tokens(blocks_read),
            tokens_written: tokens(blocks_written),
            files_refused: refused.load(Relaxed),
            ..StoreUse::default()
        }
    }

    /// Counts a prompt of which something was read.
    pub fn count_hit(&self) {
        self.counts.hits.fetch_add(1, Relaxed);
    }

    /// Bytes and number of the files.
    pub fn usage(&self) -> (u64, usize) {
        self.index().usage()
    }

    /// Whether it is on a disk, which wears out.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.place, Place::Disk(_))
    }

    /// Size of the file with this part of a block or state, if it has one.
    pub fn size(&self, name: Name, part: &Part) -> Option<u64> {
        self.index().find(name, part).map(|(_, entry)| entry.bytes)
    }

    /// The parts of a block or state that it has.
    pub fn parts(&self, name: Name) -> SmallVec<[Part; 2]> {
        self.index().parts(name)
    }

    /// The most recently used files that are not too large for another node.
    pub fn list(&self) -> KvList {
        let index = self.index();
        let parts = index.all_parts().iter().map(Part::to_string).collect();
        let latest = index.latest().filter(|(_, entry)| entry.bytes <= KV_FILE_BYTES_MAX as u64).take(KV_FILES_MAX);
        KvList { parts, files: latest.map(|((name, part), _)| (name.0, part)).collect() }
    }

    /// Stores a file, unless it is there. The oldest files make room for it.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it stays.
    pub fn write(&self, label: &Label, part: &Part, file: &Arc<Vec<u8>>) -> io::Result<()> {
        let (name, needs, bytes) = (label.name(), label.needs(), file.len() as u64);
        let mut index = self.index();
        let Some(number) = index.number(part).filter(|_| bytes <= self.bytes_max.min(FILE_BYTES_MAX)) else {
            return Ok(());
        };
        // In memory, it leaves free as much as it may use.
        if !self.is_on_disk() && memory::available().0 < self.bytes_max {
            drop(index);
            self.shrink();
            return Ok(());
        }
        let key = (name, number);
        if index.has(key) {
            return Ok(());
        }
        let (cleared, removed) = (index.cleared, index.make_room(bytes, self.bytes_max));
        drop(index);
        self.delete_all_of(removed);
        // The engine asks for names: nothing waits for the disk while the index is locked.
        self.write_file(key, needs, file)?;
        let mut index = self.index();
        index.insert(key, needs, bytes);
        if index.cleared != cleared {
            let entry = index.remove(key);
            drop(index);
            entry.into_iter().for_each(|entry| self.delete(key, entry));
            return Ok(());
        }
        self.counts.blocks_written.fetch_add(u64::from(label.kind == Kind::Block), Relaxed);
        Ok(())
    }

    /// Deletes the least recently used eighth. For a disk that is full.
    pub fn shrink(&self) {
        let mut index = self.index();
        let bytes = index.usage().0;
        let removed = index.make_room(0, bytes - bytes / 8);
        drop(index);
        self.delete_all_of(removed);
    }

    /// Reads a file that matches the label exactly; `part` is that of the label. A damaged or foreign one is deleted.
    pub fn read(&self, label: &Label, part: &Part) -> Option<Stored> {
        let name = label.name();
        let (key, entry) = self.index().find(name, part)?;
        let reason = match self.read_file(key, entry) {
            Ok(file) => {
                if let Some(stored) = Stored::check(file, label) {
                    self.index().touch(key);
                    self.counts.blocks_read.fetch_add(u64::from(label.kind == Kind::Block), Relaxed);
                    return Some(stored);
                }
                "they are damaged".to_owned()
            }
            Err(error) => error.to_string(),
        };
        // A file that was deleted meanwhile is not a damaged one.
        if self.index().remove(key).is_some() {
            tracing::warn!("cannot use the stored keys and values {name}, which are computed again: {reason}");
            self.counts.refused.fetch_add(1, Relaxed);
        }
        self.delete(key, entry);
        None
    }

    /// For another node, the size of a file and its bytes from `offset` as they are, at most `most`. `None` if it is
    /// missing, unreadable or too large for another node.
    pub fn piece(&self, name: Name, part: &Part, offset: usize, most: usize) -> Option<(usize, Vec<u8>)> {
        let (key, entry) = self.index().find(name, part)?;
        let size = usize::try_from(entry.bytes).ok().filter(|size| *size <= KV_FILE_BYTES_MAX)?;
        let begin = offset.min(size);
        let bytes = self.read_range(key, entry, begin..size.min(begin.saturating_add(most)));
        Some((size, bytes.ok()?))
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    /// Path of a file on the disk.
    fn path(&self, folder: &Path, key: FileKey, needs: Name) -> PathBuf {
        let index = self.index();
        folder.join(file_name(key.0, &index.all_parts()[usize::from(key.1)], needs))
    }

    fn write_file(&self, key: FileKey, needs: Name, file: &Arc<Vec<u8>>) -> io::Result<()> {
        let folder = match &self.place {
            Place::Disk(folder) => folder,
            Place::Memory(files) => {
                lock(files).insert(key, Arc::clone(file));
                return Ok(());
            }
        };
        let unfinished = folder.join(self.unfinished(key.0));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
        let written = written.and_then(|mut place| place.write_all(file));
        let placed = written.and_then(|()| fs::rename(&unfinished, self.path(folder, key, needs)));
        if placed.is_err() {
            drop(fs::remove_file(&unfinished));
        }
        placed
    }

    /// A name for a file that is being written, used once: this node's rank and other nodes may write the same file at
    /// the same time. Opening the folder deletes those of earlier daemons.
    fn unfinished(&self, name: Name) -> String {
        format!("{name}-{}-{}{PART}", std::process::id(), self.begun.fetch_add(1, Relaxed))
    }

    fn read_file(&self, key: FileKey, entry: Entry) -> io::Result<Arc<Vec<u8>>> {
        let folder = match &self.place {
            Place::Disk(folder) => folder,
            Place::Memory(files) => return lock(files).get(&key).cloned().ok_or(io::ErrorKind::NotFound.into()),
        };
        let file = File::open(self.path(folder, key, entry.needs))?;
        // One byte more than expected shows a longer file.
        let most = entry.bytes.min(FILE_BYTES_MAX) + 1;
        let mut bytes = Vec::with_capacity(most as usize);
        (&file).take(most).read_to_end(&mut bytes)?;
        // The order survives a restart, if the file system takes the time.
        drop(file.set_modified(SystemTime::now()));
        Ok(Arc::new(bytes))
    }

    /// Reads a part of a file. Its modification time stays: use by another node is not counted in the index, either.
    fn read_range(&self, key: FileKey, entry: Entry, range: Range<usize>) -> io::Result<Vec<u8>> {
        let folder = match &self.place {
            Place::Disk(folder) => folder,
            Place::Memory(files) => {
                let file = lock(files).get(&key).cloned().ok_or(io::ErrorKind::NotFound)?;
                return Ok(file.get(range).unwrap_or_default().to_vec());
            }
        };
        let mut bytes = vec![0; range.len()];
        File::open(self.path(folder, key, entry.needs))?.read_exact_at(&mut bytes, range.start as u64)?;
        Ok(bytes)
    }

    fn remove_file(&self, key: FileKey, entry: Entry) -> io::Result<()> {
        match &self.place {
            Place::Disk(folder) => fs::remove_file(self.path(folder, key, entry.needs)),
            Place::Memory(files) => lock(files).remove(&key).map(drop).ok_or(io::ErrorKind::NotFound.into()),
        }
    }

    fn delete(&self, key: FileKey, entry: Entry) {
        if let Err(error) = self.remove_file(key, entry)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot delete the stored keys and values {}: {error}", key.0);
        }
    }

    fn delete_all_of(&self, removed: Vec<(FileKey, Entry)>) {
        removed.into_iter().for_each(|(key, entry)| self.delete(key, entry));
    }
}

/// The meaning of a file name of this store.
enum OwnName {
    /// Name, part, and the name of what it needs.
    Whole(Name, Part, Name),
    /// A file that is being written, or of an earlier format.
    Useless,
}

impl OwnName {
    /// `None` for the file of another program.
    fn parse(file: &str) -> Option<Self> {
        let is_unfinished = file.ends_with(PART);
        let mut words = file.strip_suffix(PART).unwrap_or(file).splitn(3, '-');
        let (name, part, needs) = (words.next()?.parse().ok()?, words.next(), words.next());
        if is_unfinished {
            return Some(Self::Useless);
        }
        match (part?, needs) {
            (needs, None) => needs.parse::<Name>().ok().map(|_| Self::Useless),
            (part, Some(needs)) => Some(Self::Whole(name, part.parse().ok()?, needs.parse().ok()?)),
        }
    }
}

fn file_name(name: Name, part: &Part, needs: Name) -> String {
    format!("{name}-{part}-{needs}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
