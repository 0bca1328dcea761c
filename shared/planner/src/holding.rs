//! Memory of a rank's shard and KV cache, and the part of it that a step reads: the arithmetic of the daemon's
//! preflight without a file. A test compares the two.
use std::ops::Range;

use common::{limits::KV_BLOCK_LENGTH, precision::KvFormat};
use gguf::BlockFormat;
use topology::{
    shard::ShardPlan,
    sizes::{LayerFormats, ModelSizes},
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

/// Bytes of a KV cache of `blocks` blocks for `heads_kv` heads.
pub fn kv_bytes(format: KvFormat, layers: usize, blocks: usize, heads_kv: usize, head_length: usize) -> u64 {
    let heads = 2 * layers as u64 * blocks as u64 * (heads_kv * KV_BLOCK_LENGTH) as u64;
    heads * format.head_bytes(head_length) as u64
}

/// Bytes of keys and values that a token reads in one layer for each previous position.
pub fn kv_position_bytes(format: KvFormat, plan: &ShardPlan, head_length: usize) -> u64 {
    2 * (plan.heads_kv.len() * format.head_bytes(head_length)) as u64
}

/// A part of a tensor: its format, rows, and columns; a block that the column range cuts is held whole.
#[derive(Clone, Debug)]
struct Part {
    format: BlockFormat,
    rows: usize,
    columns: Range<usize>,
    /// Number of tensors of this kind, of which a token reads some.
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

    /// Bytes in memory, with rows in panels.
    fn packed(&self, panel_rows: usize) -> u64 {
        let rows = if self.is_vector { self.rows } else { self.rows.next_multiple_of(panel_rows) };
        (self.count * rows) as u64 * self.row_bytes()
    }

    fn work(&self) -> Work {
        let bytes = self.rows as u64 * self.row_bytes();
        Work { bytes, macs: (self.rows * self.columns.len()) as u64 }
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

    /// The router matrix, which every rank holds whole.
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

    /// Bytes of the shard in memory, with panels of this many rows.
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
        parts.iter().fold(0, |bytes, part| bytes.next_multiple_of(ALIGNMENT) + part.packed(panel_rows.max(1)))
    }

    /// Reads and multiply-adds of a token in the attention matrices of a layer.
    pub fn attention(&self, layer: usize) -> Work {
        let parts = self.attention_parts(&self.sizes.layers[layer]);
        parts.iter().fold(Work::default(), |sum, part| sum.add(part.work()))
    }

    /// Reads of a step of `tokens` tokens in the feed-forward network of a layer, and multiply-adds per token. Each
    /// token selects its own experts: `count (1 - (1 - used/count)^tokens)` of them are read if all are equally likely.
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

    /// Reads and multiply-adds of a token whose logits are needed.
    pub fn output(&self) -> Work {
        self.output_part().work()
    }
}
