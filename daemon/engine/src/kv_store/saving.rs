//! Writes blocks behind the steps that complete them, and states that are saved at the end of a block.
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::Sender,
    },
};

use common::{ids::Slot, limits::KV_BLOCK_LENGTH};
use topology::kv;

use super::{
    label::{Kind, Label, LabelBase},
    name::Name,
    port::{Files, Write},
    shape::Shape,
};
use crate::{
    model::{BatchToken, KvCache, Memories, StateCache},
    plan::{Limits, Plan, Sequences},
};

/// Most bytes of copies that wait to be written: states may take all of it, blocks half. Blocks wait in the cache until
/// there is room, also behind the end of their sequence, and are not stored if the cache needs their place before.
const WAITING_BYTES: usize = 16 << 20;

/// How far the sequence of a slot was seen.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Blocks that are complete.
    blocks: usize,
    /// Name of the last of them.
    name: Name,
}

/// A complete block that is only in the cache.
#[derive(Debug)]
struct Unsaved {
    label: Label,
    /// Its number, and that in layers with a window.
    whole: u32,
    windowed: Option<u32>,
}

/// What a rank saves.
#[derive(Debug)]
pub(super) struct Saving {
    base: LabelBase,
    files: Arc<dyn Files>,
    /// Longest window of the model.
    window: Option<usize>,
    slots: Vec<Progress>,
    /// Oldest first; at most one for each block of the cache.
    unsaved: VecDeque<Unsaved>,
    writes: Sender<Write>,
    waiting: Arc<AtomicUsize>,
}

impl Saving {
    /// Nothing is saved yet.
    pub(super) fn new(
        files: Arc<dyn Files>,
        writes: Sender<Write>,
        waiting: Arc<AtomicUsize>,
        base: LabelBase,
        limits: &Limits,
    ) -> Self {
        let slots = vec![Progress { blocks: 0, name: base.space.beginning() }; limits.slots];
        Self { base, files, window: limits.window, slots, unsaved: VecDeque::new(), writes, waiting }
    }

    /// Stores what a step completed: `plan` was applied to `sequences`, and its tokens are computed.
    pub(super) fn stepped(&mut self, plan: &Plan, sequences: &Sequences, shape: &Shape, memories: &Memories<'_>) {
        for opened in &plan.opened {
            self.slots[opened.slot.index()] = Progress { blocks: 0, name: self.base.space.beginning() };
        }
        let batch = sequences.batch();
        self.drop_overwritten(plan, sequences);
        for run in batch.tokens.chunk_by(|one, next| one.slot == next.slot) {
            let slot = run[0].slot;
            self.save_states(plan, run, sequences, shape, memories.states);
            let Some(sequence) = sequences.get(slot) else { continue };
            let tables = [batch.tables.whole, batch.tables.windowed].map(|tables| tables.get(slot.index()));
            let [Some(whole), windowed] = tables else { continue };
            let windowed = windowed.filter(|_| self.window.is_some());
            let first_seen = self.window.map_or(0, |window| kv::first_block(run[0].position as usize, window));
            let (blocks, _) = sequence.tokens[..final_end(run).min(sequence.tokens.len())].as_chunks();
            for (index, tokens) in blocks.iter().enumerate().skip(self.slots[slot.index()].blocks) {
                let before = self.slots[slot.index()].name;
                let label = self.base.block(before, tokens);
                let name = label.name();
                if index >= first_seen && !self.files.has(name) {
                    let windowed = windowed.and_then(|table| table.get(index)).copied();
                    self.unsaved.push_back(Unsaved { label, whole: whole[index], windowed });
                }
                self.slots[slot.index()] = Progress { blocks: index + 1, name };
            }
        }
        self.save(shape, memories.cache);
    }

    /// Copies complete blocks to the queue while it has room.
    pub(super) fn save(&mut self, shape: &Shape, cache: &KvCache) {
        while !self.is_over(WAITING_BYTES / 2)
            && let Some(Unsaved { label, whole, windowed }) = self.unsaved.pop_front()
        {
            if !self.files.has(label.name()) {
                let payload = shape.block(cache, whole, windowed.unwrap_or_default());
                send(&self.writes, &self.waiting, Write { label, payload });
            }
        }
    }

    /// Forgets blocks whose place gets other keys and values between steps.
    pub(super) fn forget(&mut self, whole: &[u32], windowed: &[u32]) {
        self.unsaved.retain(|unsaved| {
            !whole.contains(&unsaved.whole) && unsaved.windowed.is_none_or(|number| !windowed.contains(&number))
        });
    }

    /// Forgets blocks in whose place a step has written: that of a sequence that ended belongs to another one by now.
    fn drop_overwritten(&mut self, plan: &Plan, sequences: &Sequences) {
        if self.unsaved.is_empty() {
            return;
        }
        let batch = sequences.batch();
        let mut written = [plan.copies.iter().map(|(_, to)| *to).collect::<Vec<u32>>(), Vec::new()];
        for run in batch.tokens.chunk_by(|one, next| one.slot == next.slot) {
            let [first, last] = [run[0], run[run.len() - 1]].map(|token| token.position as usize / KV_BLOCK_LENGTH);
            for (numbers, tables) in written.iter_mut().zip([batch.tables.whole, batch.tables.windowed]) {
                let table = tables.get(run[0].slot.index());
                numbers.extend((first..=last).filter_map(|index| table?.get(index)));
            }
        }
        let [whole, windowed] = written;
        self.forget(&whole, &windowed);
    }

    fn is_over(&self, bytes: usize) -> bool {
        self.waiting.load(Ordering::Relaxed) > bytes
    }

    /// Stores the states that a plan saves of a sequence that continues, where a block ends.
    fn save_states(&self, plan: &Plan, run: &[BatchToken], sequences: &Sequences, shape: &Shape, states: &StateCache) {
        let BatchToken { slot: Slot(slot), position, .. } = run[0];
        // The states of a sequence that ended are those of another one's text.
        let saved = if plan.closed.contains(&Slot(slot)) { None } else { saved_state(&plan.states, slot) };
        let Some(saved) = saved else { return };
        let (Some(sequence), 0) = (sequences.get(Slot(slot)), position as usize % KV_BLOCK_LENGTH) else { return };
        let (blocks, _) = sequence.tokens[..position as usize].as_chunks();
        let Some((tokens, earlier)) = blocks.split_last() else { return };
        let before = earlier.iter().fold(self.base.space.beginning(), |name, tokens| name.then(tokens));
        let label = Label { kind: Kind::State, ..self.base.block(before, tokens) };
        if shape.has_states && !self.files.has(label.name()) && !self.is_over(WAITING_BYTES) {
            send(&self.writes, &self.waiting, Write { label, payload: shape.state(states, saved) });
        }
    }
}

/// Where the copies of a step save the state of a slot, unless a later one replaces it there.
fn saved_state(copies: &[(u16, u16)], slot: u16) -> Option<u16> {
    let at = copies.iter().rposition(|(from, _)| *from == slot)?;
    let (_, saved) = copies[at];
    copies[at + 1..].iter().all(|(_, to)| *to != saved).then_some(saved)
}

/// End of the positions whose tokens no later step replaces.
fn final_end(run: &[BatchToken]) -> usize {
    let last = run[run.len() - 1];
    // Of a run with speculative tokens, the first one alone was sampled.
    (if last.is_speculative { run[0].position } else { last.position }) as usize + 1
}

fn send(writes: &Sender<Write>, waiting: &AtomicUsize, write: Write) {
    waiting.fetch_add(write.payload.len(), Ordering::Relaxed);
    // The thread ends only with the rank.
    drop(writes.send(write));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_that_a_later_copy_replaces_is_not_saved_as_that_of_its_slot() {
        assert_eq!(saved_state(&[(0, 9), (0, 10), (1, 9)], 0), Some(10));
        assert_eq!(saved_state(&[(0, 9), (1, 9)], 0), None);
        assert_eq!(saved_state(&[(0, 9), (1, 9)], 1), Some(9));
        assert_eq!(saved_state(&[(0, 9)], 2), None);
    }
}
