//! A ring of records of a few words: one writer, any number of readers, no locks. A reader skips a record that is being
//! overwritten.
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The ring buffer.
#[derive(Debug)]
pub(super) struct WordRing {
    /// `[length, 1 + words]`; the first word of a record is its stamp: twice its number plus two if complete, odd while
    /// it is being written.
    words: Box<[AtomicU64]>,
    length: usize,
    written: AtomicU64,
}

impl WordRing {
    /// Creates an empty ring of `length` records of `words` words each.
    pub(super) fn new(length: usize, words: usize) -> Self {
        let words = (0..length * (1 + words)).map(|_| AtomicU64::new(0)).collect();
        Self { words, length, written: AtomicU64::new(0) }
    }

    /// Stamp and words at the position of a record.
    fn slot(&self, number: u64) -> (&AtomicU64, &[AtomicU64]) {
        let stride = self.words.len() / self.length;
        let slot = &self.words[number as usize % self.length * stride..][..stride];
        (&slot[0], &slot[1..])
    }

    /// Adds a record; words that are missing keep their values.
    pub(super) fn push(&self, record: impl Iterator<Item = u64>) {
        let number = self.written.load(Ordering::Relaxed);
        let (stamp, words) = self.slot(number);
        stamp.store(2 * number + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in words.iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        stamp.store(2 * number + 2, Ordering::Release);
        self.written.store(number + 1, Ordering::Release);
    }

    /// Calls `visit` with the words of each record since `cursor` that still exists, and moves the cursor to the end.
    pub(super) fn read_since(&self, cursor: &mut u64, mut visit: impl FnMut(&[u64])) {
        let end = self.written.load(Ordering::Acquire);
        let begin = (*cursor).max(end.saturating_sub(self.length as u64));
        let mut read = Vec::with_capacity(self.words.len() / self.length);
        for number in begin..end {
            let (stamp, words) = self.slot(number);
            let before = stamp.load(Ordering::Acquire);
            read.clear();
            read.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
            fence(Ordering::Acquire);
            if before == 2 * number + 2 && stamp.load(Ordering::Relaxed) == before {
                visit(&read);
            }
        }
        *cursor = end;
    }
}
