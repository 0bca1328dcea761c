//! Block pool of a replica's KV cache, as allocated by the head: a block is free, held by sequences, or cached for
//! later sequences that begin with the same tokens. A block's content is identified by the content of the previous
//! block and by its own tokens, which are compared token by token: correctness never depends on a hash. Cached blocks
//! are evicted least recently used first. Pure.
use std::collections::{BTreeSet, HashMap};

use common::limits::KV_BLOCK_LENGTH;
use telemetry::KvUse;
use topology::KvBlocks;

use window::WindowPool;
pub use window::WindowTable;

mod window;

/// Identifies the content of a full block together with everything before it; never reused.
type ContentId = u64;
/// Serial of the empty prefix before the first block.
const BEGINNING: ContentId = 0;

/// Content of a full block: the serial of its prefix, and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Content {
    before: ContentId,
    tokens: [u32; KV_BLOCK_LENGTH],
}

/// One block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Number of sequences that hold it.
    holders: u32,
    /// Its content and how many of the tokens are valid, if other sequences may read it.
    content: Option<(Content, usize)>,
    /// Serial of its content; only of a full block.
    content_id: ContentId,
    /// Time of its release on `BlockPool::clock`; smaller is longer ago.
    released: u64,
}

/// The blocks of a sequence, in order of position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockTable {
    /// Block numbers.
    pub blocks: Vec<u32>,
    /// Prompt tokens found in the cache; the first computed token is at this position.
    pub cached: usize,
    /// Its blocks in layers with a window.
    pub windowed: WindowTable,
    /// Block to copy before the first step, as (source, destination in `blocks`): the cached tokens end inside a block.
    /// Its source is held until [`BlockPool::take_copy`].
    copy: Option<(u32, u32)>,
    /// Number of full blocks whose content is published.
    published: usize,
    /// Serial of the last of them.
    content_id: ContentId,
}

/// Block pool and prefix cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Full blocks by content, held or cached.
    whole: HashMap<Content, u32>,
    /// Cached blocks that no sequence references, as (released, number), least recently used first.
    evictable: BTreeSet<(u64, u32)>,
    /// Counter for serials and releases.
    clock: u64,
    shares: bool,
    /// Blocks of layers with a window.
    windowed: Option<WindowPool>,
}

impl BlockPool {
    /// Creates a pool of `count` free blocks.
    pub fn new(count: usize) -> Self {
        Self {
            blocks: vec![Block::default(); count],
            free: (0..count as u32).rev().collect(),
            // Twice the capacity, so that the map does not grow as entries come and go.
            whole: HashMap::with_capacity(2 * count),
            evictable: BTreeSet::new(),
            clock: BEGINNING,
            shares: true,
            windowed: None,
        }
    }

    /// Creates a pool of these free blocks for a model whose longest window is `window`.
    pub fn with_window(blocks: KvBlocks, window: Option<usize>) -> Self {
        let windowed = window.map(|window| WindowPool::new(blocks, window));
        Self { windowed, ..Self::new(blocks.whole) }
    }

    /// Turns the prefix cache off.
    #[must_use]
    pub fn without_sharing(self) -> Self {
        Self { shares: false, ..self }
    }

    /// Whether the prefix cache is on.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Blocks that no sequence holds.
    pub fn available(&self) -> usize {
        self.free.len() + self.evictable.len()
    }

    /// Number of held and cached blocks.
    pub fn kv_use(&self) -> KvUse {
        let (total, evictable) = (self.blocks.len() as u32, self.evictable.len() as u32);
        KvUse { held: total - self.available() as u32, kept: evictable, total }
    }

    /// Number of leading prompt tokens that full cached blocks hold. The last token of a prompt never counts: its
    /// logits are needed.
    pub fn cached_whole(&self, prompt: &[u32]) -> usize {
        self.usable(&self.matching(prompt).collect::<Vec<u32>>()) * KV_BLOCK_LENGTH
    }

    /// Whether cached blocks hold the first `length` tokens of a prompt.
    pub fn has(&self, prompt: &[u32], length: usize) -> bool {
        let known = &prompt[..prompt.len().min(length + 1)];
        let matching: Vec<u32> = self.matching(known).collect();
        if self.windowed.is_some() {
            // Only whole blocks are reused.
            return self.usable(&matching) * KV_BLOCK_LENGTH == length;
        }
        let before = matching.last().map_or(BEGINNING, |block| self.blocks[*block as usize].content_id);
        let whole = matching.len() * KV_BLOCK_LENGTH;
        let rest = &known[whole.min(length)..length];
        whole + self.partial_match(before, rest).map_or(0, |(_, count)| count) >= length
    }

    /// The full cached blocks that match the beginning of a prompt.
    fn matching<'a>(&'a self, prompt: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let mut before = BEGINNING;
        let (pieces, _) = prompt[..prompt.len().saturating_sub(1)].as_chunks();
        pieces.iter().map_while(move |tokens| {
            let block = *self.whole.get(&Content { before, tokens: *tokens })?;
            before = self.blocks[block as usize].content_id;
            Some(block)
        })
    }

    /// How many of these matching blocks a sequence can begin with.
    fn usable(&self, matching: &[u32]) -> usize {
        let contents = matching.iter().map(|block| self.blocks[*block as usize].content_id);
        self.windowed.as_ref().map_or(matching.len(), |windowed| windowed.usable(contents))
    }

    /// The block that matches the longest part of `tokens` after the prefix `before`, and the length of the match in
    /// tokens.
    fn partial_match(&self, before: ContentId, tokens: &[u32]) -> Option<(u32, usize)> {
        let shared = self.blocks.iter().enumerate().filter_map(|(number, block)| {
            let (content, length) = block.content.as_ref().filter(|(content, _)| content.before == before)?;
            let pairs = content.tokens[..*length].iter().zip(tokens);
            let count = pairs.take_while(|(a, b)| a == b).count();
            (count > 0).then_some((number as u32, count))
        });
        shared.max_by_key(|(_, count)| *count)
    }

    /// Allocates the blocks of a sequence of at most `length` tokens that begins with `prompt`: cached blocks for the
    /// matching prefix of at most `known` tokens, others for the rest. `None` if there are too few; the pool is then
    /// unchanged.
    pub fn take(&mut self, prompt: &[u32], length: usize, known: usize) -> Option<BlockTable> {
        let count = length.max(prompt.len()).div_ceil(KV_BLOCK_LENGTH);
        let prompt = &prompt[..prompt.len().min(known.saturating_add(1))];
        let mut blocks = Vec::with_capacity(count);
        blocks.extend(self.matching(prompt));
        let shared = self.usable(&blocks);
        blocks.truncate(shared);
        let unheld = blocks.iter().filter(|block| self.blocks[**block as usize].holders == 0).count();
        let has_windows = self.windowed.as_ref().is_none_or(|windowed| windowed.has_room(count));
        if count - shared > self.available() - unheld || !has_windows {
            return None;
        }
        for block in &blocks {
            self.hold(*block);
        }
        let content_id = blocks.last().map_or(BEGINNING, |block| self.blocks[*block as usize].content_id);
        let rest = &prompt[shared * KV_BLOCK_LENGTH..prompt.len().saturating_sub(1)];
        // With a window, only whole blocks are reused.
        let rest = if self.windowed.is_some() { &[] } else { &rest[..rest.len().min(KV_BLOCK_LENGTH)] };
        let partial_match = self.partial_match(content_id, rest);
        let source = partial_match.map(|(from, _)| from);
        // Without room to hold the source, too, it becomes the sequence's own block.
        let has_room = self.available() > count - shared;
        let moved = source.filter(|from| !has_room && self.blocks[*from as usize].holders == 0);
        if let Some(from) = source {
            self.hold(from);
        }
        if let Some(from) = moved {
            self.unpublish(from);
            blocks.push(from);
        }
        let windowed = self.windowed.as_mut().map(|windowed| {
            let contents: Vec<_> = blocks.iter().map(|block| self.blocks[*block as usize].content_id).collect();
            windowed.take(&contents, count)
        });
        let windowed = windowed.unwrap_or_default();
        blocks.extend((blocks.len()..count).map_while(|_| self.alloc()));
        let copy = source.filter(|_| moved.is_none()).map(|from| (from, blocks[shared]));
        let cached = shared * KV_BLOCK_LENGTH + partial_match.map_or(0, |(_, tokens)| tokens);
        Some(BlockTable { blocks, cached, windowed, copy, published: shared, content_id })
    }

    /// Hands over the copy of a sequence for a plan. Its source may get other content only behind that plan: ranks read
    /// keys and values of later orders from their disks before the plan arrives.
    pub fn take_copy(&mut self, table: &mut BlockTable) -> Option<(u32, u32)> {
        let copy = table.copy.take()?;
        self.release_block(copy.0);
        Some(copy)
    }

    fn hold(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.holders == 0 {
            self.evictable.remove(&(block.released, number));
        }
        block.holders += 1;
    }

    /// Allocates a block for new tokens: a free one, else the least recently used cached one.
    fn alloc(&mut self) -> Option<u32> {
        let number = self.free.pop().or_else(|| self.evictable.pop_first().map(|(_, number)| number))?;
        self.unpublish(number);
        self.blocks[number as usize].holders = 1;
        Some(number)
    }

    fn unpublish(&mut self, number: u32) {
        if let Some((content, KV_BLOCK_LENGTH)) = self.blocks[number as usize].content.take() {
            self.whole.remove(&content);
        }
    }

    /// Publishes the full blocks among the `computed` tokens of a sequence, so that other sequences can use them from
    /// the next step on.
    pub fn publish(&mut self, table: &mut BlockTable, computed: &[u32]) {
        if !self.shares {
            return;
        }
        let (pieces, _) = computed.as_chunks();
        for tokens in pieces.get(table.published..).unwrap_or_default() {
            let content = Content { before: table.content_id, tokens: *tokens };
            let number = table.blocks[table.published];
            table.published += 1;
            if let Some(other) = self.whole.get(&content) {
                // The same content was computed twice: this copy stays private to its sequence.
                table.content_id = self.blocks[*other as usize].content_id;
            } else {
                self.clock += 1;
                table.content_id = self.clock;
                self.whole.insert(content, number);
                let block = &mut self.blocks[number as usize];
                (block.content, block.content_id) = (Some((content, KV_BLOCK_LENGTH)), self.clock);
            }
            if let Some(windowed) = &mut self.windowed {
                windowed.publish(&table.windowed, table.published - 1, table.content_id);
            }
        }
    }

    /// Releases the blocks that a token of a sequence at `next` and later ones do not see through a window.
    pub fn pass(&mut self, table: &mut BlockTable, next: usize) {
        if let Some(windowed) = &mut self.windowed {
            windowed.pass(&mut table.windowed, next);
        }
    }

    /// Allocates blocks in layers with a window for the positions of a sequence before `end`, and passes each on with
    /// its index in the sequence.
    pub fn extend(&mut self, table: &mut BlockTable, end: usize, placed: impl FnMut(u32, u32)) {
        if let Some(windowed) = &mut self.windowed {
            windowed.extend(&mut table.windowed, end, placed);
        }
    }

    /// Releases the blocks of a finished sequence; those that hold `computed` tokens (fed through the layers) stay
    /// cached.
    pub fn release(&mut self, mut table: BlockTable, computed: &[u32]) {
        // The block to be copied for it has no content until a step that copies it was sent.
        let whole = computed.len() / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH;
        let computed = if self.take_copy(&mut table).is_some() { &computed[..whole] } else { computed };
        self.publish(&mut table, computed);
        let rest = computed.get(table.published * KV_BLOCK_LENGTH..).unwrap_or_default();
        if let Some(number) = table.blocks.get(table.published).filter(|_| self.shares && !rest.is_empty()) {
            let mut content = Content { before: table.content_id, tokens: [0; KV_BLOCK_LENGTH] };
            content.tokens[..rest.len()].copy_from_slice(rest);
            self.blocks[*number as usize].content = Some((content, rest.len()));
        }
        if let Some(windowed) = &mut self.windowed {
            windowed.end(&table.windowed);
        }
        // Last block first: the end of a sequence is the part that the fewest prompts can reuse, so it is evicted
        // first.
        table.blocks.into_iter().rev().for_each(|number| self.release_block(number));
    }

    /// Ends one hold of a block; if it was the last one, the block is free, or cached if it has content.
    fn release_block(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        block.holders -= 1;
        if block.holders > 0 {
            return;
        }
        if block.content.is_none() {
            self.free.push(number);
            return;
        }
        self.clock += 1;
        block.released = self.clock;
        self.evictable.insert((self.clock, number));
    }
}

#[cfg(test)]
mod tests;
