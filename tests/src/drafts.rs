//! Engines with a draft model.
use std::sync::Arc;

use engine::model::{KvCache, Model};
use gguf::GgufFile;
use kernels::Kernels;
use models::ModelSpec;
use protocol::message::Generate;
use topology::{KvBlocks, cut_stages};

use crate::engines::{Answer, Replica, shard};

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
        self.drafted_by(file, (draft, models::read(draft).expect("the draft model is valid")), batches)
    }

    /// Like [`Replica::answers`], with the predictor of the model's own file.
    ///
    /// # Panics
    /// As [`Replica::answers`], or if the file has no predictor that can be run.
    pub fn answers_predicted(&self, file: &Arc<GgufFile>, batches: &[Vec<Generate>]) -> Vec<Vec<Answer>> {
        let spec = models::read(file).expect("the model is valid");
        let spec = models::read_predictor(file, &spec).expect("it has a predictor");
        self.drafted_by(file, (file, spec), batches)
    }

    fn drafted_by(
        &self,
        file: &Arc<GgufFile>,
        draft: (&Arc<GgufFile>, ModelSpec),
        batches: &[Vec<Generate>],
    ) -> Vec<Vec<Answer>> {
        let (mut setups, (draft, spec)) = (self.setups(file), draft);
        let stages = [(0..spec.block_count(), vec![1; usize::from(self.ranks)])];
        let plans = cut_stages(&spec, &stages).expect("the draft model can be cut");
        let kernels = Kernels::choose(None).expect("this machine has a kernel table");
        for (setup, plan) in setups.iter_mut().zip(plans) {
            let shard = shard(draft, &spec, &plan, kernels);
            let cache = KvCache::new(self.kv, &spec, &plan, KvBlocks::alike(setup.limits.blocks.whole));
            let cache = cache.expect("enough memory");
            let length = spec.context_length;
            setup.draft = Some(Box::new(move |compute| Model::new(shard, cache, compute.clone(), length)));
        }
        self.run(file, setups, batches)
    }
}
