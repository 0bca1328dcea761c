//! The weights of one rank in the layout of the kernels: all slices of the file, packed into one region of memory in
//! the file's own formats and scales, without requantising. A super-block across a cut is held by both ranks.
use std::sync::Arc;

use gguf::GgufFile;
use kernels::Kernels;
use models::{LayerSpec, Mixer, ModelSpec, RouterSpec, Scores, TensorRole};
use topology::ShardPlan;

use super::{
    embedding::{Embedding, RowError},
    expert_cache::ExpertCache,
    inputs::{LayerInput, LayerInputs},
    matrix::Matrix,
    mixer::{
        MixerWeights,
        attention::AttentionWeights,
        convolution::{ConvolutionWeights, by_tap},
        delta::DeltaWeights,
        latent::LatentWeights,
        state_space::{ChannelFilters, StateSpaceWeights},
    },
    packed::{Cached, Key},
    region::Region,
    slices::{Residence, Slices},
};
use crate::collective::WorkCounter;
use crate::model::error::LoadError;

/// A layer's weights on this rank. Norms and biases are whole if every rank needs them.
#[derive(Debug)]
pub struct Layer {
    /// What it computes.
    pub spec: LayerSpec,
    /// `[embedding_length]`; empty if the model has none.
    pub mixer_norm: Vec<f32>,
    /// The first half.
    pub mixer: MixerWeights,
    /// `[embedding_length, columns of the rank's units]`
    pub mixer_output: Matrix,
    /// `[embedding_length]`; empty if the model has none, and except on the first rank.
    pub mixer_output_bias: Vec<f32>,
    /// `[embedding_length]` of the norm behind the mixer; empty if the model has none.
    pub mixer_post_norm: Vec<f32>,
    /// `[embedding_length]`; empty if the model has none.
    pub feed_forward_norm: Vec<f32>,
    /// The router of a mixture of experts; `None`: there is one feed-forward network.
    pub router: Option<Router>,
    /// The shared expert of a mixture.
    pub shared: Option<SharedExpert>,
    /// `[columns, embedding_length]`, for each expert; without rows if the network has no gate.
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
    /// The matrices for the token's own input to the layer.
    pub input: Option<LayerInput>,
    /// Factor of the layer's result.
    pub output_scale: Option<f32>,
}

/// The shared expert: every token uses it.
#[derive(Debug)]
pub struct SharedExpert {
    /// `[columns, embedding_length]`; without rows if the network has no gate.
    pub gate: Matrix,
    /// `[columns, embedding_length]`
    pub up: Matrix,
    /// `[embedding_length, columns]`
    pub down: Matrix,
    /// `[embedding_length]`: the sigmoid of its product with the hidden state weights the output; empty without it.
    pub router: Vec<f32>,
    /// The norms of a branch of its own.
    pub branch: Option<BranchNorms>,
}

/// Weights of the norms of a network next to experts, each `[embedding_length]`.
#[derive(Debug)]
pub struct BranchNorms {
    /// Before the network.
    pub before: Vec<f32>,
    /// Behind the network.
    pub behind: Vec<f32>,
    /// Behind the experts.
    pub behind_experts: Vec<f32>,
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
    /// Weights of the norm of what it reads `[embedding_length]`; empty if it reads what the experts read.
    pub norm: Vec<f32>,
    /// How it chooses.
    pub spec: RouterSpec,
    /// Experts per token.
    pub used_count: usize,
    /// `[expert_count]`: its number among the experts of which this rank holds a part, or none; empty if it holds a part
    /// of each.
    pub numbers: Vec<usize>,
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
        use TensorRole::{GateBias, UpBias};
        let matrix = |role| slices.get((Some(layer), role)).map(|slice| Matrix::new(slice, region));
        let optional = |role| {
            let slice = slices.find((Some(layer), role));
            slice.map(|slice| slice.floats(region.bytes())).unwrap_or_default()
        };
        let (found, root) = (spec.layer(layer), (spec.embedding_length as f32).sqrt());
        let is_gated = found.feed_forward.activation().is_gated();
        let [mixes, feeds] = found.halves();
        let matrix_if = |is_there, role| if is_there { matrix(role) } else { Ok(Matrix::without_rows(region)) };
        let router = found.feed_forward.experts().map(|experts| {
            let (bias, selection_bias) = (optional(TensorRole::RouterBias), optional(TensorRole::SelectionBias));
            let (spec, used_count) = (experts.router.clone(), experts.used_count);
            let norm = optional(TensorRole::RouterScale).iter().map(|weight| weight / root).collect();
            let matrix = matrix(TensorRole::Router)?;
            let numbers = slices.get((Some(layer), TensorRole::Down))?.numbers();
            Ok(Router { matrix, bias, selection_bias, norm, spec, used_count, numbers })
        });
        let shared = found.feed_forward.experts().and_then(|experts| experts.shared.as_ref()).map(|shared| {
            let branch = shared.is_branch.then(|| BranchNorms {
                before: optional(TensorRole::SharedNorm),
                behind: optional(TensorRole::SharedPostNorm),
                behind_experts: optional(TensorRole::ExpertsPostNorm),
            });
            Ok(SharedExpert {
                branch,
                gate: matrix_if(is_gated, TensorRole::SharedGate)?,
                up: matrix(TensorRole::SharedUp)?,
                down: matrix(TensorRole::SharedDown)?,
                router: optional(TensorRole::SharedRouter),
            })
        });
        let input = (found.input_length > 0).then(|| {
            let (gate, output) = (matrix(TensorRole::InputGate)?, matrix(TensorRole::InputOutput)?);
            Ok(LayerInput { gate, output, norm: optional(TensorRole::InputPostNorm) })
        });
        Ok(Self {
            spec: found.clone(),
            mixer_norm: optional(TensorRole::MixerNorm),
            mixer: mixer(layer, spec, slices, region)?,
            mixer_output: matrix_if(mixes, TensorRole::MixerOutput)?,
            mixer_output_bias: optional(TensorRole::AttentionOutputBias),
            mixer_post_norm: optional(TensorRole::MixerPostNorm),
            feed_forward_norm: optional(TensorRole::FeedForwardNorm),
            router: router.transpose()?,
            shared: shared.transpose()?,
            gate: matrix_if(feeds && is_gated, TensorRole::Gate)?,
            up: matrix_if(feeds, TensorRole::Up)?,
            down: matrix_if(feeds, TensorRole::Down)?,
            inner_biases: [GateBias, UpBias].map(optional),
            down_bias: optional(TensorRole::DownBias),
            feed_forward_post_norm: optional(TensorRole::FeedForwardPostNorm),
            input: input.transpose()?,
            output_scale: optional(TensorRole::OutputScale).first().copied(),
        })
    }

    /// The matrices, and with how many of its matrices each token is multiplied on average.
    pub fn matrices(&self) -> impl Iterator<Item = (&Matrix, usize)> {
        let used = self.router.as_ref().map_or(1, |router| match router.numbers.len() {
            0 => router.used_count,
            all => (router.used_count * self.down.count).div_ceil(all),
        });
        let router = self.router.as_ref().map(|router| &router.matrix);
        let input = self.input.iter().flat_map(|input| [&input.gate, &input.output]);
        let all = self.mixer.matrices().chain([&self.mixer_output]).chain(router).chain(input);
        let all = all.map(|matrix| (matrix, matrix.count));
        let shared = self.shared.as_ref().map(|shared| [&shared.gate, &shared.up, &shared.down]);
        let all = all.chain(shared.into_iter().flatten().map(|matrix| (matrix, 1)));
        all.chain([&self.gate, &self.up, &self.down].map(|matrix| (matrix, used)))
    }
}

/// The weights of a layer's mixer, except its output.
fn mixer(layer: usize, spec: &ModelSpec, slices: &Slices, region: &Arc<Region>) -> Result<MixerWeights, LoadError> {
    use TensorRole::{Key, KeyBias, KeyNorm, Query, QueryBias, QueryNorm, Value, ValueBias};
    let optional_matrix = |role| slices.find((Some(layer), role)).map(|slice| Matrix::new(slice, region));
    let matrix = |role| slices.get((Some(layer), role)).map(|slice| Matrix::new(slice, region));
    let floats = |role| slices.find((Some(layer), role)).map(|slice| slice.floats(region.bytes())).unwrap_or_default();
    Ok(match &spec.layer(layer).mixer {
        Mixer::Attention(attention) => MixerWeights::Attention(AttentionWeights {
            query: matrix(Query)?,
            key: optional_matrix(Key),
            value: optional_matrix(Value),
            biases: [QueryBias, KeyBias, ValueBias].map(floats),
            head_norms: [QueryNorm, KeyNorm].map(floats),
            value_norm: vec![1.0; if attention.has_value_norm { attention.head_length } else { 0 }],
            sinks: floats(TensorRole::Sinks),
        }),
        Mixer::Convolution(convolution) => MixerWeights::Convolution(ConvolutionWeights {
            input: matrix(TensorRole::MixerInput)?,
            filters: by_tap(&floats(TensorRole::Filter), convolution.taps),
        }),
        Mixer::Delta(delta) => MixerWeights::Delta(DeltaWeights {
            input: matrix(TensorRole::MixerInput)?,
            gate: matrix(TensorRole::StateGate)?,
            rate: matrix(TensorRole::StateRate)?,
            decay: matrix(TensorRole::StateDecay)?,
            filters: by_tap(&floats(TensorRole::Filter), delta.taps),
            decay_bias: floats(TensorRole::DecayBias),
            decay_factor: floats(TensorRole::DecayFactor),
            norm: floats(TensorRole::StateNorm),
            epsilon: spec.norm_epsilon,
            units: DeltaWeights::units(delta.head_length),
            ones: vec![1.0; slices.get((Some(layer), TensorRole::MixerInput))?.rows.len()],
        }),
        Mixer::StateSpace(space) => {
            let (value, key) = (matrix(TensorRole::MixerInput)?, matrix(TensorRole::StateKeys)?);
            let filters =
                |role, bias, channels| ChannelFilters::new(by_tap(&floats(role), space.taps), floats(bias), channels);
            MixerWeights::StateSpace(StateSpaceWeights {
                gate: matrix(TensorRole::StateGate)?,
                rate: matrix(TensorRole::StateDecay)?,
                filters: [
                    filters(TensorRole::Filter, TensorRole::FilterBias, value.rows),
                    filters(TensorRole::KeyFilter, TensorRole::KeyFilterBias, key.rows),
                ],
                rate_bias: floats(TensorRole::DecayBias),
                decay_factor: floats(TensorRole::DecayFactor),
                skip: floats(TensorRole::StateSkip),
                norm: floats(TensorRole::StateNorm),
                epsilon: spec.norm_epsilon,
                value,
                key,
            })
        }
        Mixer::None => MixerWeights::None,
        Mixer::Latent(latent) => {
            let inner = latent.query_columns.map(|_| matrix(TensorRole::QueryInner)).transpose()?;
            MixerWeights::Latent(LatentWeights {
                query_inner: inner.map(|inner| (inner, floats(TensorRole::QueryInnerNorm))),
                query: matrix(Query)?,
                latent: matrix(TensorRole::Latent)?,
                latent_norm: floats(TensorRole::LatentNorm),
                latent_query: matrix(TensorRole::LatentQuery)?,
                latent_value: matrix(TensorRole::LatentValue)?,
            })
        }
    })
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
    /// `[vocabulary rows of this rank, embedding_length]`; without rows if the model has no logits.
    pub output: Matrix,
    /// What an embedding is multiplied with, one after the other, if the model has them.
    pub pooled: Option<(Matrix, Matrix)>,
    /// Divisors of rotation angles, if the file has them.
    pub rope_factors: Option<Vec<f32>>,
    /// Divisors of rotation angles in long contexts, if the file has them.
    pub rope_factors_long: Option<Vec<f32>>,
    /// The experts, if they stay on the disk.
    pub experts: Option<ExpertCache>,
    /// The join of tokens with hidden states, in a predictor.
    pub join: Option<Join>,
    embedding: Embedding,
    /// The inputs that tokens have for each layer.
    inputs: Option<LayerInputs>,
}

/// Joins the embedding of a token with the hidden state before it.
#[derive(Debug)]
pub struct Join {
    /// `[embedding_length]` of the norms of both.
    pub norms: [Vec<f32>; 2],
    /// `[embedding_length, 2 * embedding_length]`: the columns of the embedding, then those of the hidden state.
    pub matrix: Matrix,
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
    /// Bytes of memory for the experts of mixtures, which otherwise stay on the disk; `None`: all are loaded.
    pub expert_memory: Option<usize>,
    /// For benchmarks: no weights are read, they stay zero; only the sizes of tensors matter.
    pub is_hollow: bool,
    /// Receives the bytes of each finished part; returns false to cancel.
    pub progress: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Shard {
    /// Loads the slices of one rank: from the cache of packed shards if possible, else from the file.
    ///
    /// # Errors
    /// A tensor vanished or cannot be read, there is no memory, or `progress` returned false.
    pub fn load(source: Source<'_>) -> Result<Self, LoadError> {
        let Source { file, spec, plan, kernels, cache, expert_memory, is_hollow, progress } = source;
        let residence = if expert_memory.is_some() { Residence::WithoutExperts } else { Residence::Whole };
        let slices = Slices::of(file, spec, plan, kernels, residence)?;
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
            folder.write(key(&cached), &region);
        }
        let mut shard = Self::of_region(file, spec, plan, &slices, &region)?;
        if let Some(bytes) = expert_memory {
            shard.experts = ExpertCache::new(file, &slices, plan.layers.clone(), bytes)?;
        }
        let stamps = cache.map_or(&[][..], |cached| &cached.content.stamps);
        let tables = [&mut shard.embedding].into_iter().chain(shard.inputs.iter_mut().map(LayerInputs::table));
        tables.for_each(|table| table.stamp_with(stamps));
        shard.experts.iter_mut().for_each(|experts| experts.stamp_with(stamps));
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
        let table = |role| {
            let tensor = spec.tensors().into_iter().find(|tensor| tensor.role == role);
            tensor.map(|tensor| Embedding::new(file, tensor.name)).transpose()
        };
        let embedding = table(TensorRole::Embedding)?.ok_or_else(|| LoadError::Missing("token_embd.weight".into()))?;
        let inputs = table(TensorRole::InputEmbedding)?.map(|table| {
            let projection = Matrix::new(slices.get((None, TensorRole::InputProjection))?, region);
            let norm = slices.get((None, TensorRole::InputNorm))?.floats(region.bytes());
            Ok(LayerInputs::new(projection, norm, table, spec, plan))
        });
        let matrix = |role| slices.find((None, role)).map(|slice| Matrix::new(slice, region));
        let factors = |role| slices.find((None, role)).map(|slice| slice.floats(region.bytes()));
        let joined = spec.predictor.map(|_| {
            let weight = |role| slices.get((Some(0), role)).map(|slice| slice.floats(region.bytes()));
            let norms = [weight(TensorRole::JoinedTokenNorm)?, weight(TensorRole::JoinedStateNorm)?];
            Ok(Join { norms, matrix: Matrix::new(slices.get((Some(0), TensorRole::Joined))?, region) })
        });
        // That of a predictor is in its block.
        let of_norm = spec.predictor.filter(|own| own.has_output_norm).map(|_| 0);
        Ok(Self {
            spec: spec.clone(),
            plan: plan.clone(),
            layers,
            output_norm: slices.get((of_norm, TensorRole::OutputNorm))?.floats(region.bytes()),
            output: matrix(TensorRole::Output).unwrap_or_else(|| Matrix::without_rows(region)),
            pooled: matrix(TensorRole::PooledInner).zip(matrix(TensorRole::PooledOutput)),
            rope_factors: factors(TensorRole::RopeFactors),
            rope_factors_long: factors(TensorRole::RopeFactorsLong),
            experts: None,
            join: joined.transpose()?,
            embedding,
            inputs: inputs.transpose()?,
        })
    }

    /// Counts reads of the file as work of an engine.
    pub(super) fn report_to(&mut self, work: &WorkCounter) {
        let tables = [&mut self.embedding].into_iter().chain(self.inputs.iter_mut().map(LayerInputs::table));
        tables.for_each(|table| table.report_to(work));
        self.experts.iter_mut().for_each(|experts| experts.report_to(work));
    }

    /// Reads a token's row of the embedding; `out` is `[embedding_length]`.
    ///
    /// # Errors
    /// The file cannot be read any more, or was written to since it was hashed.
    pub fn embed(&mut self, token: u32, out: &mut [f32]) -> Result<(), RowError> {
        self.embedding.read(token, out)
    }

    /// The inputs that tokens have for each layer, if they have any.
    pub(super) fn inputs(&mut self) -> Option<&mut LayerInputs> {
        self.inputs.as_mut()
    }

    /// Size of all weights in memory in bytes, without a cache of experts.
    pub fn byte_length(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Bytes of weights that a token is multiplied with: of a layer's experts only those that the token uses.
    pub fn token_bytes(&self) -> u64 {
        let matrices = self.layers.iter().flat_map(Layer::matrices);
        matrices.fold(self.byte_length(), |bytes, (matrix, used)| match matrix.is_on_disk() {
            true => bytes + matrix.matrix_bytes() * used as u64,
            false => bytes - matrix.matrix_bytes() * matrix.count.saturating_sub(used) as u64,
        })
    }

    /// The packed weights of all matrices, for benchmarks.
    pub fn bytes(&self) -> &[u8] {
        self.output.region_bytes()
    }
}
