//! Memory of a rank's shard and KV cache, and the part of it that a step reads: the arithmetic of the daemon's
//! preflight without a file. A test compares the two.
use common::{limits::KV_BLOCK_LENGTH, precision::KvFormat};
use gguf::BlockFormat;
use models::{ExpertsSpec, ModelSpec, Part, TensorRole, TensorSpec};
use topology::{
    KvBlocks, StateCount,
    shard::{ShardPlan, TensorPart},
    sizes::ModelSizes,
};

/// Rows in a panel if the machine is unknown: the value of NEON and AVX2.
pub const PANEL_ROWS: usize = 8;

/// Slices of tensors start at multiples of this.
const ALIGNMENT: u64 = 4096;

/// Reads and multiply-adds of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights, independent of the number of tokens in the step.
    pub bytes: u64,
    /// Multiply-adds per token.
    pub macs: u64,
}

impl Work {
    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, macs: self.macs + other.macs }
    }
}

/// Bytes of the KV cache of a rank.
pub fn kv_bytes(format: KvFormat, spec: &ModelSpec, plan: &ShardPlan, blocks: KvBlocks) -> u64 {
    let bytes = plan.layers.clone().map(|layer| {
        let positions = blocks.in_layer(spec.layer(layer)) * KV_BLOCK_LENGTH;
        positions as u64 * kv_position_bytes(format, spec, plan, layer)
    });
    bytes.sum()
}

/// Bytes of keys and values that a token reads in a layer for each position that it sees.
pub fn kv_position_bytes(format: KvFormat, spec: &ModelSpec, plan: &ShardPlan, layer: usize) -> u64 {
    let heads = plan.cut_of(spec, layer).heads_kv.len();
    let bytes = spec.layer(layer).mixer.kv_heads().map_or(0, |of_head| {
        let values = if of_head.has_values { format.head_bytes(of_head.value_length) } else { 0 };
        format.head_bytes(of_head.key_length) + values
    });
    (heads * bytes) as u64
}

/// Bytes of a rank's states for so many slots.
pub fn state_bytes(spec: &ModelSpec, plan: &ShardPlan, slots: usize) -> u64 {
    StateCount::in_model(spec, slots).floats(spec, plan) * size_of::<f32>() as u64
}

/// What a rank holds of a tensor; a block that the column range cuts is held whole.
#[derive(Clone, Debug)]
struct Held {
    tensor: TensorSpec,
    format: BlockFormat,
    part: TensorPart,
}

impl Held {
    fn row_bytes(&self) -> u64 {
        let length = self.format.block_length();
        let blocks = self.part.columns.iter().map(|range| range.end.div_ceil(length) - range.start / length);
        (blocks.sum::<usize>() * self.format.block_bytes()) as u64
    }

    /// Bytes in memory, with rows in panels.
    fn packed(&self, panel_rows: usize) -> u64 {
        let rows = self.part.rows.len();
        let rows = if self.tensor.is_vector { rows } else { rows.next_multiple_of(panel_rows) };
        (self.part.matrices.len() * rows) as u64 * self.row_bytes()
    }

    /// Work with its matrices, or with those of one expert; vectors are not counted.
    fn work(&self) -> Work {
        if self.tensor.is_vector {
            return Work::default();
        }
        let matrices = if self.tensor.role.is_per_expert() { 1 } else { self.part.matrices.len() };
        let rows = matrices * self.part.rows.len();
        Work { bytes: rows as u64 * self.row_bytes(), macs: (rows * self.part.columns.len()) as u64 }
    }
}

/// The shard of one rank: the parts of its layers and of the output.
#[derive(Clone, Debug)]
pub struct Holding<'a> {
    /// The model.
    pub sizes: &'a ModelSizes,
    /// Its layers and its share of each.
    pub plan: &'a ShardPlan,
}

impl Holding<'_> {
    /// The rank's parts of a layer's tensors.
    fn layer(&self, layer: usize) -> impl Iterator<Item = Held> {
        let cut = self.plan.cut_of(&self.sizes.spec, layer);
        let tensors = self.sizes.layer_tensors(layer);
        tensors.filter_map(|(tensor, format)| Some(Held { part: cut.part(&tensor)?, tensor, format }))
    }

    /// The rank's parts of the tensors outside the layers; the output matrix only in the last stage.
    fn outside(&self) -> impl Iterator<Item = Held> {
        let has_output = self.plan.is_last_stage(&self.sizes.spec);
        let tensors =
            self.sizes.outside_tensors().filter(move |(tensor, _)| has_output || tensor.role != TensorRole::Output);
        tensors.filter_map(|(tensor, format)| Some(Held { part: self.plan.part(&tensor)?, tensor, format }))
    }

    /// Bytes of the shard in memory, with panels of this many rows.
    pub fn shard_bytes(&self, panel_rows: usize) -> u64 {
        let layers = self.plan.layers.clone().flat_map(|layer| self.layer(layer));
        let parts = layers.chain(self.outside());
        parts.fold(0, |bytes, held| bytes.next_multiple_of(ALIGNMENT) + held.packed(panel_rows.max(1)))
    }

    /// Reads and multiply-adds of a token in the attention matrices of a layer; in the first layer of the stage also in
    /// those before the layers.
    pub fn attention(&self, layer: usize) -> Work {
        let before =
            self.outside().filter(|held| layer == self.plan.layers.start && held.tensor.role.part() == Part::Input);
        let parts = self.layer(layer).filter(|held| held.tensor.role.part() == Part::Mixer);
        before.chain(parts).fold(Work::default(), |sum, held| sum.add(held.work()))
    }

    /// Reads of a step of `tokens` tokens in the feed-forward network of a layer, and multiply-adds per token. Each
    /// token selects its own experts: `count (1 - (1 - used/count)^tokens)` of them are read if all are equally likely.
    /// If ranks hold blocks of some experts, it is the work of the rank that happens to have most.
    pub fn feed_forward(&self, layer: usize, tokens: u32) -> Work {
        let (mut one, mut all) = (Work::default(), Work::default());
        for held in self.layer(layer).filter(|held| held.tensor.role.part() == Part::FeedForward) {
            let sum = if held.tensor.role.is_per_expert() { &mut one } else { &mut all };
            *sum = sum.add(held.work());
        }
        let Some(experts) = self.sizes.spec.layer(layer).feed_forward.experts() else { return all.add(one) };
        let (count, used) = (experts.count as f64, experts.used_count as f64);
        let (held, excess) = match &self.plan.cut_of(&self.sizes.spec, layer).experts {
            Some(parts) => (parts.len() as f64, excess(experts, parts.len(), tokens)),
            None => (count, 1.0),
        };
        let read = held * (1.0 - (1.0 - used / count).powi(tokens.min(1 << 20) as i32)) * excess;
        let macs = one.macs as f64 * used * held / count * excess;
        all.add(Work { bytes: (one.bytes as f64 * read).round() as u64, macs: macs.round() as u64 })
    }

    /// Reads and multiply-adds of a token whose logits are needed.
    pub fn output(&self) -> Work {
        let output = self.outside().filter(|held| held.tensor.role == TensorRole::Output);
        output.fold(Work::default(), |sum, held| sum.add(held.work()))
    }

    /// Formats of the matrices in the layers of the rank.
    pub fn formats(&self) -> impl Iterator<Item = BlockFormat> {
        let layers = self.plan.layers.clone().flat_map(|layer| self.sizes.layer_tensors(layer));
        layers.filter(|(tensor, _)| !tensor.is_float).map(|(_, format)| format)
    }
}

/// How much more than the average of all ranks the one has to do that holds most of the chosen experts, if each holds
/// blocks of this many experts: a token's share of a rank is binomial, and the most of some normal numbers with this
/// deviation is expected (Blom 1958).
fn excess(experts: &ExpertsSpec, held: usize, tokens: u32) -> f64 {
    let (count, used) = (experts.count as f64, experts.used_count as f64);
    let part = held as f64 / count;
    let ranks = (experts.columns / experts.block.max(1)) as f64 / part;
    let deviation = (used * part * (1.0 - part) / f64::from(tokens.max(1))).sqrt();
    // Within 0.03 for 2 to 16 ranks.
    let most = 0.78 * ranks.ln().max(0.0).powf(0.8);
    (1.0 + most * deviation / (used * part)).min(1.0 / part)
}

#[cfg(test)]
mod tests {
    use topology::{cut, sizes::Quantisation};

    use super::*;

    fn expert_bytes(sizes: &ModelSizes, plan: &ShardPlan) -> u64 {
        let holding = Holding { sizes, plan };
        let parts = (0..sizes.spec.block_count()).flat_map(|layer| holding.layer(layer));
        parts.filter(|held| held.tensor.role.is_per_expert()).map(|held| held.packed(PANEL_ROWS)).sum()
    }

    #[test]
    fn narrow_experts_take_a_fair_share_of_every_ranks_memory() {
        for name in ["qwen3-30b-a3b", "qwen3.5-35b-a3b"] {
            let sizes = ModelSizes::known(name, Quantisation::Q4KM).expect("it is known");
            let all = expert_bytes(&sizes, &cut(&sizes.spec, &[1]).expect("one rank has all")[0]);
            for weights in [vec![1; 4], vec![1; 5], vec![1; 6], vec![1; 8], vec![3, 3, 2, 4, 4]] {
                let total: u32 = weights.iter().sum();
                let plans = cut(&sizes.spec, &weights).expect("there are enough experts");
                for (plan, weight) in plans.iter().zip(&weights) {
                    let part = expert_bytes(&sizes, plan) as f64 / all as f64 * f64::from(total) / f64::from(*weight);
                    assert!((0.97..=1.1).contains(&part), "{name} on {weights:?}: {part} of its share");
                }
                for expert in 0..2 {
                    let parts =
                        plans.iter().flat_map(|plan| plan.cuts[0].experts.as_ref().expect("they are dealt out"));
                    let mut first: Vec<usize> =
                        parts.filter(|part| part.expert == expert).map(|part| part.first).collect();
                    first.sort_unstable();
                    let columns = sizes.spec.layer(0).feed_forward.columns();
                    assert_eq!(first, (0..columns).step_by(256).collect::<Vec<_>>(), "{name}: every block once");
                }
            }
        }
    }

    #[test]
    fn the_rank_with_most_of_the_chosen_experts_is_foreseen() {
        for (name, ranks) in
            [("qwen3-30b-a3b", 4), ("qwen3-30b-a3b", 8), ("qwen3.5-35b-a3b", 4), ("qwen3.5-35b-a3b", 8)]
        {
            let sizes = ModelSizes::known(name, Quantisation::Q4KM).expect("it is known");
            let plans = cut(&sizes.spec, &vec![1; ranks]).expect("there are enough experts");
            let experts = sizes.spec.layer(0).feed_forward.experts().expect("it has some");
            let held = plans.iter().map(|plan| plan.cuts[0].experts.as_ref().expect("they are dealt out"));
            let held: Vec<Vec<usize>> = held.map(|parts| parts.iter().map(|part| part.expert).collect()).collect();
            let (mut seed, mut all, draws) = (1_u64, 0, 3000);
            for _ in 0..draws {
                let mut chosen = Vec::new();
                while chosen.len() < experts.used_count {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let expert = (seed >> 33) as usize % experts.count;
                    chosen.extend((!chosen.contains(&expert)).then_some(expert));
                }
                let of_ranks = held.iter().map(|held| held.iter().filter(|expert| chosen.contains(expert)).count());
                all += of_ranks.max().unwrap_or(0);
            }
            let most = all as f64 / f64::from(draws);
            let mean = (experts.used_count * held[0].len()) as f64 / experts.count as f64;
            let found = mean * excess(experts, held[0].len(), 1);
            println!(
                "{name} on {ranks} ranks: {most:.2} blocks on the busiest, {mean:.2} on average, {found:.2} foreseen"
            );
            assert!((found / most - 1.0).abs() < 0.08, "{name} on {ranks}: {found} instead of {most}");
        }
    }
}
