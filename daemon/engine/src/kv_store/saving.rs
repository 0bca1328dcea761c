//! Writes blocks behind the steps that complete them, and states that are saved at the end of a block.
use std::{
    collections::{HashSet, VecDeque},
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
/// Most blocks that leave the queue in a step, so that running answers do not wait. A step computes fewer.
const SAVED_PER_STEP: usize = 64;

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
    place: BlockPlace,
}

/// Where a block is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlockPlace {
    /// Its number, and that in layers with a window.
    whole: u32,
    windowed: Option<u32>,
}

/// Complete blocks that are only in the cache, the oldest first. Each request whose prompt begins with such blocks
/// completes them again: each place is here once, so that their number is bounded by that of the places.
#[derive(Debug, Default)]
struct UnsavedBlocks {
    list: VecDeque<Unsaved>,
    places: HashSet<BlockPlace>,
}

impl UnsavedBlocks {
    fn has(&self, place: BlockPlace) -> bool {
        self.places.contains(&place)
    }

    fn push(&mut self, unsaved: Unsaved) {
        if self.places.insert(unsaved.place) {
            self.list.push_back(unsaved);
        }
    }

    fn pop(&mut self) -> Option<Unsaved> {
        let unsaved = self.list.pop_front()?;
        self.places.remove(&unsaved.place);
        Some(unsaved)
    }

    /// Removes blocks with one of these numbers, or one of those in layers with a window.
    fn remove(&mut self, whole: &[u32], windowed: &[u32]) {
        self.list.retain(|Unsaved { place, .. }| {
            let is_gone = whole.contains(&place.whole) || place.windowed.is_some_and(|own| windowed.contains(&own));
            if is_gone {
                self.places.remove(place);
            }
            !is_gone
        });
    }
}

/// What a rank saves.
#[derive(Debug)]
pub(super) struct Saving {
    base: LabelBase,
    files: Arc<dyn Files>,
    /// Longest window of the model.
    window: Option<usize>,
    slots: Vec<Progress>,
    unsaved: UnsavedBlocks,
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
        Self { base, files, window: limits.window, slots, unsaved: UnsavedBlocks::default(), writes, waiting }
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
                if index >= first_seen {
                    let windowed = windowed.and_then(|table| table.get(index)).copied();
                    let place = BlockPlace { whole: whole[index], windowed };
                    if !self.unsaved.has(place) && !self.files.has(name) {
                        self.unsaved.push(Unsaved { label, place });
                    }
                }
                self.slots[slot.index()] = Progress { blocks: index + 1, name };
            }
        }
        self.save(shape, memories.cache);
    }

    /// Copies complete blocks to the queue of writes while it has room.
    fn save(&mut self, shape: &Shape, cache: &KvCache) {
        for _ in 0..SAVED_PER_STEP {
            if self.is_over(WAITING_BYTES / 2) {
                return;
            }
            let Some(Unsaved { label, place }) = self.unsaved.pop() else { return };
            if !self.files.has(label.name()) {
                let payload = shape.block(cache, place.whole, place.windowed.unwrap_or_default());
                send(&self.writes, &self.waiting, Write { label, payload });
            }
        }
    }

    /// Forgets blocks whose place gets other keys and values between steps.
    pub(super) fn forget(&mut self, whole: &[u32], windowed: &[u32]) {
        self.unsaved.remove(whole, windowed);
    }

    /// Forgets blocks in whose place a step has written: that of a sequence that ended belongs to another one by now.
    fn drop_overwritten(&mut self, plan: &Plan, sequences: &Sequences) {
        if self.unsaved.list.is_empty() {
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
    use std::sync::mpsc::{Receiver, channel};

    use common::{precision::KvFormat, sampling::SamplingParameters};
    use models::known;
    use topology::{KvBlocks, StateCount, shard::cut_stage};

    use super::*;
    use crate::{
        kv_store::Space,
        plan::{Opened, PlanEntry},
    };

    const LIMITS: Limits = Limits {
        slots: 1,
        blocks: KvBlocks::alike(100),
        window: None,
        context_length: 64,
        vocabulary_length: 10,
        states: StateCount::NONE,
    };

    /// A disk on which nothing arrives.
    #[derive(Debug)]
    struct EmptyDisk;

    impl Files for EmptyDisk {
        fn has(&self, _: Name) -> bool {
            false
        }

        fn finds(&self, _: Name, _: Kind) -> bool {
            false
        }
    }

    /// A rank with one layer, and the queue of what it writes.
    struct SavingRig {
        saving: Saving,
        sequences: Sequences,
        shape: Shape,
        cache: KvCache,
        states: StateCache,
        written: Receiver<Write>,
    }

    impl SavingRig {
        fn new() -> Self {
            let spec = known::MODELS.iter().find(|known| known.name == "tinyllama-1.1b").expect("it is known").spec();
            let plan = cut_stage(&spec, &(0..1), &[1]).expect("one rank has all").remove(0);
            let cache = KvCache::new(KvFormat::F16, &spec, &plan, LIMITS.blocks).expect("there is memory");
            let states = StateCache::none();
            let shape = Shape::of(&plan, &cache, &states, false);
            let base = LabelBase { space: Space::of(&["a model"]), part: [7; 8] };
            let (writes, written) = channel();
            let saving = Saving::new(Arc::new(EmptyDisk), writes, Arc::default(), base, &LIMITS);
            Self { saving, sequences: Sequences::new(LIMITS), shape, cache, states, written }
        }

        fn step(&mut self, plan: &Plan) {
            self.sequences.apply(plan).expect("the plan is valid");
            let memories = Memories { cache: &mut self.cache, states: &mut self.states };
            self.saving.stepped(plan, &self.sequences, &self.shape, &memories);
        }

        /// Number of blocks that were written since the last call.
        fn writes(&self) -> usize {
            self.written.try_iter().count()
        }
    }

    /// A step that computes the tokens of a prompt behind those that are cached in block 0; its last block is `last`.
    fn prompt(cached: u32, last: u32) -> Plan {
        let (slot, sampling) = (Slot(0), SamplingParameters::default());
        let opened = Opened { slot, sampling, cached, prompt: vec![1; 40], grammar: None };
        let entries = (cached..40).map(|position| PlanEntry { slot, position, token: 1, wants_logits: false });
        let blocks = vec![(slot, 0), (slot, last)];
        Plan { opened: vec![opened], blocks, entries: entries.collect(), ..Plan::default() }
    }

    #[test]
    fn block_that_waits_for_the_disk_is_queued_once() {
        let mut rig = SavingRig::new();
        let again = Plan { closed: vec![Slot(0)], ..prompt(32, 2) };
        rig.saving.waiting.store(WAITING_BYTES, Ordering::Relaxed);
        for plan in [&prompt(0, 1), &again, &again] {
            rig.step(plan);
        }
        assert_eq!((rig.saving.unsaved.list.len(), rig.writes()), (1, 0));
        // Other keys and values arrive in its place, and later its own again.
        rig.saving.forget(&[0], &[]);
        rig.step(&again);
        assert_eq!((rig.saving.unsaved.list.len(), rig.writes()), (1, 0));
        rig.saving.waiting.store(0, Ordering::Relaxed);
        rig.saving.save(&rig.shape, &rig.cache);
        assert_eq!(rig.writes(), 1);
        // It was not written after all.
        rig.step(&again);
        assert_eq!((rig.saving.unsaved.list.len(), rig.writes()), (0, 1));
    }

    #[test]
    fn long_queue_leaves_over_several_steps() {
        let mut rig = SavingRig::new();
        let (base, count) = (rig.saving.base, SAVED_PER_STEP as u32 + 10);
        for whole in 0..count {
            let label = base.block(base.space.beginning(), &[whole; KV_BLOCK_LENGTH]);
            rig.saving.unsaved.push(Unsaved { label, place: BlockPlace { whole, windowed: None } });
        }
        let saved = [(); 3].map(|()| {
            rig.saving.save(&rig.shape, &rig.cache);
            rig.writes()
        });
        assert_eq!(saved, [SAVED_PER_STEP, 10, 0]);
    }

    #[test]
    fn state_that_a_later_copy_replaces_is_not_saved_as_that_of_its_slot() {
        assert_eq!(saved_state(&[(0, 9), (0, 10), (1, 9)], 0), Some(10));
        assert_eq!(saved_state(&[(0, 9), (1, 9)], 0), None);
        assert_eq!(saved_state(&[(0, 9), (1, 9)], 1), Some(9));
        assert_eq!(saved_state(&[(0, 9)], 2), None);
    }
}
