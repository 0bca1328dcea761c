//! The table of tensors that follows from a spec: for each role the name in the file, the dimensions, and how ranks
//! share it. The shape check, the slices of a rank, sizes, the planner and the tests' models all read this table.
mod latent;
pub(crate) mod predictor;
mod states;

use crate::{
    feed_forward::{DenseSpec, ExpertsSpec, FeedForward, SharedSpec},
    limits::SEGMENTS_MAX,
    mixer::{AttentionSpec, HeadNorms, Mixer},
    names::TensorRole,
    rotation::Scaling,
    spec::{LayerSpec, ModelSpec, Norms},
};

/// A tensor of a model, or the rows of one that have a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// What it is for.
    pub role: TensorRole,
    /// Its name in the file, behind `blk.N.` for a layer's tensor.
    pub name: &'static str,
    /// Columns, rows and number of matrices.
    pub dimensions: [usize; 3],
    /// Its place in a tensor of the file that has more rows; `None`: it is the whole tensor.
    pub fused: Option<Fused>,
    /// How ranks share it.
    pub cut: Cut,
    /// Whether it is a norm, biases or a list of factors: no operand of a matrix multiplication.
    pub is_vector: bool,
    /// Whether it must be F32: vectors and routers.
    pub is_float: bool,
    /// Whether a file may lack it.
    pub is_optional: bool,
}

/// Some consecutive rows of a tensor in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused {
    /// Rows of the file's tensor.
    pub rows: usize,
    /// The first of them that has the role.
    pub first: usize,
}

/// How the ranks of a stage share a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every rank holds all of it.
    Whole,
    /// Each rank holds the rows of its share.
    Rows(Share),
    /// Each rank holds the columns of its share.
    Columns(Share),
    /// There is a matrix for each unit of the mixer: each rank holds those of its units.
    Matrices,
    /// The first rank alone holds it: it is added to a sum over ranks.
    Once,
    /// No rank holds it: its rows are read from the file.
    OnDisk,
}

/// Consecutive segments of a tensor: how many rows or columns each has for each unit of the mixer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    lengths: [usize; SEGMENTS_MAX],
    count: usize,
}

impl Segments {
    /// `count` segments of this length behind the others.
    ///
    /// # Panics
    /// There are more than [`SEGMENTS_MAX`].
    #[must_use]
    pub fn and(mut self, count: usize, length: usize) -> Self {
        self.lengths[self.count..self.count + count].fill(length);
        self.count += count;
        self
    }

    /// The lengths.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths[..self.count]
    }
}

/// The units that ranks divide among each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Units of the mixer, as query heads: those of a rank in each segment.
    Units(Segments),
    /// Units of the mixer, each of so many rows, behind each of which as many have another role.
    Alternating(usize),
    /// Key and value heads, each of so many rows.
    HeadsKv(usize),
    /// Inner columns of the feed-forward network.
    FeedForward,
    /// Inner columns of the shared expert.
    Shared,
    /// Rows of the output matrix.
    Vocabulary,
    /// The layers of the stage, each of so many rows.
    Layers(usize),
}

impl Share {
    /// Units of the mixer, each of so many rows or columns.
    pub(crate) fn units(length: usize) -> Self {
        Self::Units(Segments::default().and(1, length))
    }
}

impl TensorSpec {
    pub(crate) fn matrix(role: TensorRole, name: &'static str, columns: usize, rows: usize, cut: Cut) -> Self {
        let dimensions = [columns, rows, 1];
        Self { role, name, dimensions, fused: None, cut, is_vector: false, is_float: false, is_optional: false }
    }

    /// Columns, rows and number of matrices of the tensor in the file.
    pub fn file_dimensions(&self) -> [usize; 3] {
        let [columns, rows, count] = self.dimensions;
        match self.fused {
            None => self.dimensions,
            Some(fused) if self.is_list() => [fused.rows, rows, count],
            Some(fused) => [columns, fused.rows, count],
        }
    }

    /// Whether it is a single row, whose parts are columns.
    pub const fn is_list(&self) -> bool {
        self.is_vector && self.dimensions[1] == 1
    }

    /// The name of the tensor that a file may have with a factor of this one's products: `[1]`, or `[experts]`; `None` if
    /// there is no such tensor for its role.
    pub fn scale_name(&self) -> Option<String> {
        match self.role {
            TensorRole::Embedding | TensorRole::InputEmbedding | TensorRole::Router => None,
            // As in llama.cpp.
            TensorRole::LatentQuery | TensorRole::LatentValue => None,
            // Also if the output matrix is the embedding.
            TensorRole::Output => Some("output.scale".into()),
            _ if self.is_vector => None,
            _ => self.name.strip_suffix("weight").map(|name| format!("{name}scale")),
        }
    }

    /// The filters of a convolution, a row for each channel.
    pub(crate) fn filters(name: &'static str, taps: usize, channels: usize, cut: Cut) -> Self {
        let vector = Self::vector(TensorRole::Filter, name, taps);
        Self { dimensions: [taps, channels, 1], cut, ..vector }
    }

    pub(crate) fn vector(role: TensorRole, name: &'static str, length: usize) -> Self {
        let dimensions = [length, 1, 1];
        let cut = Cut::Whole;
        Self { role, name, dimensions, fused: None, cut, is_vector: true, is_float: true, is_optional: false }
    }
}

impl ModelSpec {
    /// The tensors outside the layers.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        use TensorRole::{Embedding, Output, OutputNorm, PooledInner, PooledOutput, RopeFactors, RopeFactorsLong};
        let (embedding, vocabulary) = (self.embedding_length, self.vocabulary_length);
        let mut tensors = vec![TensorSpec::matrix(Embedding, TOKEN_EMBEDDING, embedding, vocabulary, Cut::OnDisk)];
        // A predictor has the output matrix of its model.
        if self.generates() && self.predictor.is_none() {
            let name = if self.tied_output { TOKEN_EMBEDDING } else { "output.weight" };
            tensors.push(TensorSpec::matrix(Output, name, embedding, vocabulary, Cut::Rows(Share::Vocabulary)));
        }
        if self.predictor.is_none_or(|own| !own.has_output_norm) {
            tensors.push(TensorSpec::vector(OutputNorm, self.output_norm.name(), embedding));
        }
        let columns = self.pooled_columns;
        if columns > 0 {
            tensors.extend([
                TensorSpec::matrix(PooledInner, "dense_2.weight", embedding, columns, Cut::Whole),
                TensorSpec::matrix(PooledOutput, "dense_3.weight", columns, embedding, Cut::Whole),
            ]);
        }
        tensors.extend(self.input_tensors());
        for rope in &self.ropes {
            let factors: &[(TensorRole, &str)] = match rope.scaling {
                Scaling::Long(_) => {
                    &[(RopeFactors, "rope_factors_short.weight"), (RopeFactorsLong, "rope_factors_long.weight")]
                }
                _ if rope.has_factors => &[(RopeFactors, ROPE_FACTORS)],
                _ => &[],
            };
            let length = rope.dimension_count / 2;
            tensors.extend(factors.iter().map(|(role, name)| TensorSpec::vector(*role, name, length)));
        }
        tensors
    }

    /// The tensors of the inputs that tokens have for each layer.
    fn input_tensors(&self) -> Vec<TensorSpec> {
        use TensorRole::{InputEmbedding, InputNorm, InputProjection};
        let (length, embedding) = (self.input_length(), self.embedding_length);
        if length == 0 {
            return Vec::new();
        }
        let all = length * self.block_count();
        let of_layers = Cut::Rows(Share::Layers(length));
        let table = (InputEmbedding, "per_layer_token_embd.weight");
        vec![
            TensorSpec::matrix(table.0, table.1, all, self.vocabulary_length, Cut::OnDisk),
            TensorSpec::matrix(InputProjection, "per_layer_model_proj.weight", embedding, all, of_layers),
            TensorSpec::vector(InputNorm, "per_layer_proj_norm.weight", length),
        ]
    }

    /// The tensors of a layer.
    pub fn layer_tensors(&self, layer: usize) -> Vec<TensorSpec> {
        let mut tensors = self.layer(layer).tensors(self.embedding_length);
        tensors.extend(self.predictor.iter().flat_map(|own| own.tensors(self.embedding_length)));
        tensors
    }
}

/// The name of the embedding in every family.
pub(crate) const TOKEN_EMBEDDING: &str = "token_embd.weight";
/// The name of the gates and ups of all experts in one tensor.
pub(crate) const FUSED_EXPERTS: &str = "ffn_gate_up_exps.weight";
/// The name of the last matrices of all experts.
pub(crate) const DOWN_EXPERTS: &str = "ffn_down_exps.weight";
/// The name of the divisors of rotation angles in every family.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

impl LayerSpec {
    /// The tensors of such a layer in a model with hidden states of this length.
    pub fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{FeedForwardNorm, FeedForwardPostNorm, MixerNorm, MixerPostNorm};
        let norms: &[(TensorRole, &str)] = match self.norms {
            Norms::Before => &[(MixerNorm, "attn_norm.weight"), (FeedForwardNorm, "ffn_norm.weight")],
            Norms::BeforeAsPost => &[(MixerNorm, "attn_norm.weight"), (FeedForwardNorm, "post_attention_norm.weight")],
            Norms::One if self.mixer == Mixer::None => &[(FeedForwardNorm, "attn_norm.weight")],
            Norms::Parallel | Norms::One => &[(MixerNorm, "attn_norm.weight")],
            Norms::Around => &[
                (MixerNorm, "attn_norm.weight"),
                (MixerPostNorm, "post_attention_norm.weight"),
                (FeedForwardNorm, "ffn_norm.weight"),
                (FeedForwardPostNorm, "post_ffw_norm.weight"),
            ],
            Norms::Behind => {
                &[(MixerPostNorm, "post_attention_norm.weight"), (FeedForwardPostNorm, "post_ffw_norm.weight")]
            }
        };
        let has_branch = self.feed_forward.has_branch();
        let norms = norms.iter().map(|(role, name)| match role {
            FeedForwardNorm if has_branch => TensorSpec::vector(*role, "pre_ffw_norm_2.weight", embedding),
            _ => TensorSpec::vector(*role, name, embedding),
        });
        let mut tensors: Vec<TensorSpec> = norms.collect();
        tensors.extend(self.mixer.tensors(embedding));
        tensors.extend(self.feed_forward.tensors(embedding));
        tensors.extend(self.input_tensors(embedding));
        if self.has_output_scale {
            tensors.push(TensorSpec::vector(TensorRole::OutputScale, "layer_output_scale.weight", 1));
        }
        tensors
    }

    /// The matrices for the token's input to this layer, whole on every rank: they are small.
    fn input_tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{InputGate, InputOutput, InputPostNorm};
        let length = self.input_length;
        if length == 0 {
            return Vec::new();
        }
        vec![
            TensorSpec::matrix(InputGate, "inp_gate.weight", embedding, length, Cut::Whole),
            TensorSpec::matrix(InputOutput, "proj.weight", length, embedding, Cut::Whole),
            TensorSpec::vector(InputPostNorm, "post_norm.weight", embedding),
        ]
    }
}

impl Mixer {
    fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        match self {
            Self::Attention(attention) => attention.tensors(embedding),
            Self::Convolution(convolution) => convolution.tensors(embedding),
            Self::Delta(delta) => delta.tensors(embedding),
            Self::StateSpace(space) => space.tensors(embedding),
            Self::None => Vec::new(),
            Self::Latent(latent) => latent.tensors(embedding),
        }
    }
}

impl AttentionSpec {
    fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{AttentionOutputBias, KeyNorm, MixerOutput, QueryNorm, Sinks};
        let (length, queries) = (self.head_length, self.head_count * self.head_length);
        let of_heads = Cut::Columns(Share::units(length));
        let mut tensors = self.projections(embedding);
        tensors.push(TensorSpec::matrix(MixerOutput, "attn_output.weight", queries, embedding, of_heads));
        let bias = TensorSpec::vector(AttentionOutputBias, "attn_output.bias", embedding);
        tensors.push(TensorSpec { cut: Cut::Once, is_optional: !self.needs_output_bias, ..bias });
        if self.has_sinks {
            let sinks = TensorSpec::vector(Sinks, "attn_sinks.weight", self.head_count);
            tensors.push(TensorSpec { cut: Cut::Columns(Share::units(1)), ..sinks });
        }
        let norms = match self.head_norms {
            HeadNorms::None => None,
            HeadNorms::BeforeRotation | HeadNorms::AfterRotation => Some([length; 2]),
            HeadNorms::Whole => Some([queries, self.head_count_kv * length]),
        };
        if let Some([query, key]) = norms {
            tensors.push(TensorSpec::vector(QueryNorm, "attn_q_norm.weight", query));
            if self.keys_of.is_none() {
                tensors.push(TensorSpec::vector(KeyNorm, "attn_k_norm.weight", key));
            }
        }
        tensors
    }

    /// Queries, keys and values with their biases.
    fn projections(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{Key, KeyBias, Query, QueryBias, Value, ValueBias};
        let length = self.head_length;
        let (queries, keys) = (self.head_count * length, self.head_count_kv * length);
        let rows = queries + 2 * keys;
        // A gate behind each query.
        let gated = if self.has_gate { 2 } else { 1 };
        let (of_heads, of_kv) = (Share::units(gated * length), Share::HeadsKv(length));
        let all = [
            (Query, QueryBias, ["attn_q.weight", "attn_q.bias"], 0, gated * queries, of_heads),
            (Key, KeyBias, ["attn_k.weight", "attn_k.bias"], queries, keys, of_kv),
            (Value, ValueBias, ["attn_v.weight", "attn_v.bias"], queries + keys, keys, of_kv),
        ];
        let parts = match self.keys_of {
            Some(_) => &all[..1],
            None if self.values_are_keys => &all[..2],
            None => &all,
        };
        let tensors = parts.iter().flat_map(|(role, bias_role, [name, bias_name], first, count, share)| {
            let (first, count, share) = (*first, *count, *share);
            let weight = TensorSpec::matrix(*role, name, embedding, count, Cut::Rows(share));
            let bias = TensorSpec::vector(*bias_role, bias_name, count);
            let bias = TensorSpec { cut: Cut::Columns(share), is_optional: !self.needs_biases, ..bias };
            let is_whole = self.head_norms == HeadNorms::Whole && *role != Value;
            let cut = |share| if is_whole { Cut::Whole } else { share };
            let (weight, bias) =
                (TensorSpec { cut: cut(weight.cut), ..weight }, TensorSpec { cut: cut(bias.cut), ..bias });
            if !self.is_fused {
                return [weight, bias];
            }
            let fused = Some(Fused { rows, first });
            [
                TensorSpec { name: "attn_qkv.weight", fused, ..weight },
                TensorSpec { name: "attn_qkv.bias", fused, ..bias },
            ]
        });
        tensors.collect()
    }
}

impl FeedForward {
    fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        match self {
            Self::Dense(dense) => dense.tensors(embedding),
            Self::Experts(experts) => experts.tensors(embedding),
            Self::None => Vec::new(),
        }
    }
}

impl DenseSpec {
    fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{Down, Gate, Up};
        let columns = self.columns;
        let (rows, inner) = (Cut::Rows(Share::FeedForward), Cut::Columns(Share::FeedForward));
        let mut gate = TensorSpec::matrix(Gate, "ffn_gate.weight", embedding, columns, rows);
        let mut up = TensorSpec::matrix(Up, "ffn_up.weight", embedding, columns, rows);
        if self.is_fused {
            let fused = |first| Some(Fused { rows: 2 * columns, first });
            gate = TensorSpec { name: "ffn_up.weight", fused: fused(0), ..gate };
            up.fused = fused(columns);
        }
        let down = TensorSpec::matrix(Down, "ffn_down.weight", columns, embedding, inner);
        if self.activation.is_gated() { vec![gate, up, down] } else { vec![up, down] }
    }
}

impl ExpertsSpec {
    fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{Down, DownBias, Gate, GateBias, Router, RouterBias, Up, UpBias};
        let (columns, count) = (self.columns, self.count);
        let (rows, inner) = (Cut::Rows(Share::FeedForward), Cut::Columns(Share::FeedForward));
        let stack = |role, name, columns, rows, cut| {
            let one = TensorSpec::matrix(role, name, columns, rows, cut);
            TensorSpec { dimensions: [columns, rows, count], ..one }
        };
        let router = TensorSpec::matrix(Router, "ffn_gate_inp.weight", embedding, count, Cut::Whole);
        let mut gate = stack(Gate, "ffn_gate_exps.weight", embedding, columns, rows);
        let mut up = stack(Up, "ffn_up_exps.weight", embedding, columns, rows);
        if self.is_fused {
            let fused = |first| Some(Fused { rows: 2 * columns, first });
            gate = TensorSpec { name: FUSED_EXPERTS, fused: fused(0), ..gate };
            up = TensorSpec { name: FUSED_EXPERTS, fused: fused(columns), ..up };
        }
        let down = stack(Down, DOWN_EXPERTS, columns, embedding, inner);
        let mut tensors = vec![TensorSpec { is_float: true, ..router }, gate, up, down];
        tensors.retain(|tensor| tensor.role != Gate || self.activation.is_gated());
        if self.router.has_selection_bias {
            tensors.push(TensorSpec::vector(TensorRole::SelectionBias, "exp_probs_b.bias", count));
        }
        if let Some(shared) = &self.shared {
            let shared = shared.tensors(embedding).into_iter();
            tensors.extend(shared.filter(|tensor| tensor.role != TensorRole::SharedGate || self.activation.is_gated()));
        }
        if self.has_biases {
            let biases = |role, name, columns, cut| TensorSpec {
                dimensions: [columns, count, 1],
                cut,
                ..TensorSpec::vector(role, name, columns)
            };
            tensors.extend([
                TensorSpec::vector(RouterBias, "ffn_gate_inp.bias", count),
                biases(GateBias, "ffn_gate_exps.bias", columns, inner),
                biases(UpBias, "ffn_up_exps.bias", columns, inner),
                biases(DownBias, "ffn_down_exps.bias", embedding, Cut::Once),
            ]);
        }
        tensors
    }
}

impl SharedSpec {
    fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{SharedDown, SharedGate, SharedRouter, SharedUp};
        let columns = self.columns;
        let (rows, inner) = (Cut::Rows(Share::Shared), Cut::Columns(Share::Shared));
        let [gate, up, down] = if self.is_branch {
            ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]
        } else {
            ["ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"]
        };
        let mut tensors = vec![
            TensorSpec::matrix(SharedGate, gate, embedding, columns, rows),
            TensorSpec::matrix(SharedUp, up, embedding, columns, rows),
            TensorSpec::matrix(SharedDown, down, columns, embedding, inner),
        ];
        if self.is_branch {
            tensors.extend([
                TensorSpec::vector(TensorRole::SharedNorm, "ffn_norm.weight", embedding),
                TensorSpec::vector(TensorRole::SharedPostNorm, "post_ffw_norm_1.weight", embedding),
                TensorSpec::vector(TensorRole::ExpertsPostNorm, "post_ffw_norm_2.weight", embedding),
                TensorSpec::vector(TensorRole::RouterScale, "ffn_gate_inp.scale", embedding),
            ]);
        }
        if self.is_weighted {
            tensors.push(TensorSpec::vector(SharedRouter, "ffn_gate_inp_shexp.weight", embedding));
        }
        tensors
    }
}
