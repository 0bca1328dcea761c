//! Engines with a draft model, and pairs of files whose agreement is known: the target model continues a text along a
//! chain of all its tokens, and the draft model leaves that chain after a part of them.
use std::sync::Arc;

use engine::model::{KvCache, Model, Shard, Source};
use gguf::GgufFile;
use kernels::Kernels;
use protocol::message::Generate;
use topology::{KvBlocks, cut_stages};

use crate::{
    engines::{Answer, Replica},
    random::Random,
    tiny_model::VOCABULARY_LENGTH_MIN,
};

/// A chain of tokens: the order in which a model continues any text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Seed of the order.
    pub seed: u64,
    /// Share of the tokens after which the model continues along the chain.
    pub agreement: f32,
}

impl Chain {
    /// For each token of a vocabulary, the token after which it follows. Special tokens and bytes follow themselves.
    pub fn before(&self, vocabulary: usize) -> Vec<usize> {
        let mut random = Random::named(self.seed, "chain");
        let mut order: Vec<usize> = (VOCABULARY_LENGTH_MIN.min(vocabulary)..vocabulary).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, random.below(index + 1));
        }
        let mut before: Vec<usize> = (0..vocabulary).collect();
        for (index, token) in order.iter().enumerate() {
            before[order[(index + 1) % order.len()]] = *token;
        }
        // Exchange the successors of the tokens that leave the chain in a circle.
        let left = (order.len() as f32 * (1.0 - self.agreement)).round() as usize;
        let mut places: Vec<usize> = (0..order.len()).collect();
        for index in 0..left.min(places.len()) {
            places.swap(index, index + random.below(order.len() - index));
        }
        let leaving = &places[..left.min(places.len())];
        for (one, next) in leaving.iter().zip(leaving.iter().cycle().skip(1)) {
            before[order[(next + 1) % order.len()]] = order[*one];
        }
        before
    }
}

impl Replica {
    /// Like [`Replica::answers`], with a draft model.
    ///
    /// # Panics
    /// As [`Replica::answers`], or if the draft model cannot be cut or loaded.
    pub fn answers_drafted(
        &self,
        file: &Arc<GgufFile>,
        draft: &Arc<GgufFile>,
        batches: &[Vec<Generate>],
    ) -> Vec<Vec<Answer>> {
        let mut setups = self.setups(file);
        let spec = models::read(draft).expect("the draft model is valid");
        let stages = [(0..spec.block_count(), vec![1; usize::from(self.ranks)])];
        let plans = cut_stages(&spec, &stages).expect("the draft model can be cut");
        let kernels = Kernels::choose(None).expect("this machine has a kernel table");
        for (setup, plan) in setups.iter_mut().zip(plans) {
            let source = Source {
                file: draft,
                spec: &spec,
                plan: &plan,
                kernels,
                cache: None,
                expert_memory: None,
                is_hollow: false,
                progress: &|_| true,
            };
            let shard = Shard::load(source).expect("the draft model can be loaded");
            let cache = KvCache::new(self.kv, &spec, &plan, KvBlocks::alike(setup.limits.blocks.whole));
            let cache = cache.expect("enough memory");
            let length = spec.context_length;
            setup.draft = Some(Box::new(move |compute| Model::new(shard, cache, compute.clone(), length)));
        }
        self.run(file, setups, batches)
    }
}
