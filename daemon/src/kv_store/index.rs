//! The order of stored blocks and states: the least recently used goes first, and a block never before those that need it.
//! Pure.
use std::collections::{BTreeMap, BTreeSet};

use engine::kv_store::{Name, Part};
use smallvec::SmallVec;

/// Most files: their index is kept in memory, about 150 bytes each.
const FILES_MAX: usize = 1 << 16;
/// Most parts of models: a cluster has as many as ranks, and few cuts.
const PARTS_MAX: usize = 1024;

/// A file: the name of a block or state, and the number of the part of it.
pub(super) type FileKey = (Name, u16);

/// A file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Name of what it is of no use without.
    pub(super) needs: Name,
    pub(super) bytes: u64,
    /// Time of its latest use on `Index::clock`.
    used: u64,
}

/// The files by name and part.
#[derive(Debug, Default)]
pub(super) struct Index {
    parts: Vec<Part>,
    entries: BTreeMap<FileKey, Entry>,
    /// As (used, key), the one that was used longest ago first.
    order: BTreeSet<(u64, FileKey)>,
    bytes: u64,
    clock: u64,
    /// Number of times that everything was deleted.
    pub(super) cleared: u64,
}

impl Index {
    /// The number of a part; `None` if there are too many.
    pub(super) fn number(&mut self, part: &Part) -> Option<u16> {
        let known = self.known(part).map(usize::from);
        let number = known.unwrap_or_else(|| {
            self.parts.push(part.clone());
            self.parts.len() - 1
        });
        self.parts.truncate(PARTS_MAX);
        (number < PARTS_MAX).then_some(number as u16)
    }

    /// The number of a part that there are files of.
    pub(super) fn known(&self, part: &Part) -> Option<u16> {
        self.parts.iter().position(|known| known == part).map(|number| number as u16)
    }

    /// The parts in the order of their numbers.
    pub(super) fn all_parts(&self) -> &[Part] {
        &self.parts
    }

    /// The file of a block or state with this part.
    pub(super) fn find(&self, name: Name, part: &Part) -> Option<(FileKey, Entry)> {
        let key = (name, self.known(part)?);
        Some((key, *self.entries.get(&key)?))
    }

    /// The parts of a block or state that there are.
    pub(super) fn parts(&self, name: Name) -> SmallVec<[Part; 2]> {
        let found = self.entries.range((name, 0)..=(name, u16::MAX));
        found.map(|((_, part), _)| self.parts[usize::from(*part)].clone()).collect()
    }

    /// Whether there is such a file.
    pub(super) fn has(&self, key: FileKey) -> bool {
        self.entries.contains_key(&key)
    }

    /// All files, the most recently used first.
    pub(super) fn latest(&self) -> impl Iterator<Item = (FileKey, Entry)> {
        self.order.iter().rev().filter_map(|(_, key)| Some((*key, *self.entries.get(key)?)))
    }

    /// Bytes and number of the files.
    pub(super) fn usage(&self) -> (u64, usize) {
        (self.bytes, self.entries.len())
    }

    /// Marks a file as used now, and what it needs as used after it.
    pub(super) fn touch(&mut self, key: FileKey) {
        let (mut next, part) = (Some(key), key.1);
        // A file of a chain that leads back to itself can only be a forgery.
        for _ in 0..=self.entries.len() {
            let Some((key, entry)) = next.and_then(|key| Some((key, self.entries.get_mut(&key)?))) else { return };
            self.clock += 1;
            self.order.remove(&(entry.used, key));
            entry.used = self.clock;
            self.order.insert((entry.used, key));
            next = Some((entry.needs, part));
        }
    }

    pub(super) fn insert(&mut self, key: FileKey, needs: Name, bytes: u64) {
        self.remove(key);
        self.entries.insert(key, Entry { needs, bytes, used: 0 });
        self.bytes += bytes;
        self.touch(key);
    }

    pub(super) fn remove(&mut self, key: FileKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.order.remove(&(entry.used, key));
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Removes the least recently used until `bytes` more fit; returns them.
    pub(super) fn make_room(&mut self, bytes: u64, bytes_max: u64) -> Vec<(FileKey, Entry)> {
        let mut removed = Vec::new();
        while self.bytes.saturating_add(bytes) > bytes_max || self.entries.len() >= FILES_MAX {
            let Some((_, key)) = self.order.first().copied() else { break };
            removed.extend(self.remove(key).map(|entry| (key, entry)));
        }
        removed
    }

    /// Removes all; returns them.
    pub(super) fn clear(&mut self) -> BTreeMap<FileKey, Entry> {
        let (cleared, parts) = (self.cleared + 1, std::mem::take(&mut self.parts));
        std::mem::replace(self, Self { cleared, parts, ..Self::default() }).entries
    }
}
