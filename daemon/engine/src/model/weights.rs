//! The weights of one rank in the layout of the kernels: all slices of the file, packed into one region of memory in
//! the file's own formats and scales, without requantising. A super-block across a cut is held by both ranks.
use std::{io, ops::Range, sync::Arc};

use gguf::{BlockFormat, GgufFile, Stamp};
use kernels::{Kernels, MatrixPanels, MatrixStack, Wanted};
use models::{LayerSpec, ModelSpec, RouterSpec, Scores, TensorRole};
use topology::ShardPlan;

use super::{
    packed::{Cached, Key},
    region::Region,
    slices::{Slices, TensorSlice},
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
    /// What it computes.
    pub spec: LayerSpec,
    /// `[embedding_length]`; empty if the model has none.
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
    /// `[heads]` scores without a value; empty if the model has none.
    pub sinks: Vec<f32>,
    /// `[embedding_length, heads * head_length]`
    pub attention_output: Matrix,
    /// `[embedding_length]`; empty if the model has none, and except on the first rank.
    pub attention_output_bias: Vec<f32>,
    /// `[embedding_length]` of the norm behind the attention; empty if the model has none.
    pub attention_post_norm: Vec<f32>,
    /// `[embedding_length]`; empty if the model has none.
    pub feed_forward_norm: Vec<f32>,
    /// The router of a mixture of experts; `None`: there is one feed-forward network.
    pub router: Option<Router>,
    /// The shared expert of a mixture.
    pub shared: Option<SharedExpert>,
    /// `[columns, embedding_length]`, for each expert.
    pub gate: Matrix,
    /// `[columns, embedding_length]`, for each expert.
    pub up: Matrix,
    /// `[embedding_length, columns]`, for each expert.
    pub down: Matrix,
    /// `[expert, columns]` biases of gate and up; empty if the model has none.
    pub inner_biases: [Vec<f32>; 2],
    /// `[expert, embedding_length]`; empty if the model has none, and except on the first rank.
    pub down_bias: Vec<f32>,
    /// `[embedding_length]` of the norm behind the feed-forward network; empty if the model has none.
    pub feed_forward_post_norm: Vec<f32>,
}

/// The shared expert: every token uses it.
#[derive(Debug)]
pub struct SharedExpert {
    /// `[columns, embedding_length]`
    pub gate: Matrix,
    /// `[columns, embedding_length]`
    pub up: Matrix,
    /// `[embedding_length, columns]`
    pub down: Matrix,
    /// `[embedding_length]`: the sigmoid of its product with the hidden state weights the output; empty without it.
    pub router: Vec<f32>,
}

/// Chooses the experts of a token. Every rank has the whole router.
#[derive(Debug)]
pub struct Router {
    /// `[expert_count, embedding_length]`, F32.
    pub matrix: Matrix,
    /// `[expert_count]`; empty if the model has none.
    pub bias: Vec<f32>,
    /// `[expert_count]`, added to the scores for the choice alone; empty if the model has none.
    pub selection_bias: Vec<f32>,
    /// How it chooses.
    pub spec: RouterSpec,
    /// Experts per token.
    pub used_count: usize,
}

impl Router {
    /// Whether the largest logits are chosen and weighted by their softmax.
    pub(super) fn is_plain(&self) -> bool {
        let RouterSpec { scores, has_selection_bias, is_normalised, scale, groups } = self.spec;
        scores == Scores::Softmax && !has_selection_bias && is_normalised && scale == 1.0 && groups.is_none()
    }
}

impl Layer {
    /// The weights of a layer, numbered in the whole model.
    fn of(layer: usize, spec: &ModelSpec, slices: &Slices, region: &Arc<Region>) -> Result<Self, LoadError> {
        use TensorRole::{GateBias, Key, KeyBias, KeyNorm, Query, QueryBias, QueryNorm, UpBias, Value, ValueBias};
        let matrix = |role| slices.get((Some(layer), role)).map(|slice| Matrix::new(slice, region));
        let optional = |role| {
            let slice = slices.find((Some(layer), role));
            slice.map(|slice| slice.floats(region.bytes())).unwrap_or_default()
        };
        let found = spec.layer(layer);
        let router = found.feed_forward.experts().map(|experts| {
            let (bias, selection_bias) = (optional(TensorRole::RouterBias), optional(TensorRole::SelectionBias));
            let (spec, used_count) = (experts.router.clone(), experts.used_count);
            matrix(TensorRole::Router).map(|matrix| Router { matrix, bias, selection_bias, spec, used_count })
        });
        let shared = found.feed_forward.experts().and_then(|experts| experts.shared.as_ref()).map(|_| {
            Ok(SharedExpert {
                gate: matrix(TensorRole::SharedGate)?,
                up: matrix(TensorRole::SharedUp)?,
                down: matrix(TensorRole::SharedDown)?,
                router: optional(TensorRole::SharedRouter),
            })
        });
        Ok(Self {
            spec: found.clone(),
            attention_norm: optional(TensorRole::MixerNorm),
            query: matrix(Query)?,
            key: matrix(Key)?,
            value: matrix(Value)?,
            biases: [QueryBias, KeyBias, ValueBias].map(optional),
            head_norms: [QueryNorm, KeyNorm].map(optional),
            sinks: optional(TensorRole::Sinks),
            attention_output: matrix(TensorRole::AttentionOutput)?,
            attention_output_bias: optional(TensorRole::AttentionOutputBias),
            attention_post_norm: optional(TensorRole::MixerPostNorm),
            feed_forward_norm: optional(TensorRole::FeedForwardNorm),
            router: router.transpose()?,
            shared: shared.transpose()?,
            gate: matrix(TensorRole::Gate)?,
            up: matrix(TensorRole::Up)?,
            down: matrix(TensorRole::Down)?,
            inner_biases: [GateBias, UpBias].map(optional),
            down_bias: optional(TensorRole::DownBias),
            feed_forward_post_norm: optional(TensorRole::FeedForwardPostNorm),
        })
    }

    /// The matrices with the number of columns, and with how many of its matrices each token is multiplied.
    pub fn matrices(&self) -> impl Iterator<Item = (&Matrix, usize)> {
        let used = self.router.as_ref().map_or(1, |router| router.used_count);
        let attention = [&self.query, &self.key, &self.value, &self.attention_output];
        let router = self.router.as_ref().map(|router| &router.matrix);
        let all = attention.into_iter().chain(router).map(|matrix| (matrix, 1));
        let shared = self.shared.as_ref().map(|shared| [&shared.gate, &shared.up, &shared.down]);
        let all = all.chain(shared.into_iter().flatten().map(|matrix| (matrix, 1)));
        all.chain([&self.gate, &self.up, &self.down].map(|matrix| (matrix, used)))
    }
}

/// All weights of one rank.
#[derive(Debug)]
pub struct Shard {
    /// What the model computes.
    pub spec: ModelSpec,
    /// The part of the model on this rank.
    pub plan: ShardPlan,
    /// The layers of its stage.
    pub layers: Vec<Layer>,
    /// `[embedding_length]`
    pub output_norm: Vec<f32>,
    /// `[vocabulary rows of this rank, embedding_length]`
    pub output: Matrix,
    /// Divisors of rotation angles, if the file has them.
    pub rope_factors: Option<Vec<f32>>,
    /// Divisors of rotation angles in long contexts, if the file has them.
    pub rope_factors_long: Option<Vec<f32>>,
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
    /// What it computes.
    pub spec: &'a ModelSpec,
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
    spec: &ModelSpec,
    plan: &ShardPlan,
    kernels: &'static Kernels,
) -> Result<u64, LoadError> {
    Ok(Slices::of(file, spec, plan, kernels)?.bytes as u64)
}

impl Shard {
    /// Loads the slices of one rank: from the cache of packed shards if possible, else from the file.
    ///
    /// # Errors
    /// A tensor vanished or cannot be read, there is no memory, or `progress` returned false.
    pub fn load(source: Source<'_>) -> Result<Self, LoadError> {
        let Source { file, spec, plan, kernels, cache, is_hollow, progress } = source;
        let slices = Slices::of(file, spec, plan, kernels)?;
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
        let mut shard = Self::of_region(file, spec, plan, &slices, &region)?;
        let split = shard.embedding.split;
        shard.embedding.stamp = cache.and_then(|cached| cached.content.stamps.get(split).copied());
        Ok(shard)
    }

    fn of_region(
        file: &Arc<GgufFile>,
        spec: &ModelSpec,
        plan: &ShardPlan,
        slices: &Slices,
        region: &Arc<Region>,
    ) -> Result<Self, LoadError> {
        let layers = plan.layers.clone().map(|layer| Layer::of(layer, spec, slices, region));
        let layers = layers.collect::<Result<Vec<_>, LoadError>>()?;
        let embedding = file.tensor("token_embd.weight");
        let embedding = embedding.ok_or_else(|| LoadError::Missing("token_embd.weight".into()))?;
        let factors = |role| slices.find((None, role)).map(|slice| slice.floats(region.bytes()));
        Ok(Self {
            spec: spec.clone(),
            plan: plan.clone(),
            layers,
            output_norm: slices.get((None, TensorRole::OutputNorm))?.floats(region.bytes()),
            output: Matrix::new(slices.get((None, TensorRole::Output))?, region),
            rope_factors: factors(TensorRole::RopeFactors),
            rope_factors_long: factors(TensorRole::RopeFactorsLong),
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
