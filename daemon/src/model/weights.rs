//! The weights that one rank holds. Whole rows stay in the mapped file; columns that are cut out of rows are copied once,
//! in the file's own format and scales: nothing is re-quantised.
use std::{ops::Range, sync::Arc};

use rayon::prelude::*;
use shared::{
    gguf::{BlockFormat, GgufFile, Shape, Tensor},
    topology::ShardPlan,
};

use crate::kernels::{Kernels, MatrixRows};

/// Why a shard could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file changed between checking and loading.
    #[error("tensor {0} is not in the file any more; do not replace a model while it is loaded")]
    Missing(String),
    /// The assignment was given up.
    #[error("the load was cancelled")]
    Cancelled,
}

/// A weight matrix, or the rows or columns of it that this rank holds: `[rows, columns]`.
#[derive(Debug)]
pub struct Matrix {
    /// Format of its blocks.
    pub format: BlockFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    row_bytes: usize,
    /// Blocks of 32 columns at the start of each row that belong to the rank before.
    skip: usize,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Mapped { file: Arc<GgufFile>, split: usize, range: Range<usize> },
    Owned(Vec<u8>),
}

impl Matrix {
    /// Rows of a tensor, used in place.
    pub fn of_rows(file: &Arc<GgufFile>, tensor: &Tensor<'_>, rows: Range<usize>) -> Self {
        let row_bytes = tensor.row_bytes();
        let range = tensor.offset + rows.start * row_bytes..tensor.offset + rows.end * row_bytes;
        let storage = Storage::Mapped { file: Arc::clone(file), split: tensor.split, range };
        let (format, columns) = (tensor.format, tensor.columns());
        Self { format, rows: rows.len(), columns, row_bytes, skip: 0, storage }
    }

    /// Columns of a tensor, cut at multiples of 32. A super-block across a cut is taken whole: both ranks hold it.
    pub fn of_columns(file: &Arc<GgufFile>, tensor: &Tensor<'_>, columns: Range<usize>) -> Self {
        if columns.len() == tensor.columns() {
            return Self::of_rows(file, tensor, 0..tensor.rows());
        }
        let (format, rows) = (tensor.format, tensor.rows());
        let blocks = columns.start / format.block_length()..columns.end.div_ceil(format.block_length());
        let bytes = blocks.start * format.block_bytes()..blocks.end * format.block_bytes();
        let skip = (columns.start - blocks.start * format.block_length()) / 32;
        let row_bytes = if columns.is_empty() { 0 } else { bytes.len() };
        let all = file.slice(tensor.split, tensor.offset..tensor.offset + tensor.byte_length);
        let mut owned = Vec::with_capacity(rows * row_bytes);
        if row_bytes > 0 {
            all.chunks_exact(tensor.row_bytes()).for_each(|row| owned.extend_from_slice(&row[bytes.clone()]));
        }
        Self { format, rows, columns: columns.len(), row_bytes, skip, storage: Storage::Owned(owned) }
    }

    /// The matrix as kernels take it.
    pub fn view(&self) -> MatrixRows<'_> {
        let (format, row_bytes, skip) = (self.format, self.row_bytes, self.skip);
        let (rows, columns) = (self.rows, self.columns);
        MatrixRows { format, bytes: self.bytes(), row_stride: row_bytes, row_bytes, skip, rows, columns }
    }

    /// One row as f32; `out` is `[columns]`.
    pub fn row(&self, kernels: &Kernels, row: usize, out: &mut [f32]) {
        let bytes = &self.bytes()[row * self.row_bytes..][..self.row_bytes];
        kernels.dequantise_row(self.format, bytes, out);
    }

    /// Bytes that it holds, mapped or copied.
    pub fn byte_length(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Reads every page once, so that the first token does not wait for the disk.
    fn touch(&self) -> u64 {
        // The sum must be used, or the reads are optimised away.
        self.bytes().iter().step_by(4096).fold(0, |sum, byte| sum ^ u64::from(*byte))
    }

    fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Mapped { file, split, range } => file.slice(*split, range.clone()),
            Storage::Owned(bytes) => bytes,
        }
    }
}

/// A layer's weights on this rank. Norms and biases are whole where every rank needs them.
#[derive(Debug)]
pub struct Layer {
    /// `[embedding_length]`
    pub attention_norm: Vec<f32>,
    /// Query, key and value `[heads * head_length, embedding_length]` with their biases.
    pub query: Matrix,
    /// Key rows of this rank's KV heads.
    pub key: Matrix,
    /// Value rows of this rank's KV heads.
    pub value: Matrix,
    /// Biases of query, key and value; empty where the model has none.
    pub biases: [Vec<f32>; 3],
    /// `[head_length]` norms of each head of query and key; empty where the model has none.
    pub head_norms: [Vec<f32>; 2],
    /// `[embedding_length, heads * head_length]`
    pub attention_output: Matrix,
    /// `[embedding_length]`
    pub feed_forward_norm: Vec<f32>,
    /// `[columns, embedding_length]`
    pub gate: Matrix,
    /// `[columns, embedding_length]`
    pub up: Matrix,
    /// `[embedding_length, columns]`
    pub down: Matrix,
}

/// All weights of one rank.
#[derive(Debug)]
pub struct Shard {
    /// The model's hyper-parameters.
    pub shape: Shape,
    /// What of it this rank holds.
    pub plan: ShardPlan,
    /// `[vocabulary, embedding_length]`, read one row at a time.
    pub embedding: Matrix,
    /// The layers.
    pub layers: Vec<Layer>,
    /// `[embedding_length]`
    pub output_norm: Vec<f32>,
    /// `[vocabulary rows of this rank, embedding_length]`
    pub output: Matrix,
    /// `rope_freqs.weight`, if the file has it.
    pub rope_factors: Option<Vec<f32>>,
}

/// Bytes of weights that a rank holds, from the tensor table alone: what the memory preflight asks before loading.
pub fn shard_bytes(file: &GgufFile, shape: &Shape, plan: &ShardPlan) -> u64 {
    let share = |tensor: Tensor<'_>| {
        let name = tensor.name.rsplit_once("blk.").map_or(tensor.name, |(_, name)| name);
        let part = |held: usize, whole: usize| tensor.byte_length as u64 * held as u64 / whole.max(1) as u64;
        let is = |kind: &str| name.contains(kind);
        match () {
            () if is("attn_q.") || is("attn_output.") => part(plan.heads.len(), shape.head_count),
            () if is("attn_k.") || is("attn_v.") => part(plan.heads_kv.len(), shape.head_count_kv),
            () if is("ffn_gate.") || is("ffn_up.") || is("ffn_down.") => {
                part(plan.columns.len(), shape.feed_forward_length)
            }
            () if name == "output.weight" => part(plan.vocabulary.len(), shape.vocabulary_length),
            // Rows are read one at a time; of a tied matrix this rank's part of the vocabulary stays resident.
            () if is("token_embd") && shape.tied_output => part(plan.vocabulary.len(), shape.vocabulary_length),
            () if is("token_embd") => 0,
            () => tensor.byte_length as u64,
        }
    };
    file.tensors().map(share).sum()
}

impl Shard {
    /// Loads the slices of one rank, layers in parallel. `progress` is told the bytes of each part that is done and says
    /// whether to go on.
    ///
    /// # Errors
    /// A tensor vanished, or `progress` said no.
    pub fn load(
        file: &Arc<GgufFile>,
        shape: &Shape,
        plan: &ShardPlan,
        progress: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Self, LoadError> {
        let source = Source { file, shape, plan };
        let layers = (0..shape.block_count).into_par_iter().map(|layer| {
            let layer = source.layer(layer)?;
            if progress(layer.touch()) { Ok(layer) } else { Err(LoadError::Cancelled) }
        });
        let layers = layers.collect::<Result<Vec<_>, LoadError>>()?;
        let output = if shape.tied_output { "token_embd.weight" } else { "output.weight" };
        let output = Matrix::of_rows(file, &source.tensor(output)?, plan.vocabulary.clone());
        output.touch();
        progress(output.byte_length());
        let embedding = source.tensor("token_embd.weight")?;
        Ok(Self {
            shape: shape.clone(),
            plan: plan.clone(),
            embedding: Matrix::of_rows(file, &embedding, 0..embedding.rows()),
            layers,
            output_norm: source.vector("output_norm.weight")?,
            output,
            rope_factors: shape.has_rope_factors.then(|| source.vector("rope_freqs.weight")).transpose()?,
        })
    }
}

impl Layer {
    /// Touches all matrices; returns their bytes.
    fn touch(&self) -> u64 {
        let matrices = [&self.query, &self.key, &self.value, &self.attention_output, &self.gate, &self.up, &self.down];
        std::hint::black_box(matrices.iter().fold(0, |sum, matrix| sum ^ matrix.touch()));
        matrices.iter().map(|matrix| matrix.byte_length()).sum()
    }
}

/// Where the slices of one rank come from.
struct Source<'a> {
    file: &'a Arc<GgufFile>,
    shape: &'a Shape,
    plan: &'a ShardPlan,
}

impl Source<'_> {
    fn layer(&self, layer: usize) -> Result<Layer, LoadError> {
        let head = self.shape.head_length;
        let of_heads = |heads: &Range<usize>| heads.start * head..heads.end * head;
        let (queries, keys) = (of_heads(&self.plan.heads), of_heads(&self.plan.heads_kv));
        let columns = self.plan.columns.clone();
        let tensor = |name: &str| self.tensor(&format!("blk.{layer}.{name}.weight"));
        let rows = |name: &str, rows: &Range<usize>| Ok(Matrix::of_rows(self.file, &tensor(name)?, rows.clone()));
        let vector = |name: &str| self.optional(&format!("blk.{layer}.{name}"));
        let bias = |name: &str, rows: &Range<usize>| {
            let whole = vector(&format!("{name}.bias"));
            if whole.is_empty() { whole } else { whole[rows.clone()].to_vec() }
        };
        Ok(Layer {
            attention_norm: self.vector(&format!("blk.{layer}.attn_norm.weight"))?,
            query: rows("attn_q", &queries)?,
            key: rows("attn_k", &keys)?,
            value: rows("attn_v", &keys)?,
            biases: [bias("attn_q", &queries), bias("attn_k", &keys), bias("attn_v", &keys)],
            head_norms: [vector("attn_q_norm.weight"), vector("attn_k_norm.weight")],
            attention_output: Matrix::of_columns(self.file, &tensor("attn_output")?, queries.clone()),
            feed_forward_norm: self.vector(&format!("blk.{layer}.ffn_norm.weight"))?,
            gate: rows("ffn_gate", &columns)?,
            up: rows("ffn_up", &columns)?,
            down: Matrix::of_columns(self.file, &tensor("ffn_down")?, columns.clone()),
        })
    }

    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        self.file.tensor(name).ok_or_else(|| LoadError::Missing(name.into()))
    }

    /// A norm, bias or factor as f32.
    fn vector(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name)?;
        let mut values = vec![0.0; tensor.columns()];
        let bytes = self.file.slice(tensor.split, tensor.offset..tensor.offset + tensor.byte_length);
        Kernels::SCALAR.dequantise_row(tensor.format, bytes, &mut values);
        Ok(values)
    }

    fn optional(&self, name: &str) -> Vec<f32> {
        self.vector(name).unwrap_or_default()
    }
}
