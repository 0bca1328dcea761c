//! The KV blocks of a replica, as the head's allocator has them: free, held by sequences, or kept after these for whoever begins with
//! the same tokens. What a block holds is named by what the block before it holds and by its own tokens, compared as they are: no
//! hash decides. Kept blocks are given away least recently used first. Pure.
use std::collections::{BTreeSet, HashMap};

use shared::{telemetry::KvUse, topology::spec::KV_BLOCK_LENGTH};

/// Names what a whole block holds together with everything before it; never used twice.
type Serial = u64;
/// What is before the first block.
const BEGINNING: Serial = 0;

/// The tokens of a whole block, and what is before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Content {
    before: Serial,
    tokens: [u32; KV_BLOCK_LENGTH],
}

/// One block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Sequences that hold it.
    holders: u32,
    /// What it holds and how many of these tokens, if others may read it.
    content: Option<(Content, usize)>,
    /// Its content's name; only of a whole one.
    serial: Serial,
    /// When it was let go; smaller is longer ago.
    released: u64,
}

/// The blocks of a sequence, in the order of positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Their numbers.
    pub blocks: Vec<u32>,
    /// Tokens that were there when it was taken: the first of its own stands behind them.
    pub cached: usize,
    /// What to copy before the first step, from where and to which of `blocks`: the cached tokens end inside a block.
    pub copy: Option<(u32, u32)>,
    /// Whole blocks whose content is named.
    named: usize,
    /// The name of the last of them.
    serial: Serial,
}

/// All blocks.
#[derive(Debug)]
pub struct Blocks {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Whole blocks by content, held or kept.
    whole: HashMap<Content, u32>,
    /// Kept by nobody's hand, longest ago first.
    kept: BTreeSet<(u64, u32)>,
    /// Counts names and releases.
    clock: u64,
    shares: bool,
}

impl Blocks {
    /// `count` free blocks.
    pub fn new(count: usize) -> Self {
        Self {
            blocks: vec![Block::default(); count],
            free: (0..count as u32).rev().collect(),
            // Twice the room: names come and go without the map growing.
            whole: HashMap::with_capacity(2 * count),
            kept: BTreeSet::new(),
            clock: BEGINNING,
            shares: true,
        }
    }

    /// `count` free blocks that are never kept.
    pub fn without_sharing(count: usize) -> Self {
        Self { shares: false, ..Self::new(count) }
    }

    /// Whether blocks are kept and found again.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Blocks that no sequence holds.
    pub fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// How many are held and kept.
    pub fn kv_use(&self) -> KvUse {
        let (total, kept) = (self.blocks.len() as u32, self.kept.len() as u32);
        KvUse { held: total - self.available() as u32, kept, total }
    }

    /// Tokens at the beginning of a prompt that whole blocks hold. The last token of a prompt never counts: its logits are wanted.
    pub fn cached_whole(&self, prompt: &[u32]) -> usize {
        self.walk(prompt).count() * KV_BLOCK_LENGTH
    }

    /// The whole blocks that a prompt begins with.
    fn walk<'a>(&'a self, prompt: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let mut before = BEGINNING;
        let (pieces, _) = prompt[..prompt.len().saturating_sub(1)].as_chunks();
        pieces.iter().map_while(move |tokens| {
            let block = *self.whole.get(&Content { before, tokens: *tokens })?;
            before = self.blocks[block as usize].serial;
            Some(block)
        })
    }

    /// The block that holds most of what goes on after `before`, and how many tokens of it.
    fn begun(&self, before: Serial, tokens: &[u32]) -> Option<(u32, usize)> {
        let shared = |(number, block): (usize, &Block)| {
            let (content, length) = block.content.as_ref().filter(|(content, _)| content.before == before)?;
            let pairs = content.tokens[..*length].iter().zip(tokens);
            let count = pairs.take_while(|(a, b)| a == b).count();
            (count > 0).then_some((number as u32, count))
        };
        self.blocks.iter().enumerate().filter_map(shared).max_by_key(|(_, count)| *count)
    }

    /// Takes the blocks of a sequence of at most `length` tokens that begins with `prompt`: those that hold its beginning, and others
    /// for the rest. `None` where there are too few; then nothing changed.
    pub fn take(&mut self, prompt: &[u32], length: usize) -> Option<Table> {
        let count = length.max(prompt.len()).div_ceil(KV_BLOCK_LENGTH);
        let mut blocks = Vec::with_capacity(count);
        blocks.extend(self.walk(prompt));
        let shared = blocks.len();
        let unheld = blocks.iter().filter(|block| self.blocks[**block as usize].holders == 0).count();
        if count - shared > self.available() - unheld {
            return None;
        }
        for block in &blocks {
            self.hold(*block);
        }
        let serial = blocks.last().map_or(BEGINNING, |block| self.blocks[*block as usize].serial);
        let rest = &prompt[shared * KV_BLOCK_LENGTH..prompt.len().saturating_sub(1)];
        let begun = self.begun(serial, &rest[..rest.len().min(KV_BLOCK_LENGTH)]);
        blocks.extend((shared..count).map_while(|_| self.give()));
        let copy = begun.map(|(from, _)| (from, blocks[shared]));
        let cached = shared * KV_BLOCK_LENGTH + begun.map_or(0, |(_, tokens)| tokens);
        Some(Table { blocks, cached, copy, named: shared, serial })
    }

    fn hold(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.holders == 0 {
            self.kept.remove(&(block.released, number));
        }
        block.holders += 1;
    }

    /// A block for new tokens: a free one, else the one that was kept longest.
    fn give(&mut self) -> Option<u32> {
        let number = self.free.pop().or_else(|| self.kept.pop_first().map(|(_, number)| number))?;
        self.forget(number);
        self.blocks[number as usize].holders = 1;
        Some(number)
    }

    fn forget(&mut self, number: u32) {
        if let Some((content, KV_BLOCK_LENGTH)) = self.blocks[number as usize].content.take() {
            self.whole.remove(&content);
        }
    }

    /// Names the whole blocks of a sequence whose first tokens are computed, so that others find them from the next step on.
    pub fn name(&mut self, table: &mut Table, computed: &[u32]) {
        if !self.shares {
            return;
        }
        let (pieces, _) = computed.as_chunks();
        for tokens in pieces.get(table.named..).unwrap_or_default() {
            let content = Content { before: table.serial, tokens: *tokens };
            let number = table.blocks[table.named];
            table.named += 1;
            if let Some(other) = self.whole.get(&content) {
                // Computed twice: this one stays its sequence's own.
                table.serial = self.blocks[*other as usize].serial;
                continue;
            }
            self.clock += 1;
            table.serial = self.clock;
            self.whole.insert(content, number);
            let block = &mut self.blocks[number as usize];
            (block.content, block.serial) = (Some((content, KV_BLOCK_LENGTH)), self.clock);
        }
    }

    /// A sequence ends; `computed` are its tokens that went through the layers. What they fill is kept.
    pub fn release(&mut self, mut table: Table, computed: &[u32]) {
        self.name(&mut table, computed);
        let rest = computed.get(table.named * KV_BLOCK_LENGTH..).unwrap_or_default();
        if let Some(number) = table.blocks.get(table.named).filter(|_| self.shares && !rest.is_empty()) {
            let mut content = Content { before: table.serial, tokens: [0; KV_BLOCK_LENGTH] };
            content.tokens[..rest.len()].copy_from_slice(rest);
            self.blocks[*number as usize].content = Some((content, rest.len()));
        }
        // The last first: what is given away first is what fewest can use.
        for number in table.blocks.into_iter().rev() {
            let block = &mut self.blocks[number as usize];
            block.holders -= 1;
            if block.holders > 0 {
                continue;
            }
            if block.content.is_none() {
                self.free.push(number);
                continue;
            }
            self.clock += 1;
            block.released = self.clock;
            self.kept.insert((self.clock, number));
        }
    }
}

#[cfg(test)]
mod tests;
