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
use crate::collective::{Toll, Waits, WorkCounter};

/// Longest wait that counts as one piece of work.
const PIECE_NS: f64 = 1e9;

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

/// What a paced rank pretends to compute.
#[derive(Debug)]
pub struct PacedShard {
    /// Sizes of the model.
    pub sizes: ModelSizes,
    /// The rank's part of it.
    pub plan: ShardPlan,
    /// Format of its KV cache.
    pub kv: KvFormat,
}

impl PacedShard {
    fn holding(&self) -> Holding<'_> {
        Holding { sizes: &self.sizes, plan: &self.plan }
    }
}

/// The pacing of a rank.
#[derive(Debug)]
pub struct Pace {
    machine: PacedMachine,
    shard: PacedShard,
    jitter: Jitter,
    load: Load,
    waits: Waits,
    work: WorkCounter,
}

impl Pace {
    /// Creates the pacing of a model's rank on a machine. Random extra times are sampled with `seed`.
    pub fn new(machine: PacedMachine, shard: PacedShard, noise: Noise, seed: u64) -> Self {
        let jitter = Jitter::new(noise, seed, 0);
        let (load, waits, work) = (Load::default(), Waits::default(), WorkCounter::default());
        Self { machine, shard, jitter, load, waits, work }
    }

    /// Counts waits as work of an engine: a machine in slow motion does not stall.
    pub(super) fn report_to(&mut self, work: &WorkCounter) {
        self.work = work.clone();
    }

    /// Message costs on this machine.
    pub fn toll(&self) -> Toll {
        let [send, receive] = self.machine.profile.message_ns;
        Toll::new((send + receive) as f64 * self.machine.slow_motion)
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, batch: Batch<'_>) {
        Waits::be_exact();
        let tokens = batch.tokens.iter().enumerate().map(|(index, token)| {
            let is_last = batch.tokens.get(index + 1).is_none_or(|next| next.slot != token.slot);
            (token.position, is_last)
        });
        self.load = Load::of(tokens);
    }

    /// Waits for half a layer.
    pub(super) fn half_layer(&mut self, layer: LayerIndex, kind: SyncKind) {
        let usual = half_layer_ns(
            &self.machine.profile,
            &self.shard.holding(),
            self.shard.kv,
            layer.0 as usize,
            kind,
            self.load,
        );
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
            self.wait(output_ns(&self.machine.profile, &self.shard.holding(), count));
        }
    }

    fn wait(&mut self, usual: u64) {
        let PacedMachine { slow_motion, slows, .. } = &self.machine;
        let speed = slows.as_ref().filter(|(from, _)| Instant::now() >= *from).map_or(1.0, |(_, speed)| *speed);
        let mut left = self.jitter.stretch(usual) as f64 * slow_motion / speed;
        while left > PIECE_NS {
            self.waits.wait(PIECE_NS);
            self.work.advance();
            left -= PIECE_NS;
        }
        self.waits.wait(left);
    }
}
