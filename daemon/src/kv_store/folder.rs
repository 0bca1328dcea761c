//! The folder of stored blocks and states: one file each, found by name, bounded in bytes and number. The least
//! recently used is deleted first, and a block never before those that need it. All ranks of this machine that serve share
//! it, one after another.
use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use engine::kv_store::{
    Name,
    label::{HEADER_BYTES, Label, Stored},
};

/// Most files: their index is kept in memory, about 100 bytes each.
const FILES_MAX: usize = 1 << 16;
/// End of the name of a file that is being written.
const PART: &str = ".part";

/// A file in the folder.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Name of what it is of no use without.
    needs: Name,
    bytes: u64,
    /// Time of its latest use on `Index::clock`.
    used: u64,
}

/// The files by name.
#[derive(Debug, Default)]
struct Index {
    entries: HashMap<Name, Entry>,
    /// As (used, name), the one that was used longest ago first.
    order: BTreeSet<(u64, Name)>,
    bytes: u64,
    clock: u64,
    /// Number of times that everything was deleted.
    cleared: u64,
}

/// Stored blocks and states.
#[derive(Debug)]
pub struct KvFolder {
    path: PathBuf,
    bytes_max: u64,
    index: Mutex<Index>,
}

impl Index {
    /// Marks a file as used now, and what it needs as used after it.
    fn touch(&mut self, name: Name) {
        let mut next = Some(name);
        // A file of a chain that leads back to itself can only be a forgery.
        for _ in 0..=self.entries.len() {
            let Some((name, entry)) = next.and_then(|name| Some((name, self.entries.get_mut(&name)?))) else { return };
            self.clock += 1;
            self.order.remove(&(entry.used, name));
            entry.used = self.clock;
            self.order.insert((entry.used, name));
            next = Some(entry.needs);
        }
    }

    fn insert(&mut self, name: Name, needs: Name, bytes: u64) {
        self.remove(name);
        self.entries.insert(name, Entry { needs, bytes, used: 0 });
        self.bytes += bytes;
        self.touch(name);
    }

    fn remove(&mut self, name: Name) -> Option<Entry> {
        let entry = self.entries.remove(&name)?;
        self.order.remove(&(entry.used, name));
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Removes the least recently used until `bytes` more fit; returns them.
    fn make_room(&mut self, bytes: u64, bytes_max: u64) -> Vec<(Name, Entry)> {
        let mut removed = Vec::new();
        while self.bytes.saturating_add(bytes) > bytes_max || self.entries.len() >= FILES_MAX {
            let Some((_, name)) = self.order.first().copied() else { break };
            removed.extend(self.remove(name).map(|entry| (name, entry)));
        }
        removed
    }
}

impl KvFolder {
    /// Opens the folder, creates it if needed, and finds its files; those beyond `bytes_max` bytes are deleted.
    ///
    /// # Errors
    /// It cannot be created or listed.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = Self { path: path.into(), bytes_max, index: Mutex::default() };
        let mut found: Vec<(SystemTime, Name, Name, u64)> = Vec::new();
        for file in fs::read_dir(path)? {
            let file = file?;
            let Some((name, needs)) = own_name(&file.file_name().to_string_lossy()) else { continue };
            match (needs, file.metadata()) {
                (Some(needs), Ok(data)) if data.is_file() => {
                    found.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), name, needs, data.len()));
                }
                (None, _) => drop(fs::remove_file(file.path())),
                _ => {}
            }
        }
        found.sort_unstable();
        let mut index = folder.index();
        for (_, name, needs, bytes) in found {
            let removed = index.make_room(bytes, bytes_max);
            removed.into_iter().for_each(|(name, entry)| folder.delete(name, entry.needs));
            index.insert(name, needs, bytes);
        }
        let removed = index.make_room(0, bytes_max);
        drop(index);
        removed.into_iter().for_each(|(name, entry)| folder.delete(name, entry.needs));
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
    /// A file cannot be deleted.
    pub fn clear(&self) -> io::Result<()> {
        let mut index = self.index();
        let cleared = index.cleared + 1;
        let before = std::mem::replace(&mut *index, Index { cleared, ..Index::default() });
        drop(index);
        for (name, entry) in before.entries {
            match fs::remove_file(self.place(name, entry.needs)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Bytes and number of the files.
    pub fn usage(&self) -> (u64, usize) {
        let index = self.index();
        (index.bytes, index.entries.len())
    }

    /// Whether it has a file of this name.
    pub fn has(&self, name: Name) -> bool {
        self.index().entries.contains_key(&name)
    }

    /// Writes a file, unless it is there. The oldest files make room for it.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it stays.
    pub fn write(&self, label: &Label, payload: &[u8]) -> io::Result<()> {
        let (name, needs, bytes) = (label.name(), label.needs(), (HEADER_BYTES + payload.len()) as u64);
        let mut index = self.index();
        if index.entries.contains_key(&name) || bytes > self.bytes_max {
            return Ok(());
        }
        let (cleared, removed) = (index.cleared, index.make_room(bytes, self.bytes_max));
        drop(index);
        removed.into_iter().for_each(|(name, entry)| self.delete(name, entry.needs));
        let part = self.path.join(format!("{name}{PART}"));
        let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part);
        let written = written.and_then(|mut file| {
            file.write_all(&label.header(payload))?;
            file.write_all(payload)
        });
        // The engine asks for names: nothing waits for the disk while the index is locked.
        let placed = written.and_then(|()| fs::rename(&part, self.place(name, needs)));
        if placed.is_err() {
            drop(fs::remove_file(&part));
            return placed;
        }
        let mut index = self.index();
        if index.cleared == cleared {
            index.insert(name, needs, bytes);
            return Ok(());
        }
        drop(index);
        self.delete(name, needs);
        Ok(())
    }

    /// Deletes the least recently used eighth. For a disk that is full.
    pub fn shrink(&self) {
        let mut index = self.index();
        let most = index.bytes - index.bytes / 8;
        let removed = index.make_room(0, most);
        drop(index);
        removed.into_iter().for_each(|(name, entry)| self.delete(name, entry.needs));
    }

    /// Reads a file that matches the label exactly. A damaged or foreign one is deleted.
    pub fn read(&self, label: &Label) -> Option<Stored> {
        let (name, needs) = (label.name(), label.needs());
        if !self.has(name) {
            return None;
        }
        let wanted = HEADER_BYTES as u64 + label.length;
        match read_exactly(&self.place(name, needs), wanted) {
            Ok((file, bytes)) => {
                if let Some(stored) = Stored::check(bytes, label) {
                    // The order survives a restart, if the file system takes the time.
                    drop(file.set_modified(SystemTime::now()));
                    self.index().touch(name);
                    return Some(stored);
                }
                tracing::warn!("stored keys and values {name} are damaged; they are computed again");
            }
            Err(error) => tracing::warn!("cannot read the stored keys and values {name}: {error}"),
        }
        self.index().remove(name);
        self.delete(name, needs);
        None
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Nothing panics while it is locked.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, name: Name, needs: Name) -> PathBuf {
        self.path.join(format!("{name}-{needs}"))
    }

    fn delete(&self, name: Name, needs: Name) {
        if let Err(error) = fs::remove_file(self.place(name, needs))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot delete the stored keys and values {name}: {error}");
        }
    }
}

/// The names in the name of a file of this store; a file that is being written has one.
fn own_name(file: &str) -> Option<(Name, Option<Name>)> {
    if let Some(name) = file.strip_suffix(PART) {
        return Some((name.parse().ok()?, None));
    }
    let (name, needs) = file.split_once('-')?;
    Some((name.parse().ok()?, Some(needs.parse().ok()?)))
}

/// Reads a file of exactly so many bytes, of any other at most one byte more.
fn read_exactly(path: &Path, wanted: u64) -> io::Result<(File, Vec<u8>)> {
    let file = File::open(path)?;
    let mut bytes = Vec::with_capacity(wanted as usize + 1);
    (&file).take(wanted + 1).read_to_end(&mut bytes)?;
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use common::limits::KV_BLOCK_LENGTH;
    use engine::kv_store::{Space, label::Kind};

    use super::*;

    const PAYLOAD: [u8; 1000] = [5; 1000];
    const BYTES: u64 = (HEADER_BYTES + PAYLOAD.len()) as u64;

    /// The labels of a text's blocks, whose tokens begin with `first`.
    fn chain(first: u32, blocks: usize) -> Vec<Label> {
        let space = Space::of(&["a model"]);
        let mut before = space.beginning();
        let labels = (0..blocks).map(|block| {
            let tokens = [first + block as u32; KV_BLOCK_LENGTH];
            let label = Label { space, before, kind: Kind::Block, tokens, length: PAYLOAD.len() as u64 };
            before = label.name();
            label
        });
        labels.collect()
    }

    fn held(folder: &KvFolder, labels: &[Label]) -> usize {
        labels.iter().filter(|label| folder.read(label).is_some()).count()
    }

    #[test]
    fn ends_of_the_oldest_texts_are_deleted_first_also_after_a_restart() {
        let place = tempfile::tempdir().expect("a folder can be made");
        let (old, new) = (chain(10, 4), chain(20, 4));
        let folder = KvFolder::open(place.path(), 6 * BYTES).expect("it can be opened");
        old.iter().for_each(|label| folder.write(label, &PAYLOAD).expect("there is room"));
        new[..2].iter().for_each(|label| folder.write(label, &PAYLOAD).expect("there is room"));
        assert_eq!(folder.usage(), (6 * BYTES, 6));
        new[2..].iter().for_each(|label| folder.write(label, &PAYLOAD).expect("there is room"));
        assert!(folder.has(old[1].name()) && !folder.has(old[2].name()), "the end of the old one");
        assert_eq!(held(&folder, &new), 4);
        drop(folder);
        fs::write(place.path().join("other"), "of another program").expect("it can be written");
        fs::write(place.path().join(format!("{}{PART}", old[3].name())), "cut off").expect("it can be written");
        let folder = KvFolder::open(place.path(), 4 * BYTES).expect("it can be opened");
        assert_eq!((folder.usage(), held(&folder, &new), held(&folder, &old)), ((4 * BYTES, 4), 4, 0));
        assert_eq!(fs::read_dir(place.path()).expect("it is there").count(), 5, "those and the other's");
        folder.clear().expect("they can be deleted");
        assert_eq!((folder.usage(), held(&folder, &new)), ((0, 0), 0));
        drop(folder);
        KvFolder::delete_all(place.path()).expect("it can be deleted");
        assert!(place.path().join("other").exists());
    }

    #[test]
    fn damaged_and_foreign_files_are_deleted_and_never_used() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().expect("a folder can be made");
        let labels = chain(1, 3);
        let folder = KvFolder::open(place.path(), u64::MAX).expect("it can be opened");
        labels.iter().for_each(|label| folder.write(label, &PAYLOAD).expect("there is room"));
        let path = |label: &Label| folder.place(label.name(), label.needs());
        let mode = fs::metadata(path(&labels[0])).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut bytes = fs::read(path(&labels[0])).expect("it is there");
        bytes[HEADER_BYTES + 500] ^= 1;
        fs::write(path(&labels[0]), &bytes).expect("it can be written");
        fs::copy(path(&labels[2]), path(&labels[1])).expect("it can be written");
        fs::write(path(&labels[2]), []).expect("it can be written");
        assert_eq!(held(&folder, &labels), 0);
        assert_eq!((folder.usage(), fs::read_dir(place.path()).expect("it is there").count()), ((0, 0), 0));
        labels.iter().for_each(|label| folder.write(label, &PAYLOAD).expect("there is room"));
        assert_eq!(held(&folder, &labels), 3, "they are computed and stored again");
    }
}
