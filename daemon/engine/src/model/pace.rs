//! For benchmarks: waits instead of computing, for as long as this rank would compute on the machine of a profile.
//! Messages between the ranks have the same lengths and the same order as with real computation.
use std::time::Instant;

use common::{ids::LayerIndex, precision::KvFormat};
use planner::{
    holding::Holding,
    simulate::{
        Jitter, NodeProfile, Noise,
        costs::{Load, half_layer_ns, output_ns},
    },
};
use telemetry::SyncKind;
use topology::{ShardPlan, sizes::ModelSizes};

use super::{Batch, Shard};
use crate::collective::{Toll, Waits};

/// The machine that a paced rank simulates.
#[derive(Clone, Debug, PartialEq)]
pub struct PacedMachine {
    /// Its step times.
    pub profile: NodeProfile,
    /// Factor on all times.
    pub slow_motion: f64,
    /// From this time on, it runs at this fraction of its speed.
    pub slows: Option<(Instant, f64)>,
}

/// The pacing of a rank.
#[derive(Debug)]
pub struct Pace {
    machine: PacedMachine,
    sizes: ModelSizes,
    plan: ShardPlan,
    kv: KvFormat,
    jitter: Jitter,
    load: Load,
    waits: Waits,
}

impl Pace {
    /// Creates the pacing of a model's rank on a machine. Random extra times are sampled with `seed`.
    pub fn new(
        machine: PacedMachine,
        (sizes, plan, kv): (ModelSizes, ShardPlan, KvFormat),
        (noise, seed): (Noise, u64),
    ) -> Self {
        let jitter = Jitter::new(noise, seed, 0);
        Self { machine, sizes, plan, kv, jitter, load: Load::default(), waits: Waits::default() }
    }

    /// Message costs on this machine.
    pub fn toll(&self) -> Toll {
        let [send, receive] = self.machine.profile.message_ns;
        Toll::new((send + receive) as f64 * self.machine.slow_motion)
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, batch: Batch<'_>) {
        Waits::be_exact();
        let last = |index: usize| batch.tokens.get(index + 1).is_none_or(|next| next.slot != batch.tokens[index].slot);
        let tokens = batch.tokens.iter().enumerate();
        self.load = Load::of(tokens.map(|(index, token)| (token.position, last(index))));
    }

    /// Waits for half a layer.
    pub(super) fn half_layer(&mut self, layer: LayerIndex, kind: SyncKind) {
        let holding = Holding { sizes: &self.sizes, plan: &self.plan };
        let usual = half_layer_ns(&self.machine.profile, &holding, self.kv, layer.0 as usize, kind, self.load);
        self.wait(usual);
    }

    /// The logits of the tokens that want some: each token predicts itself, so that every id is in the vocabulary and
    /// none ends an answer early.
    pub(super) fn output(&mut self, batch: Batch<'_>, shard: &Shard, logits: &mut Vec<f32>) {
        let wanted = batch.tokens.iter().filter(|token| token.wants_logits);
        let rows = &shard.plan.vocabulary;
        for token in wanted.clone() {
            let begin = logits.len();
            logits.resize(begin + rows.len(), 0.0);
            if let Some(row) = (token.token as usize).checked_sub(rows.start).filter(|row| *row < rows.len()) {
                logits[begin + row] = 1.0;
            }
        }
        let count = wanted.count() as u32;
        if count > 0 {
            let holding = Holding { sizes: &self.sizes, plan: &self.plan };
            self.wait(output_ns(&self.machine.profile, &holding, count));
        }
    }

    fn wait(&mut self, usual: u64) {
        let PacedMachine { slow_motion, slows, .. } = &self.machine;
        let speed = slows.as_ref().filter(|(from, _)| Instant::now() >= *from).map_or(1.0, |(_, speed)| *speed);
        self.waits.wait(self.jitter.stretch(usual) as f64 * slow_motion / speed);
    }
}
