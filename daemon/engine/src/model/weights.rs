//! The weights of one rank in the layout of the kernels: all slices of the file, packed into one region of memory in
//! the file's own formats and scales, without requantising. A super-block across a cut is held by both ranks.
use std::{io, ops::Range, sync::Arc};

use gguf::{BlockFormat, GgufFile, Shape, Stamp};
use kernels::{Kernels, MatrixPanels, MatrixStack, Wanted};
use topology::ShardPlan;

use super::{
    packed::{Cached, Key},
    region::Region,
    slices::{Slices, TensorSlice, feed_forward_names},
};
use crate::model::error::LoadError;

/// A weight matrix, or the rows or columns of it that this rank holds: `[rows, columns]`; with experts, as many of that
/// shape as a layer has.
#[derive(Debug)]
pub struct Matrix {
    /// Format of its blocks.
    pub format: BlockFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Number of consecutive matrices.
    pub count: usize,
    /// Blocks of 32 columns at the start of each row that belong to the previous rank.
    skip: usize,
    /// Columns in whole blocks.
    padded: usize,
    region: Arc<Region>,
    place: Range<usize>,
}

impl Matrix {
    fn new(slice: &TensorSlice, region: &Arc<Region>) -> Self {
        Self {
            format: slice.format,
            rows: slice.rows.len(),
            columns: slice.columns.len(),
            count: slice.count,
            skip: slice.skip(),
            padded: slice.blocks().len() * slice.format.block_length(),
            region: Arc::clone(region),
            place: slice.place.clone(),
        }
    }

    /// The matrix as a kernel argument.
    pub fn view(&self) -> MatrixPanels<'_> {
        let bytes = &self.region.bytes()[self.place.clone()];
        MatrixPanels { format: self.format, bytes, rows: self.rows, columns: self.padded }
    }

    /// All matrices as a kernel argument.
    pub fn stack(&self) -> MatrixStack<'_> {
        let MatrixPanels { format, bytes, rows, columns } = self.view();
        MatrixStack { format, bytes, rows, columns, count: self.count }
    }

    /// The form of activations that it is multiplied with.
    pub fn wanted(&self) -> Wanted {
        wanted_by(&[self])
    }

    /// Its size in bytes.
    pub fn byte_length(&self) -> u64 {
        self.place.len() as u64
    }
}

/// The form of activations for several matrices with the same columns.
pub fn wanted_by(matrices: &[&Matrix]) -> Wanted {
    let quantised = matrices.iter().any(|matrix| matrix.format.is_quantised());
    let floats = matrices.iter().any(|matrix| !matrix.format.is_quantised());
    Wanted { skip: matrices.first().map_or(0, |matrix| matrix.skip), quantised, floats }
}

/// A layer's weights on this rank. Norms and biases are whole if every rank needs them.
#[derive(Debug)]
pub struct Layer {
    /// `[embedding_length]`
    pub attention_norm: Vec<f32>,
    /// Query rows of this rank's heads `[heads * head_length, embedding_length]`.
    pub query: Matrix,
    /// Key rows of this rank's KV heads `[kv_heads * head_length, embedding_length]`.
    pub key: Matrix,
    /// Value rows of this rank's KV heads, as many as key rows.
    pub value: Matrix,
    /// Biases of query, key and value; empty if the model has none.
    pub biases: [Vec<f32>; 3],
    /// `[head_length]` norms of each head of query and key; empty if the model has none.
    pub head_norms: [Vec<f32>; 2],
    /// `[embedding_length, heads * head_length]`
    pub attention_output: Matrix,
    /// `[embedding_length]`
    pub feed_forward_norm: Vec<f32>,
    /// The router of a mixture of experts; `None`: there is one feed-forward network.
    pub router: Option<Router>,
    /// `[columns, embedding_length]`, for each expert.
    pub gate: Matrix,
    /// `[columns, embedding_length]`, for each expert.
    pub up: Matrix,
    /// `[embedding_length, columns]`, for each expert.
    pub down: Matrix,
}

/// Chooses the experts of a token. Every rank has the whole router.
#[derive(Debug)]
pub struct Router {
    /// `[expert_count, embedding_length]`, F32.
    pub matrix: Matrix,
    /// Experts per token.
    pub used_count: usize,
}

impl Layer {
    /// The matrices with the number of columns, and with how many of its matrices each token is multiplied.
    pub fn matrices(&self) -> impl Iterator<Item = (&Matrix, usize)> {
        let used = self.router.as_ref().map_or(1, |router| router.used_count);
        let attention = [&self.query, &self.key, &self.value, &self.attention_output];
        let router = self.router.as_ref().map(|router| &router.matrix);
        let all = attention.into_iter().chain(router).map(|matrix| (matrix, 1));
        all.chain([&self.gate, &self.up, &self.down].map(|matrix| (matrix, used)))
    }
}

/// All weights of one rank.
#[derive(Debug)]
pub struct Shard {
    /// The model's hyper-parameters.
    pub shape: Shape,
    /// The part of the model on this rank.
    pub plan: ShardPlan,
    /// The layers of its stage.
    pub layers: Vec<Layer>,
    /// `[embedding_length]`
    pub output_norm: Vec<f32>,
    /// `[vocabulary rows of this rank, embedding_length]`
    pub output: Matrix,
    /// `rope_freqs.weight`, if the file has it.
    pub rope_factors: Option<Vec<f32>>,
    embedding: Embedding,
}

/// `[vocabulary, embedding_length]`: rows are read from the file one at a time and not kept.
#[derive(Debug)]
struct Embedding {
    file: Arc<GgufFile>,
    format: BlockFormat,
    split: usize,
    offset: usize,
    row: Vec<u8>,
    /// Stamp of the file when it was hashed: rows of a changed file are never used.
    stamp: Option<Stamp>,
}

/// Where a shard is loaded from, and how.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The model.
    pub file: &'a Arc<GgufFile>,
    /// Its shape.
    pub shape: &'a Shape,
    /// The part of the model to load.
    pub plan: &'a ShardPlan,
    /// Kernels that determine the panel layout.
    pub kernels: &'static Kernels,
    /// The model's content, and the cache for packed shards.
    pub cache: Option<Cached<'a>>,
    /// For benchmarks: no weights are read, they stay zero; only the sizes of tensors matter.
    pub is_hollow: bool,
    /// Receives the bytes of each finished part; returns false to cancel.
    pub progress: &'a (dyn Fn(u64) -> bool + Sync),
}

/// Bytes of weights that a rank holds, computed from the tensor table alone, for the memory check before loading.
///
/// # Errors
/// A tensor is missing.
pub fn shard_bytes(
    file: &GgufFile,
    shape: &Shape,
    plan: &ShardPlan,
    kernels: &'static Kernels,
) -> Result<u64, LoadError> {
    Ok(Slices::of(file, shape, plan, kernels)?.bytes as u64)
}

impl Shard {
    /// Loads the slices of one rank: from the cache of packed shards if possible, else from the file.
    ///
    /// # Errors
    /// A tensor vanished or cannot be read, there is no memory, or `progress` returned false.
    pub fn load(source: Source<'_>) -> Result<Self, LoadError> {
        let Source { file, shape, plan, kernels, cache, is_hollow, progress } = source;
        let slices = Slices::of(file, shape, plan, kernels)?;
        let mut region =
            Region::new(slices.bytes).map_err(|source| LoadError::Memory { bytes: slices.bytes, source })?;
        let key = |cached: &Cached<'_>| Key::of(&cached.content.root, plan, kernels, slices.bytes);
        let is_cached = match cache.and_then(|cached| Some((cached, cached.cache?))) {
            Some((cached, folder)) => folder.read(&key(&cached), region.bytes_mut(), progress)?,
            None => false,
        };
        if !is_cached && !is_hollow {
            slices.fill(file, region.bytes_mut(), progress)?;
        }
        let region = Arc::new(region);
        // The weights are those that were hashed only if the file was not written to since.
        if cache.is_some_and(|cached| !cached.content.is_of(file)) {
            return Err(LoadError::Changed);
        }
        if let Some((cached, folder)) =
            cache.filter(|_| !is_cached && !is_hollow).and_then(|cached| Some((cached, cached.cache?)))
        {
            folder.write(key(&cached), Arc::clone(&region));
        }
        let mut shard = Self::of_region(file, shape, plan, &slices, &region)?;
        let split = shard.embedding.split;
        shard.embedding.stamp = cache.and_then(|cached| cached.content.stamps.get(split).copied());
        Ok(shard)
    }

    fn of_region(
        file: &Arc<GgufFile>,
        shape: &Shape,
        plan: &ShardPlan,
        slices: &Slices,
        region: &Arc<Region>,
    ) -> Result<Self, LoadError> {
        let matrix = |name: &str| slices.get(name).map(|slice| Matrix::new(slice, region));
        let vector = |name: &str| slices.get(name).map(|slice| slice.floats(region.bytes()));
        let optional = |name: &str| vector(name).unwrap_or_default();
        let layers = plan.layers.clone().map(|layer| {
            let matrix = |name: &str| matrix(&format!("blk.{layer}.{name}.weight"));
            let optional = |name: &str| optional(&format!("blk.{layer}.{name}"));
            let [gate, up, down] = feed_forward_names(shape);
            let router = shape
                .experts
                .map(|experts| matrix("ffn_gate_inp").map(|matrix| Router { matrix, used_count: experts.used_count }));
            Ok(Layer {
                attention_norm: vector(&format!("blk.{layer}.attn_norm.weight"))?,
                query: matrix("attn_q")?,
                key: matrix("attn_k")?,
                value: matrix("attn_v")?,
                biases: ["attn_q.bias", "attn_k.bias", "attn_v.bias"].map(optional),
                head_norms: ["attn_q_norm.weight", "attn_k_norm.weight"].map(optional),
                attention_output: matrix("attn_output")?,
                feed_forward_norm: vector(&format!("blk.{layer}.ffn_norm.weight"))?,
                router: router.transpose()?,
                gate: matrix(gate)?,
                up: matrix(up)?,
                down: matrix(down)?,
            })
        });
        let layers = layers.collect::<Result<Vec<_>, LoadError>>()?;
        let embedding = file.tensor("token_embd.weight");
        let embedding = embedding.ok_or_else(|| LoadError::Missing("token_embd.weight".into()))?;
        Ok(Self {
            shape: shape.clone(),
            plan: plan.clone(),
            layers,
            output_norm: vector("output_norm.weight")?,
            output: matrix(if shape.tied_output { "token_embd.weight" } else { "output.weight" })?,
            rope_factors: shape.has_rope_factors.then(|| vector("rope_freqs.weight")).transpose()?,
            embedding: Embedding {
                file: Arc::clone(file),
                format: embedding.format,
                split: embedding.split,
                offset: embedding.offset,
                row: vec![0; embedding.row_bytes()],
                stamp: None,
            },
        })
    }

    /// Reads a token's row of the embedding; `out` is `[embedding_length]`.
    ///
    /// # Errors
    /// The file cannot be read any more, or was written to since it was hashed.
    pub fn embed(&mut self, token: u32, out: &mut [f32]) -> io::Result<()> {
        let Embedding { file, format, split, offset, row, stamp } = &mut self.embedding;
        file.read(*split, *offset + token as usize * row.len(), row)?;
        // Checked after the read: a write changes the file's times before its bytes.
        if stamp.is_some() && file.stamp(*split)? != *stamp {
            return Err(io::Error::other(
                "the model file changed while in use; it is hashed again before it is used again",
            ));
        }
        Kernels::SCALAR.dequantise_row(*format, row, out);
        Ok(())
    }

    /// Size of all weights in bytes.
    pub fn byte_length(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Bytes of weights that a token is multiplied with: of a layer's experts only those that the token uses.
    pub fn token_bytes(&self) -> u64 {
        let unused = self
            .layers
            .iter()
            .flat_map(Layer::matrices)
            .map(|(matrix, used)| matrix.byte_length() / matrix.count.max(1) as u64 * (matrix.count - used) as u64);
        self.byte_length() - unused.sum::<u64>()
    }

    /// The packed weights of all matrices, for benchmarks.
    pub fn bytes(&self) -> &[u8] {
        self.output.region.bytes()
    }
}
