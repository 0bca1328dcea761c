//! A list of byte strings in one buffer, and a hash index over it. A vocabulary has hundreds of thousands of short
//! texts: one allocation per text would cost more than the texts.

use std::hash::{BuildHasher, RandomState};

const FREE: u32 = u32::MAX;

/// A list of byte strings: one buffer and the end of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    /// An empty list with room for `count` texts.
    pub fn with_room(count: usize) -> Self {
        Self { bytes: Vec::new(), ends: Vec::with_capacity(count) }
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends a text.
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// The text at `index`, if it exists.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// All texts in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).expect("index is below len"))
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut list = Self::default();
        for text in texts {
            list.push(text.as_ref());
        }
        list
    }
}

/// Maps a text to its index in a list. Open addressing, at most half full; the hash has a random key, so that no file
/// can provoke collisions.
pub(super) struct Index {
    slots: Vec<u32>,
    hash: RandomState,
}

impl Index {
    /// An index with room for `count` texts.
    pub(super) fn with_room(count: usize) -> Self {
        Self { slots: vec![FREE; (count * 2).next_power_of_two().max(2)], hash: RandomState::new() }
    }

    /// Adds the text of `id`. If an equal text exists, it is kept and its id is returned as the error. At most as many
    /// texts may be added as there is room for.
    pub(super) fn insert(&mut self, texts: &Texts, id: u32) -> Result<(), u32> {
        let text = texts.get(id as usize).expect("the id is one of the list");
        match self.probe(texts, text) {
            Ok(found) => Err(found),
            Err(slot) => {
                self.slots[slot] = id;
                Ok(())
            }
        }
    }

    /// The id of a text.
    pub(super) fn find(&self, texts: &Texts, text: &[u8]) -> Option<u32> {
        self.probe(texts, text).ok()
    }

    /// The id of the text, or the free slot for it.
    fn probe(&self, texts: &Texts, text: &[u8]) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.hash.hash_one(text) as usize & mask;
        loop {
            match self.slots[slot] {
                FREE => return Err(slot),
                id if texts.get(id as usize) == Some(text) => return Ok(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}
