//! Checks the block allocator against a model that records every write to a block.
use super::*;

const COUNT: usize = 24;

/// A seeded random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Contents of a rank's KV memory: for each row, the tokens that its keys and values depend on.
struct Memory(Vec<Vec<Option<Vec<u32>>>>);

impl Memory {
    fn new() -> Self {
        Self(vec![vec![None; KV_BLOCK_LENGTH]; COUNT])
    }

    fn write(&mut self, table: &BlockTable, tokens: &[u32], positions: std::ops::Range<usize>) {
        for position in positions {
            let block = table.blocks[position / KV_BLOCK_LENGTH] as usize;
            self.0[block][position % KV_BLOCK_LENGTH] = Some(tokens[..=position].to_vec());
        }
    }

    #[track_caller]
    fn check(&self, table: &BlockTable, tokens: &[u32], computed: usize) {
        for position in 0..computed {
            let block = table.blocks[position / KV_BLOCK_LENGTH] as usize;
            let found = self.0[block][position % KV_BLOCK_LENGTH].as_deref();
            assert_eq!(found, Some(&tokens[..=position]), "position {position}");
        }
    }
}

struct Held {
    table: BlockTable,
    tokens: Vec<u32>,
    computed: usize,
}

impl Held {
    /// Copies the block in which its cached tokens end, as a step does, at any time before the first computed token.
    fn copy(&mut self, blocks: &mut BlockPool, memory: &mut Memory) {
        if let Some((from, to)) = blocks.take_copy(&mut self.table) {
            memory.0[to as usize] = memory.0[from as usize].clone();
        }
        memory.check(&self.table, &self.tokens, self.computed);
    }
}

/// Every block is free, cached or held, and its reference count matches the sequences that hold it.
#[track_caller]
fn check(blocks: &BlockPool, sequences: &[Held]) {
    let mut holders = vec![0; COUNT];
    for Held { table, .. } in sequences {
        let source = table.copy.map(|(from, _)| from);
        table.blocks.iter().chain(&source).for_each(|block| holders[*block as usize] += 1);
    }
    let held: Vec<u32> = blocks.blocks.iter().map(|block| block.holders).collect();
    assert_eq!(held, holders);
    let mut unheld: Vec<u32> =
        blocks.free.iter().copied().chain(blocks.evictable.iter().map(|(_, block)| *block)).collect();
    unheld.sort_unstable();
    let expected: Vec<u32> = (0..COUNT as u32).filter(|block| holders[*block as usize] == 0).collect();
    assert_eq!(unheld, expected, "every block appears exactly once");
    for (content, block) in &blocks.whole {
        assert_eq!(blocks.blocks[*block as usize].content, Some((*content, KV_BLOCK_LENGTH)));
    }
    assert!(blocks.whole.len() <= COUNT);
}

#[test]
fn no_block_is_lost_and_cached_tokens_match_prompt() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (mut blocks, mut memory) = (BlockPool::new(COUNT), Memory::new());
        let mut sequences: Vec<Held> = Vec::new();
        let mut cached = 0;
        for _ in 0..400 {
            match random.below(5) {
                0 | 1 => {
                    // Few distinct tokens, so that prefixes are shared; two kinds of stems.
                    let (length, stem) = (1 + random.below(150), random.below(2) as u32);
                    let change = random.below(200);
                    let tokens: Vec<u32> =
                        (0..length).map(|index| if index < change { stem } else { 2 + (index % 3) as u32 }).collect();
                    let before = blocks.available();
                    let Some(table) = blocks.take(&tokens, length + random.below(80), usize::MAX) else {
                        assert_eq!(blocks.available(), before);
                        continue;
                    };
                    assert!(table.cached < length && table.cached >= blocks.cached_whole(&tokens));
                    cached += table.cached;
                    let computed = table.cached;
                    let mut one = Held { table, tokens, computed };
                    if random.below(2) == 0 {
                        one.copy(&mut blocks, &mut memory);
                    }
                    sequences.push(one);
                }
                2 | 3 if !sequences.is_empty() => {
                    let index = random.below(sequences.len());
                    let one = &mut sequences[index];
                    one.copy(&mut blocks, &mut memory);
                    let room = one.table.blocks.len() * KV_BLOCK_LENGTH;
                    if one.computed == one.tokens.len() && one.tokens.len() < room {
                        one.tokens.push(random.below(3) as u32);
                    }
                    let end = one.tokens.len().min(one.computed + 1 + random.below(64));
                    memory.write(&one.table, &one.tokens, one.computed..end);
                    one.computed = end;
                    blocks.publish(&mut one.table, &one.tokens[..end]);
                }
                4 if !sequences.is_empty() => {
                    let one = sequences.swap_remove(random.below(sequences.len()));
                    if one.table.copy.is_none() {
                        memory.check(&one.table, &one.tokens, one.computed);
                    }
                    blocks.release(one.table, &one.tokens[..one.computed]);
                }
                _ => {}
            }
            check(&blocks, &sequences);
        }
        assert!(cached > 1000, "only {cached} tokens were found");
        sequences.drain(..).for_each(|one| blocks.release(one.table, &one.tokens[..one.computed]));
        assert_eq!(blocks.available(), COUNT);
    }
}

fn computed(blocks: &mut BlockPool, tokens: &[u32]) -> BlockTable {
    let mut table = blocks.take(tokens, tokens.len(), usize::MAX).expect("there is room");
    blocks.publish(&mut table, tokens);
    table
}

#[test]
fn eviction_is_lru_and_starts_at_sequence_end() {
    let mut blocks = BlockPool::new(6);
    let (first, second) = (vec![1; 65], vec![2; 65]);
    let tables = [computed(&mut blocks, &first), computed(&mut blocks, &second)];
    let [one, two] = tables;
    blocks.release(one, &first);
    blocks.release(two, &second);
    // Using the first again makes the second the least recently used.
    let again = blocks.take(&first, 65, usize::MAX).expect("it is there");
    assert_eq!(again.cached, 64);
    blocks.release(again, &first[..64]);
    let other = blocks.take(&[3; 96], 96, usize::MAX).expect("cached blocks are evicted");
    assert_eq!((blocks.cached_whole(&first), blocks.cached_whole(&second)), (64, 32));
    blocks.release(other, &[]);
    assert_eq!(blocks.available(), 6);
}

#[test]
fn last_prompt_token_is_computed_and_partial_block_copied() {
    let mut blocks = BlockPool::new(8);
    let prompt: Vec<u32> = (0..64).collect();
    let first = computed(&mut blocks, &prompt);
    let second = blocks.take(&prompt, 80, usize::MAX).expect("there is room");
    assert_eq!((second.cached, second.blocks[0]), (63, first.blocks[0]));
    assert_eq!(second.copy, Some((first.blocks[1], second.blocks[1])));
    let short = blocks.take(&prompt[..10], 10, usize::MAX).expect("there is room");
    assert_eq!((short.cached, short.copy), (9, Some((first.blocks[0], short.blocks[0]))));
    assert!(blocks.take(&[7; 97], 97, usize::MAX).is_none(), "five of eight blocks are held");
    assert!(blocks.take(&[7; 96], 96, usize::MAX).is_some());
}

#[test]
fn source_of_a_copy_is_given_to_no_other_sequence_before_it() {
    let mut blocks = BlockPool::new(4);
    let prompt = [5; 40];
    let first = computed(&mut blocks, &prompt);
    blocks.release(first, &prompt);
    let mut second = blocks.take(&prompt, 40, usize::MAX).expect("there is room");
    assert_eq!((second.cached, second.copy.is_some(), blocks.available()), (39, true, 1));
    assert_eq!(blocks.take(&[7; 64], 64, usize::MAX), None, "it needs the block that is copied later");
    assert!(blocks.take_copy(&mut second).is_some());
    assert!(blocks.take(&[7; 64], 64, usize::MAX).is_some());
}

#[test]
fn partly_matching_block_is_taken_over_without_room_for_a_copy() {
    let mut blocks = BlockPool::new(2);
    let prompt = [5; 40];
    let first = computed(&mut blocks, &prompt);
    let places = first.blocks.clone();
    blocks.release(first, &prompt);
    let second = blocks.take(&prompt, 64, usize::MAX).expect("all its blocks are cached");
    assert_eq!((second.cached, second.copy, &second.blocks), (39, None, &places));
}

#[test]
fn shared_blocks_are_not_counted_as_available() {
    let mut blocks = BlockPool::new(3);
    let prompt = vec![5; 65];
    let table = computed(&mut blocks, &prompt);
    blocks.release(table, &prompt);
    assert_eq!(blocks.available(), 3);
    assert!(blocks.take(&prompt, 97, usize::MAX).is_none(), "two are shared, two more are needed, one is available");
    let table = blocks.take(&prompt, 96, usize::MAX).expect("two are shared, one more is needed");
    assert_eq!((table.cached, blocks.available()), (64, 0));
}
