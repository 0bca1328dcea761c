//! The store of a rank: what it saves behind its steps, and what it loads between them.
use std::sync::Arc;

use common::limits::KV_BLOCK_LENGTH;

use super::{
    label::{Kind, LabelBase},
    loading::Loading,
    name::Space,
    order::{LoadId, LoadStatus, StoreOrder},
    part::Part,
    port::{Disk, Files},
    saving::Saving,
    shape::Shape,
};
use crate::{
    model::{Memories, Model},
    plan::{Limits, Plan, Sequences},
};

/// The store of a rank. The default stores nothing.
#[derive(Debug, Default)]
pub struct KvStore(Option<RankStore>);

#[derive(Debug)]
struct RankStore {
    files: Arc<dyn Files>,
    space: Space,
    shape: Shape,
    saving: Saving,
    loading: Loading,
}

impl KvStore {
    /// The store of a rank with this model on a disk. Nothing is stored of a model whose tokens attend to later ones.
    pub fn new(disk: Disk, space: Space, model: &mut Model, limits: &Limits) -> Self {
        if !model.shard().spec.generates() {
            return Self::default();
        }
        let plan = model.shard().plan.clone();
        let Memories { cache, states } = model.memories();
        let shape = Shape::of(&plan, cache, states, limits.states.all() > 0);
        let Disk { files, writes, waiting, reads, found } = disk;
        let base = LabelBase { space, part: Part::of(&plan).hash() };
        let saving = Saving::new(Arc::clone(&files), writes, waiting, base, limits);
        let loading = Loading::new(reads, found, base);
        Self(Some(RankStore { files, space, shape, saving, loading }))
    }

    /// Whether anything is being read.
    pub fn is_busy(&self) -> bool {
        self.0.as_ref().is_some_and(|store| store.loading.is_busy())
    }

    /// How many tokens at the beginning of a prompt this rank can read, in whole blocks, and so that a sequence can
    /// continue behind them. The last token of a prompt never counts: its logits are needed.
    pub fn stored(&self, prompt: &[u32]) -> usize {
        let Some(RankStore { files, space, shape, .. }) = &self.0 else { return 0 };
        let (blocks, _) = prompt[..prompt.len().saturating_sub(1)].as_chunks::<KV_BLOCK_LENGTH>();
        let (mut name, mut stored) = (space.beginning(), 0);
        for (index, tokens) in blocks.iter().enumerate() {
            name = name.then(tokens);
            // A rank without keys and values has empty blocks, too.
            if !files.finds(name, Kind::Block) {
                break;
            }
            if !shape.has_states || files.finds(name.state(), Kind::State) {
                stored = (index + 1) * KV_BLOCK_LENGTH;
            }
        }
        stored
    }

    /// Executes an order of the head; false if it is invalid.
    pub fn execute(&mut self, order: &StoreOrder) -> bool {
        // A rank without a store has nothing.
        let Some(store) = &mut self.0 else { return true };
        if let Some(wanted) = order.wanted() {
            store.saving.forget(wanted.whole, wanted.windowed.1);
        }
        store.loading.execute(order, &store.shape)
    }

    /// Forgets complete blocks in whose place other keys and values arrive.
    pub fn forget(&mut self, whole: &[u32], windowed: &[u32]) {
        if let Some(store) = &mut self.0 {
            store.saving.forget(whole, windowed);
        }
    }

    /// Status of a load on this rank.
    pub fn status(&self, load: LoadId) -> LoadStatus {
        self.0.as_ref().map_or(LoadStatus::NOTHING, |store| store.loading.status(load))
    }

    /// Stores files that were read in the memory of the rank; returns whether there was anything.
    pub fn step(&mut self, mut memories: Memories<'_>) -> bool {
        self.0.as_mut().is_some_and(|store| store.loading.step(&store.shape, &mut memories))
    }

    /// Stores what a step completed: `plan` was applied to `sequences`, and its tokens are computed.
    pub fn stepped(&mut self, plan: &Plan, sequences: &Sequences, memories: Memories<'_>) {
        if let Some(store) = &mut self.0 {
            store.saving.stepped(plan, sequences, &store.shape, &memories);
        }
    }
}
