//! Runs the predictor of a file beside its model.
use std::sync::Arc;

use engine::{
    collective::Group,
    model::{Batch, KvCache, Model},
};
use gguf::GgufFile;
use topology::{KvBlocks, Place, cut_stages};

use crate::{engines::shard, ranks::Run};

/// A rank's part of a predictor.
#[derive(Debug)]
pub struct Predicting {
    model: Model,
    /// The state of the target model before the next step `[embedding_length]`.
    before: Vec<f32>,
    /// Those of a step.
    states: Vec<f32>,
}

impl Predicting {
    /// Loads the predictor of `target`, whose file this is, for `blocks` KV blocks.
    ///
    /// # Panics
    /// The file has no predictor, or it cannot be cut or loaded.
    pub fn new(file: &Arc<GgufFile>, target: &Model, place: &Place, blocks: usize, how: &Run) -> Self {
        let spec = models::read_predictor(file, &target.shard().spec).expect("the file has a predictor");
        let plans = cut_stages(&spec, &[(0..1, how.weights.clone())]).expect("the predictor can be cut");
        let plan = &plans[place.rank.index()];
        let shard = shard(file, &spec, plan, target.compute().kernels);
        let cache = KvCache::new(how.kv, &spec, plan, KvBlocks::alike(blocks)).expect("enough memory");
        let model = Model::new(shard, cache, target.compute().clone(), spec.context_length);
        Self { model, before: vec![0.0; spec.embedding_length], states: Vec::new() }
    }

    /// The logits of this rank's vocabulary rows for all tokens of a step that the target model has just computed.
    ///
    /// # Panics
    /// Another rank is lost.
    pub fn step(&mut self, target: &mut Model, batch: Batch<'_>, group: &mut Group) -> Vec<f32> {
        let length = self.before.len();
        target.output_states(&mut self.states);
        let joined = self.model.joined(batch.tokens.len());
        let (first, rest) = joined.split_at_mut(length);
        first.copy_from_slice(&self.before);
        let (all_but_last, last) = self.states.split_at(rest.len());
        rest.copy_from_slice(all_but_last);
        self.before.copy_from_slice(last);
        self.model.forward(batch, group).expect("all ranks run");
        self.model.output_states(&mut self.states);
        target.logits_of(self.states.chunks_exact(length)).to_vec()
    }
}
