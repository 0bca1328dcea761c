//! The blocks of layers with a window: each belongs to the content of a block of the layers that attend to everything.
//! A sequence holds only those that its next tokens see; the others stay cached until their memory is needed: first
//! those that fell out of a window, then those with which a later prompt is likely to begin. Pure.
use std::collections::{BTreeSet, HashMap, VecDeque, hash_map::Entry};

use common::limits::KV_BLOCK_LENGTH;
use topology::{KvBlocks, kv};

use super::ContentId;

/// One block.
#[derive(Clone, Copy, Debug, Default)]
struct WindowBlock {
    /// Number of sequences that hold it.
    holders: u32,
    /// The content that it belongs to, if other sequences may read it.
    content: Option<ContentId>,
    /// Whether a prompt began with it, or a sequence ended with it.
    is_beginning: bool,
    /// Time of its release; smaller is longer ago.
    released: u64,
}

/// The blocks that a sequence holds in layers with a window: those with these indices in the sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowTable {
    /// Index of the first one.
    pub first: usize,
    /// Block numbers.
    pub blocks: VecDeque<u32>,
    /// Most blocks that it will hold, besides those for the tokens of a step.
    reserved: usize,
}

impl WindowTable {
    /// Index behind the last one.
    fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    /// Its blocks with their indices in the sequence.
    pub fn places(&self) -> impl Iterator<Item = (u32, u32)> {
        (self.first as u32..).zip(self.blocks.iter().copied())
    }
}

/// Block pool of the layers with a window. A sequence reserves its window before it begins, and the pool has enough
/// blocks for a step besides ([`KvBlocks::of`]), so that no sequence can run out of them later.
#[derive(Debug)]
pub(super) struct WindowPool {
    window: usize,
    blocks: Vec<WindowBlock>,
    free: Vec<u32>,
    /// Blocks by content, held or cached.
    by_content: HashMap<ContentId, u32>,
    /// Cached blocks that no sequence holds, as (beginning, released, number).
    evictable: BTreeSet<(bool, u64, u32)>,
    clock: u64,
    /// Blocks that may be reserved; `None`: any number.
    reservable: Option<usize>,
    /// Blocks that sequences have reserved.
    reserved: usize,
}

impl WindowPool {
    pub(super) fn new(blocks: KvBlocks, window: usize) -> Self {
        let count = blocks.windowed;
        Self {
            window,
            reservable: blocks.reservable(),
            reserved: 0,
            blocks: vec![WindowBlock::default(); count],
            free: (0..count as u32).rev().collect(),
            // Twice the capacity, so that the map does not grow as entries come and go.
            by_content: HashMap::with_capacity(2 * count),
            evictable: BTreeSet::new(),
            clock: 0,
        }
    }

    /// How many of these consecutive contents, from the beginning of a prompt on, a sequence can begin with: those
    /// whose last blocks, as far as the next token sees them, are still there.
    pub(super) fn usable(&self, contents: impl Iterator<Item = ContentId>) -> usize {
        let (mut run, mut usable) = (0, 0);
        for (index, content) in contents.enumerate() {
            run = if self.by_content.contains_key(&content) { run + 1 } else { 0 };
            let count = index + 1;
            if run >= count - kv::first_block(count * KV_BLOCK_LENGTH, self.window) {
                usable = count;
            }
        }
        usable
    }

    /// Whether a sequence of `count` blocks can reserve its window now.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.reservable.is_none_or(|most| self.reserved + self.wanted(count) <= most)
    }

    /// Blocks that a sequence of `count` blocks reserves.
    fn wanted(&self, count: usize) -> usize {
        count.min(kv::window_blocks(self.window))
    }

    /// The table of a sequence of `count` blocks that begins with these usable contents.
    pub(super) fn take(&mut self, contents: &[ContentId], count: usize) -> WindowTable {
        let first = kv::first_block(contents.len() * KV_BLOCK_LENGTH, self.window);
        let held = contents[first..].iter().filter_map(|content| self.by_content.get(content).copied());
        let blocks: VecDeque<u32> = held.collect();
        for number in &blocks {
            self.hold(*number);
            self.blocks[*number as usize].is_beginning = true;
        }
        let reserved = self.wanted(count);
        self.reserved += reserved;
        WindowTable { first, blocks, reserved }
    }

    fn hold(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.holders == 0 {
            self.evictable.remove(&(block.is_beginning, block.released, number));
        }
        block.holders += 1;
    }

    /// Releases the blocks that a token at `next` and later ones do not see.
    pub(super) fn pass(&mut self, table: &mut WindowTable, next: usize) {
        let first = kv::first_block(next, self.window);
        while table.first < first {
            if let Some(number) = table.blocks.pop_front() {
                self.release(number);
            }
            table.first += 1;
        }
    }

    /// Allocates blocks for the positions before `end`, and passes each on with its index in the sequence.
    pub(super) fn extend(&mut self, table: &mut WindowTable, end: usize, mut placed: impl FnMut(u32, u32)) {
        while table.end() < end.div_ceil(KV_BLOCK_LENGTH) {
            // All sequences have reserved what they hold: there is one.
            let Some(number) = self.free.pop().or_else(|| self.evictable.pop_first().map(|place| place.2)) else {
                return;
            };
            if let Some(content) = self.blocks[number as usize].content.take() {
                self.by_content.remove(&content);
            }
            self.blocks[number as usize] = WindowBlock { holders: 1, ..WindowBlock::default() };
            placed(table.end() as u32, number);
            table.blocks.push_back(number);
        }
    }

    /// Lets other sequences read a sequence's block with this index, which is full.
    pub(super) fn publish(&mut self, table: &WindowTable, index: usize, content: ContentId) {
        let number = index.checked_sub(table.first).and_then(|place| table.blocks.get(place).copied());
        let Some(number) = number.filter(|number| self.blocks[*number as usize].content.is_none()) else { return };
        // The same content may have been computed twice: then this copy stays private to its sequence.
        if let Entry::Vacant(place) = self.by_content.entry(content) {
            place.insert(number);
            self.blocks[number as usize].content = Some(content);
        }
    }

    /// Releases all blocks of a sequence.
    pub(super) fn end(&mut self, table: &WindowTable) {
        self.reserved -= table.reserved;
        for number in &table.blocks {
            self.blocks[*number as usize].is_beginning = true;
            self.release(*number);
        }
    }

    fn release(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        block.holders -= 1;
        if block.holders > 0 {
            return;
        }
        if block.content.is_none() {
            return self.free.push(number);
        }
        self.clock += 1;
        block.released = self.clock;
        self.evictable.insert((block.is_beginning, self.clock, number));
    }
}
