//! What a rank's shard and KV cache take in memory, and what of it a step reads: the arithmetic of the daemon's preflight without a
//! file. A test compares the two.
use std::ops::Range;

use super::{
    shard::{CutError, ShardPlan, cut_stages},
    sizes::{LayerFormats, ModelSizes},
    spec::{KV_BLOCK_LENGTH, KvFormat, Topology},
    working::{RankMemory, Seat, working_bytes},
};
use crate::{gguf::BlockFormat, ids::MemberIndex, units::Bytes};

/// Rows of a panel where the machine is not known: those of NEON and AVX2.
pub const PANEL_ROWS: usize = 8;
/// Slices of tensors begin at multiples of this.
const ALIGNMENT: u64 = 4096;

/// What a step reads and multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights, however many tokens the step has.
    pub bytes: u64,
    /// Multiply-adds of one token.
    pub macs: u64,
}

impl Work {
    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, macs: self.macs + other.macs }
    }
}

/// Bytes of a KV cache of `blocks` blocks for `heads_kv` heads.
pub fn kv_bytes(format: KvFormat, layers: usize, blocks: usize, heads_kv: usize, head_length: usize) -> u64 {
    let heads = 2 * layers as u64 * blocks as u64 * (heads_kv * KV_BLOCK_LENGTH) as u64;
    heads * format.head_bytes(head_length) as u64
}

/// Bytes of keys and values that a token reads in one layer for each position before it.
pub fn kv_position_bytes(format: KvFormat, plan: &ShardPlan, head_length: usize) -> u64 {
    2 * (plan.heads_kv.len() * format.head_bytes(head_length)) as u64
}

/// A part of a tensor: its format, rows, and columns that may begin and end inside of a block, which is then held whole.
#[derive(Clone, Debug)]
struct Part {
    format: BlockFormat,
    rows: usize,
    columns: Range<usize>,
    /// Tensors of this kind, of which a token reads some.
    count: usize,
    is_vector: bool,
}

impl Part {
    fn matrix(format: BlockFormat, rows: usize, columns: Range<usize>) -> Self {
        Self { format, rows, columns, count: 1, is_vector: false }
    }

    fn vector(length: usize) -> Self {
        Self { format: BlockFormat::F32, rows: 1, columns: 0..length, count: 1, is_vector: true }
    }

    fn row_bytes(&self) -> u64 {
        let length = self.format.block_length();
        let blocks =
            if self.columns.is_empty() { 0 } else { self.columns.end.div_ceil(length) - self.columns.start / length };
        (blocks * self.format.block_bytes()) as u64
    }

    /// Bytes in memory: rows in panels.
    fn packed(&self, panel_rows: usize) -> u64 {
        let rows = if self.is_vector { self.rows } else { self.rows.next_multiple_of(panel_rows) };
        (self.count * rows) as u64 * self.row_bytes()
    }

    fn work(&self) -> Work {
        let bytes = self.rows as u64 * self.row_bytes();
        Work { bytes, macs: (self.rows * self.columns.len()) as u64 }
    }
}

/// What one rank holds: the parts of its layers and of the output.
#[derive(Clone, Debug)]
pub struct Holding<'a> {
    /// The model.
    pub sizes: &'a ModelSizes,
    /// Its layers and its share of each.
    pub plan: &'a ShardPlan,
}

impl Holding<'_> {
    fn attention_parts(&self, formats: &LayerFormats) -> [Part; 4] {
        let shape = &self.sizes.shape;
        let of = |heads: &Range<usize>| heads.start * shape.head_length..heads.end * shape.head_length;
        let (queries, keys) = (of(&self.plan.heads), of(&self.plan.heads_kv));
        let embedding = 0..shape.embedding_length;
        [
            Part::matrix(formats.query, queries.len(), embedding.clone()),
            Part::matrix(formats.key, keys.len(), embedding.clone()),
            Part::matrix(formats.value, keys.len(), embedding),
            Part::matrix(formats.attention_output, shape.embedding_length, queries),
        ]
    }

    fn feed_forward_parts(&self, formats: &LayerFormats) -> [Part; 3] {
        let embedding = self.sizes.shape.embedding_length;
        let columns = &self.plan.columns;
        let count = self.sizes.shape.experts.map_or(1, |experts| experts.count);
        [
            Part { count, ..Part::matrix(formats.gate, columns.len(), 0..embedding) },
            Part { count, ..Part::matrix(formats.up, columns.len(), 0..embedding) },
            Part { count, ..Part::matrix(formats.down, embedding, columns.clone()) },
        ]
    }

    /// The matrix that chooses experts, whole on every rank.
    fn router_part(&self) -> Option<Part> {
        let embedding = self.sizes.shape.embedding_length;
        self.sizes.shape.experts.map(|experts| Part::matrix(BlockFormat::F32, experts.count, 0..embedding))
    }

    fn output_part(&self) -> Part {
        let rows = if self.plan.is_last_stage(&self.sizes.shape) { self.plan.vocabulary.len() } else { 0 };
        Part::matrix(self.sizes.output, rows, 0..self.sizes.shape.embedding_length)
    }

    /// Norms and biases of a layer.
    fn layer_vectors(&self) -> Vec<Part> {
        let shape = &self.sizes.shape;
        let mut vectors = vec![Part::vector(shape.embedding_length); 2];
        if self.sizes.has_biases {
            let lengths = [self.plan.heads.len(), self.plan.heads_kv.len(), self.plan.heads_kv.len()];
            vectors.extend(lengths.map(|heads| Part::vector(heads * shape.head_length)));
        }
        if shape.architecture.has_head_norms() {
            vectors.extend([Part::vector(shape.head_length), Part::vector(shape.head_length)]);
        }
        vectors
    }

    /// Bytes of the shard in memory, with panels of so many rows.
    pub fn shard_bytes(&self, panel_rows: usize) -> u64 {
        let shape = &self.sizes.shape;
        let mut parts = Vec::new();
        for formats in &self.sizes.layers[self.plan.layers.clone()] {
            parts.extend(self.attention_parts(formats));
            parts.extend(self.router_part());
            parts.extend(self.feed_forward_parts(formats));
            parts.extend(self.layer_vectors());
        }
        parts.push(self.output_part());
        parts.push(Part::vector(shape.embedding_length));
        parts.extend(shape.has_rope_factors.then(|| Part::vector(shape.rope_dimension_count / 2)));
        let end = |bytes: u64, part: &Part| bytes.next_multiple_of(ALIGNMENT) + part.packed(panel_rows.max(1));
        parts.iter().fold(0, end)
    }

    /// All memory of the rank, with panels of `panel_rows` rows and `blocks` KV blocks.
    pub fn memory(&self, panel_rows: usize, (kv, blocks): (KvFormat, usize), seat: &Seat) -> RankMemory {
        let (heads_kv, head_length) = (self.plan.heads_kv.len(), self.sizes.shape.head_length);
        RankMemory {
            weights: Bytes(self.shard_bytes(panel_rows)),
            kv: Bytes(kv_bytes(kv, self.plan.layers.len(), blocks, heads_kv, head_length)),
            state: Bytes(0),
            working: Bytes(working_bytes(self, seat)),
        }
    }

    /// What a token reads and multiplies in the attention's matrices of a layer.
    pub fn attention(&self, layer: usize) -> Work {
        let parts = self.attention_parts(&self.sizes.layers[layer]);
        parts.iter().fold(Work::default(), |sum, part| sum.add(part.work()))
    }

    /// What a step of `tokens` reads in the feed-forward network of a layer, and what each of them multiplies. Of experts, each
    /// token draws its own: `count (1 - (1 - used/count)^tokens)` of them are read if all are as likely.
    pub fn feed_forward(&self, layer: usize, tokens: u32) -> Work {
        let parts = self.feed_forward_parts(&self.sizes.layers[layer]);
        let one = parts.iter().fold(Work::default(), |sum, part| sum.add(part.work()));
        let Some(experts) = self.sizes.shape.experts else { return one };
        let (count, used) = (experts.count as f64, experts.used_count as f64);
        let read = count * (1.0 - (1.0 - used / count).powi(tokens.min(1 << 20) as i32));
        let router = self.router_part().map_or(Work::default(), |part| part.work());
        let macs = one.macs * experts.used_count as u64;
        router.add(Work { bytes: (one.bytes as f64 * read).round() as u64, macs })
    }

    /// What a token that wants logits reads and multiplies.
    pub fn output(&self) -> Work {
        self.output_part().work()
    }
}

/// Memory of each rank of a replica, in order.
///
/// # Errors
/// The model cannot be cut like this.
pub fn of_replica(sizes: &ModelSizes, topology: &Topology, replica: u16) -> Result<Vec<RankMemory>, CutError> {
    let plans = cut_stages(&sizes.shape, &topology.stages(replica))?;
    let kv = (topology.kv, topology.kv_block_count());
    let memory = |(index, plan)| {
        let seat = Seat::of(topology, &topology.place(MemberIndex(index as u16)));
        Holding { sizes, plan }.memory(PANEL_ROWS, kv, &seat)
    };
    Ok(topology.layout.members(replica).zip(&plans).map(memory).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{cut, sizes::Quantisation};

    /// Bytes that a token reads on a lone rank.
    fn read(name: &str, quantisation: Quantisation) -> f64 {
        let sizes = ModelSizes::known(name, quantisation).expect("it is known");
        let plans = cut(&sizes.shape, &[1]).expect("one rank holds all");
        let holding = Holding { sizes: &sizes, plan: &plans[0] };
        let layer = |layer: usize| holding.attention(layer).bytes + holding.feed_forward(layer, 1).bytes;
        ((0..sizes.shape.block_count).map(layer).sum::<u64>() + holding.output().bytes) as f64 / 1e9
    }

    #[test]
    fn a_token_reads_what_published_files_weigh_without_the_embedding() {
        // Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf is 4.92 GB with 0.30 GB of embedding; Q8_0 is 8.54 with 0.56.
        for (name, quantisation, gigabytes) in [
            ("llama-3.1-8b", Quantisation::Q4KM, 4.62),
            ("llama-3.1-8b", Quantisation::Q8_0, 7.98),
            ("llama-3.1-8b", Quantisation::Q4_0, 4.36),
            ("llama-2-7b", Quantisation::Q4_0, 3.75),
        ] {
            let found = read(name, quantisation);
            assert!((found / gigabytes - 1.0).abs() < 0.01, "{name} {quantisation}: {found}");
        }
        let mixture = read("qwen3-30b-a3b", Quantisation::Q4_0);
        assert!((1.6..2.0).contains(&mixture), "3.3 thousand million weights at work, {mixture} GB");
    }

    #[test]
    fn a_batch_reads_each_chosen_expert_once_and_at_most_all() {
        let sizes = ModelSizes::known("qwen3-30b-a3b", Quantisation::Q4_0).expect("it is known");
        let plans = cut(&sizes.shape, &[1; 4]).expect("four ranks hold some columns each");
        let holding = Holding { sizes: &sizes, plan: &plans[0] };
        let bytes = |tokens| holding.feed_forward(0, tokens).bytes;
        assert!(bytes(2) < 2 * bytes(1) && bytes(128) > 12 * bytes(1) && bytes(10_000) < 17 * bytes(1));
    }

    #[test]
    fn ranks_hold_the_model_once_but_for_norms_and_padding() {
        let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q4_0).expect("it is known");
        let whole = |world: usize| {
            let plans = cut(&sizes.shape, &vec![1; world]).expect("it can be cut");
            let bytes = |plan: &ShardPlan| Holding { sizes: &sizes, plan }.shard_bytes(PANEL_ROWS);
            plans.iter().map(bytes).sum::<u64>() as f64
        };
        assert!((whole(8) / whole(1) - 1.0).abs() < 0.01, "{} {}", whole(8), whole(1));
    }
}
