//! A model's hyper-parameters, resolved: what each layer computes, without reference to a family.
use serde::{Deserialize, Serialize};

use crate::{
    feed_forward::FeedForward,
    limits::{
        BLOCK_COUNT_MAX, CONTEXT_LENGTH_MAX, EMBEDDING_LENGTH_MAX, EXPERT_COUNT_MAX, FEED_FORWARD_LENGTH_MAX,
        VOCABULARY_LENGTH_MAX, within,
    },
    mixer::{AttentionSpec, Mixer, SQUARES_BLOCK},
    rotation::RopeSpec,
};

/// A model. Checked when it is read; [`ModelSpec::is_sound`] checks one from another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// `general.architecture`, for messages.
    pub architecture: String,
    /// `general.name`, printable, truncated if very long; may be empty.
    pub name: String,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Elements of a hidden state.
    pub embedding_length: usize,
    /// Rows of the embedding and of the output matrix.
    pub vocabulary_length: usize,
    /// What all norms divide by. Descriptions of earlier builds lack it.
    #[serde(default)]
    pub norm: NormKind,
    /// Added under the root in norms.
    pub norm_epsilon: f32,
    /// Factor of the embedding.
    pub embedding_scale: f32,
    /// Whether the embedding is also the output matrix.
    pub tied_output: bool,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Logits are limited smoothly to plus or minus this: `cap tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// How the hidden states of a text become its embedding; `None`: the model is not made for embeddings.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// The name of the norm before the output matrix.
    #[serde(default)]
    pub output_norm: OutputNorm,
    /// Inner columns of the two matrices that an embedding is multiplied with; 0 without them.
    #[serde(default)]
    pub pooled_columns: usize,
    /// Tables of rotation angles.
    pub ropes: Vec<RopeSpec>,
    /// The different layers of the model.
    pub kinds: Vec<LayerSpec>,
    /// The kind of each layer.
    pub layers: Vec<u16>,
    /// Where its layer is in the file, if it is a predictor: a model of one layer that reads the hidden states of the
    /// file's model.
    #[serde(default)]
    pub predictor: Option<Predictor>,
}

/// What a layer computes: `h += mixer(norm(h)); h += feed_forward(norm(h))`, or both at once ([`Norms::Parallel`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// The first half.
    pub mixer: Mixer,
    /// The second half.
    pub feed_forward: FeedForward,
    /// The norms before and behind the halves.
    pub norms: Norms,
    /// Factor of what each half adds.
    pub residual_scale: f32,
    /// Elements of the input that each token has for this layer alone, which is added behind both halves; 0 without it.
    #[serde(default)]
    pub input_length: usize,
    /// Whether the result is multiplied by a factor of the layer.
    #[serde(default)]
    pub has_output_scale: bool,
}

/// The block behind the layers of some models that predicts the token after the next one (multi-token prediction,
/// DeepSeek-V3 2024; `nextn` in files), as a model of one layer: instead of an embedding, the layer reads the embedding
/// of a token joined with the hidden state of the file's model before that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predictor {
    /// Number of its block.
    pub block: usize,
    /// Whether it has a norm of its own before the output matrix, which is that of the file's model.
    pub has_output_norm: bool,
}

/// How the hidden states of a text, after the output norm, become its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The state of the first token.
    First,
    /// The state of the last token.
    Last,
}

/// The name of the norm before the output matrix in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputNorm {
    /// `output_norm`
    #[default]
    Output,
    /// `token_embd_norm`
    Embedding,
}

/// How norms scale a hidden state. Norms of heads are always [`NormKind::Rms`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormKind {
    /// By its root mean square (Zhang and Sennrich 2019).
    #[default]
    Rms,
    /// By its standard deviation, around its mean, without a bias (Ba et al. 2016).
    Layer,
}

/// The norms of a layer, by the names that files give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Norms {
    /// Before both halves: `attn_norm` and `ffn_norm`.
    Before,
    /// Before both halves: `attn_norm` and `post_attention_norm`.
    BeforeAsPost,
    /// Before and behind both halves: `attn_norm`, `post_attention_norm`, `ffn_norm` and `post_ffw_norm`.
    Around,
    /// Behind both halves: `post_attention_norm` and `post_ffw_norm`.
    Behind,
    /// One before both halves, which read the same hidden state, so that ranks exchange one sum per layer: `attn_norm`.
    Parallel,
    /// One before the only half: `attn_norm`.
    One,
}

impl OutputNorm {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Output => "output_norm.weight",
            Self::Embedding => "token_embd_norm.weight",
        }
    }
}

impl LayerSpec {
    /// A layer with norms before both halves and nothing else.
    pub const fn new(mixer: Mixer, feed_forward: FeedForward) -> Self {
        let (norms, residual_scale) = (Norms::Before, 1.0);
        Self { mixer, feed_forward, norms, residual_scale, input_length: 0, has_output_scale: false }
    }

    /// The same with attention.
    pub const fn attending(attention: AttentionSpec, feed_forward: FeedForward) -> Self {
        Self::new(Mixer::Attention(attention), feed_forward)
    }

    /// Its attention, if it has any.
    pub const fn attention(&self) -> Option<&AttentionSpec> {
        self.mixer.attention()
    }

    /// Whether both halves read the same hidden state and their sum is added once.
    pub fn is_parallel(&self) -> bool {
        self.norms == Norms::Parallel
    }

    /// Whether it has a mixer, and whether it has a feed-forward network.
    pub fn halves(&self) -> [bool; 2] {
        [self.mixer != Mixer::None, self.feed_forward != FeedForward::None]
    }

    /// How many hidden states of each token ranks add up behind the mixer and behind the feed-forward network.
    pub fn sums(&self) -> [usize; 2] {
        let [mixes, feeds] = self.halves();
        let of_network = if self.feed_forward.has_branch() { 2 } else { 1 };
        [usize::from(mixes && !self.is_parallel()), if feeds { of_network } else { 0 }]
    }

    /// How many rows as long as a hidden state so many ranks add up behind either half for so many tokens.
    pub fn exchanges(&self, tokens: usize, ranks: usize, embedding: usize) -> [usize; 2] {
        let [mixer, network] = self.sums().map(|sums| sums * tokens);
        [mixer + self.mixer.squares_rows(tokens, ranks, embedding), network]
    }
}

impl ModelSpec {
    /// Gives the model these layers, in order.
    #[must_use]
    pub fn with_layers(mut self, layers: impl IntoIterator<Item = LayerSpec>) -> Self {
        (self.kinds, self.layers) = (Vec::new(), Vec::new());
        for layer in layers {
            let kind = self.kinds.iter().position(|kind| *kind == layer).unwrap_or_else(|| {
                self.kinds.push(layer);
                self.kinds.len() - 1
            });
            // At most as many kinds as layers, whose number is bounded.
            self.layers.push(kind as u16);
        }
        self
    }

    /// The predictor of this model: its layer is like the last one that attends. `None` if none does.
    pub fn with_predictor(&self, predictor: Predictor) -> Option<Self> {
        let mut layers = (0..self.block_count()).rev().map(|layer| self.layer(layer));
        let layer = layers.find(|layer| matches!(layer.mixer, Mixer::Attention(_)))?.clone();
        Some(Self { predictor: Some(predictor), ..self.clone() }.with_layers([layer]))
    }

    /// Changes each layer, by its number.
    #[must_use]
    pub fn map_layers(self, mut change: impl FnMut(usize, &mut LayerSpec)) -> Self {
        let mut layers: Vec<LayerSpec> = (0..self.layers.len()).map(|index| self.layer(index).clone()).collect();
        layers.iter_mut().enumerate().for_each(|(index, layer)| change(index, layer));
        self.with_layers(layers)
    }

    /// Sets the length of the blocks of the experts' weights, by the layer's number; a length of 0 for missing tensors.
    #[must_use]
    pub fn with_expert_blocks(self, length: impl Fn(usize) -> usize) -> Self {
        self.map_layers(|index, layer| {
            if let FeedForward::Experts(experts) = &mut layer.feed_forward {
                experts.block = length(index);
            }
        })
    }

    /// Changes the attention of each layer that has one, by the layer's number.
    #[must_use]
    pub fn map_attention(self, mut change: impl FnMut(usize, &mut AttentionSpec)) -> Self {
        self.map_layers(|index, layer| {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                change(index, attention);
            }
        })
    }

    /// Number of layers.
    pub fn block_count(&self) -> usize {
        self.layers.len()
    }

    /// The name in the file of a layer's tensor.
    pub fn layer_tensor(&self, layer: usize, name: &str) -> String {
        format!("blk.{}.{name}", layer + self.predictor.map_or(0, |own| own.block))
    }

    /// What a layer computes.
    pub fn layer(&self, index: usize) -> &LayerSpec {
        &self.kinds[usize::from(self.layers[index])]
    }

    /// Elements of the input that each token has for each layer; 0 without such inputs.
    pub fn input_length(&self) -> usize {
        self.kinds.first().map_or(0, |kind| kind.input_length)
    }

    /// The longest window of any layer that forgets; `None`: every layer keeps all positions.
    pub fn window(&self) -> Option<usize> {
        self.attentions().filter(|attention| attention.forgets()).filter_map(|attention| attention.window).max()
    }

    fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.kinds.iter().filter_map(LayerSpec::attention)
    }

    /// Whether layers have states, which cannot be taken back to an earlier position.
    pub fn has_state(&self) -> bool {
        self.kinds.iter().any(|kind| kind.mixer.state_length(1) > 0)
    }

    /// Whether hidden states between layers may exceed what f16 holds, 65504. Norms behind the halves of a layer multiply
    /// what it adds by weights of any size; those of Gemma 3 are known to overflow f16.
    pub fn has_wide_states(&self) -> bool {
        self.kinds.iter().any(|kind| kind.norms == Norms::Around)
    }

    /// Whether it continues texts; otherwise it has no logits.
    pub fn generates(&self) -> bool {
        self.attentions().all(|attention| attention.ahead == 0)
    }

    /// Most stages of a pipeline.
    pub fn stages_max(&self) -> usize {
        (0..self.layers.len()).filter(|first| self.can_begin_stage(*first)).count()
    }

    /// Whether a stage can begin with this layer: no layer from there on reads the keys of an earlier one.
    pub fn can_begin_stage(&self, first: usize) -> bool {
        let later = self.layers.get(first..).unwrap_or_default();
        let attentions = later.iter().filter_map(|kind| self.kinds[usize::from(*kind)].attention());
        let mut sources = attentions.filter_map(|attention| attention.keys_of);
        first == 0 || sources.all(|source| usize::from(source) >= first)
    }

    /// Whether the numbers are plausible: they may come from another machine, and computations with them take time and
    /// memory.
    pub fn is_sound(&self) -> bool {
        within(self.layers.len(), BLOCK_COUNT_MAX)
            && within(self.context_length, CONTEXT_LENGTH_MAX)
            && within(self.embedding_length, EMBEDDING_LENGTH_MAX)
            && within(self.vocabulary_length, VOCABULARY_LENGTH_MAX as u64)
            && self.pooled_columns as u64 <= FEED_FORWARD_LENGTH_MAX
            && self.predictor.is_none_or(|own| own.block as u64 <= BLOCK_COUNT_MAX && self.layers.len() == 1)
            && (self.pooling.is_some() || self.generates() && self.pooled_columns == 0)
            && self.kinds.len() <= self.layers.len()
            && self.layers.iter().all(|kind| usize::from(*kind) < self.kinds.len())
            && self.ropes.iter().all(RopeSpec::is_sound)
            && self.kinds.iter().all(|kind| self.is_sound_layer(kind))
            && (0..self.layers.len()).all(|layer| self.has_keys(layer))
    }

    /// Whether a layer has keys of its own, or an earlier layer has them in the same form.
    fn has_keys(&self, layer: usize) -> bool {
        let Some(own) = self.layer(layer).attention() else { return true };
        let Some(source) = own.keys_of.map(usize::from) else { return true };
        source < layer
            && self.layer(source).attention().is_some_and(|other| {
                let is_alike = (other.head_count, other.head_count_kv, other.head_length)
                    == (own.head_count, own.head_count_kv, own.head_length);
                is_alike && (other.window, other.ahead) == (own.window, own.ahead) && other.keys_of.is_none()
            })
    }

    /// Whether the factor of the sum over ranks is that of the mixer alone, and the squares of a rank fit in a row.
    fn can_hold_space(&self, layer: &LayerSpec) -> bool {
        matches!(layer.norms, Norms::Before | Norms::BeforeAsPost | Norms::One)
            && self.embedding_length >= SQUARES_BLOCK
    }

    fn is_sound_layer(&self, layer: &LayerSpec) -> bool {
        let LayerSpec { mixer, feed_forward, .. } = layer;
        let experts = feed_forward.experts().is_none_or(|experts| {
            within(experts.count, EXPERT_COUNT_MAX)
                && (1..=experts.count).contains(&experts.used_count)
                && feed_forward.shared_columns() as u64 <= FEED_FORWARD_LENGTH_MAX
                && experts.block as u64 <= FEED_FORWARD_LENGTH_MAX
        });
        let (halves, is_one) = (layer.halves(), layer.norms == Norms::One);
        mixer.is_sound(&self.ropes)
            && halves.contains(&true)
            && is_one == halves.contains(&false)
            && (!matches!(mixer, Mixer::StateSpace(_)) || self.can_hold_space(layer))
            && (!halves[1] || within(feed_forward.columns(), FEED_FORWARD_LENGTH_MAX))
            && layer.input_length == self.input_length()
            && layer.input_length as u64 <= EMBEDDING_LENGTH_MAX
            && experts
            && (feed_forward.activation().is_gated() || !feed_forward.has_branch())
            // Experts read a norm of their own.
            && !(layer.is_parallel() && feed_forward.experts().is_some())
            // Norms behind halves, and before experts, are always of the other kind.
            && (self.norm == NormKind::Rms || layer.is_parallel())
    }
}
