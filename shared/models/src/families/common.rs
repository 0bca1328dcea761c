//! Keys that most families have.
use gguf::GgufError;

use crate::{
    feed_forward::{Activation, DenseSpec, ExpertGroups, ExpertsSpec, FeedForward, RouterSpec, Scores, SharedSpec},
    keys::Keys,
    limits::{
        BLOCK_COUNT_MAX, CONTEXT_LENGTH_MAX, EMBEDDING_LENGTH_MAX, EXPERT_COUNT_MAX, FEED_FORWARD_LENGTH_MAX,
        HEAD_COUNT_MAX, HEAD_LENGTH_MAX,
    },
    mixer::{AttentionSpec, TAPS_MAX},
    rotation::{LongSpec, RopeSpec, Rotation, Scaling, YarnSpec},
    spec::{LayerSpec, ModelSpec, NormKind, OutputNorm, Pooling},
    tensors::{FUSED_EXPERTS, ROPE_FACTORS, TOKEN_EMBEDDING},
};

/// A model without layers and rotation, whose norms divide by the root mean square.
pub(super) fn model(keys: &Keys<'_>) -> Result<ModelSpec, GgufError> {
    model_with(keys, NormKind::Rms)
}

/// A model without layers and rotation.
pub(super) fn model_with(keys: &Keys<'_>, norm: NormKind) -> Result<ModelSpec, GgufError> {
    let epsilon = match norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    model_with_epsilon(keys, norm, epsilon)
}

/// A model without layers and rotation. `epsilon` is the key of the number that its norms add under the root.
pub(super) fn model_with_epsilon(keys: &Keys<'_>, norm: NormKind, epsilon: &str) -> Result<ModelSpec, GgufError> {
    let vocabulary_length = keys
        .source
        .rows(TOKEN_EMBEDDING)
        .ok_or_else(|| GgufError::MissingTensor { tensor: TOKEN_EMBEDDING.into(), architecture: keys.architecture })?;
    Ok(ModelSpec {
        architecture: keys.architecture.into(),
        name: keys.source.text("general.name")?.unwrap_or_default(),
        context_length: keys.length("context_length", CONTEXT_LENGTH_MAX)?,
        embedding_length: keys.length("embedding_length", EMBEDDING_LENGTH_MAX)?,
        vocabulary_length,
        norm,
        norm_epsilon: keys.positive(epsilon, None)?,
        embedding_scale: 1.0,
        tied_output: !keys.has_tensor("output.weight"),
        logit_scale: 1.0,
        logit_cap: None,
        pooling: pooling(keys)?,
        output_norm: OutputNorm::Output,
        pooled_columns: 0,
        ropes: Vec::new(),
        kinds: Vec::new(),
        layers: Vec::new(),
        predictor: None,
    })
}

/// The numbers are those of llama.cpp (`llama_pooling_type`).
fn pooling(keys: &Keys<'_>) -> Result<Option<Pooling>, GgufError> {
    match keys.count("pooling_type")? {
        0 => Ok(None),
        1 => Ok(Some(Pooling::Mean)),
        2 => Ok(Some(Pooling::First)),
        3 => Ok(Some(Pooling::Last)),
        other => Err(keys.unsupported("pooling_type", other, "a pooling other than none, mean, first and last")),
    }
}

/// Number of layers, without the blocks that predict further tokens.
pub(super) fn block_count(keys: &Keys<'_>) -> Result<usize, GgufError> {
    const COUNT: &str = "block_count";
    let (all, behind) = (keys.length(COUNT, BLOCK_COUNT_MAX)?, keys.count("nextn_predict_layers")?);
    match usize::try_from(behind).ok().and_then(|behind| all.checked_sub(behind)) {
        Some(count) if count > 0 => Ok(count),
        _ => Err(keys.refuse(COUNT, all, format!("but nextn_predict_layers is {behind}"))),
    }
}

/// Heads without norms, rotated by the first table, and with scores divided by the square root of their length.
pub(super) fn attention(keys: &Keys<'_>, embedding_length: usize) -> Result<AttentionSpec, GgufError> {
    let head_count = keys.length("attention.head_count", HEAD_COUNT_MAX)?;
    let head_count_kv = keys.optional_length(HEAD_COUNT_KV, HEAD_COUNT_MAX)?.unwrap_or(head_count);
    let head_length = keys.head_length(embedding_length, head_count)?;
    heads(keys, [head_count, head_count_kv, head_length])
}

/// The key of the number of KV heads.
pub(super) const HEAD_COUNT_KV: &str = "attention.head_count_kv";

/// So many query heads and KV heads of a length.
pub(super) fn heads(keys: &Keys<'_>, lengths: [usize; 3]) -> Result<AttentionSpec, GgufError> {
    let [head_count, head_count_kv, head_length] = lengths;
    if !head_count.is_multiple_of(head_count_kv) {
        let reason = format!("which does not divide the {head_count} heads");
        return Err(keys.refuse(HEAD_COUNT_KV, head_count_kv, reason));
    }
    let is_fused = keys.has_tensor("blk.0.attn_qkv.weight");
    Ok(AttentionSpec { is_fused, ..AttentionSpec::new(head_count, head_count_kv, head_length) })
}

/// Whether each of so many layers attends to a window: a flag for each layer, or a period of which the last layer
/// attends to everything (0: no layer does).
pub(super) fn windowed(keys: &Keys<'_>, layers: usize, period: u64) -> Result<Vec<bool>, GgufError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let Ok(number) = keys.unsigned(PATTERN) else { return keys.layer_flags(PATTERN, layers) };
    let period = number.unwrap_or(period);
    Ok((0..layers as u64).map(|layer| period == 0 || layer % period < period - 1).collect())
}

/// Length of the filters of a convolution.
pub(super) fn taps(keys: &Keys<'_>, name: &str) -> Result<usize, GgufError> {
    match keys.length(name, TAPS_MAX as u64)? {
        1 => Err(keys.refuse(name, 1, format!("it must be 2 to {TAPS_MAX}"))),
        taps => Ok(taps),
    }
}

/// A single feed-forward network.
pub(super) fn dense(keys: &Keys<'_>) -> Result<FeedForward, GgufError> {
    match keys.count("expert_count")? {
        0 => {
            let columns = keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
            let is_fused = keys.source.rows("blk.0.ffn_up.weight") == Some(2 * columns);
            Ok(FeedForward::Dense(DenseSpec { columns, activation: Activation::Silu, is_fused }))
        }
        count => Err(keys.unsupported("expert_count", count, "a mixture of experts in this architecture")),
    }
}

/// Experts chosen by a softmax.
pub(super) fn experts(keys: &Keys<'_>) -> Result<FeedForward, GgufError> {
    let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    expert_layer(keys, columns).map(FeedForward::Experts)
}

/// Experts of so many columns, chosen by a softmax.
pub(super) fn expert_layer(keys: &Keys<'_>, columns: usize) -> Result<ExpertsSpec, GgufError> {
    const USED: &str = "expert_used_count";
    // 0 and 1: unspecified, softmax; 3: softmax over the chosen ones, which gives the same weights (llama.cpp,
    // llama_expert_gating_func_type).
    let scores = match keys.count("expert_gating_func")? {
        0 | 1 | 3 => Scores::Softmax,
        2 => Scores::Sigmoid,
        other => {
            return Err(keys.unsupported("expert_gating_func", other, "a router other than softmax and sigmoid"));
        }
    };
    let scale = keys.float("expert_weights_scale")?.unwrap_or(0.0) as f32;
    let scale = if scale == 0.0 { 1.0 } else { keys.positive("expert_weights_scale", None)? };
    let count = keys.length("expert_count", EXPERT_COUNT_MAX)?;
    let groups = expert_groups(keys, count)?;
    let router = RouterSpec { scores, has_selection_bias: false, is_normalised: true, scale, groups };
    let used_count = keys.length(USED, EXPERT_COUNT_MAX)?;
    if used_count > count {
        return Err(keys.refuse(USED, used_count, format!("but the model has {count} experts")));
    }
    Ok(ExpertsSpec {
        count,
        used_count,
        columns,
        activation: Activation::Silu,
        router,
        has_biases: false,
        // The last layer has experts in every family.
        is_fused: keys.has_tensor(&format!("blk.{}.{FUSED_EXPERTS}", block_count(keys)? - 1)),
        shared: None,
        block: 0,
    })
}

/// The groups of a layer's experts, if a choice among them is made.
fn expert_groups(keys: &Keys<'_>, experts: usize) -> Result<Option<ExpertGroups>, GgufError> {
    const COUNT: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    let count = match keys.optional_length(COUNT, EXPERT_COUNT_MAX)? {
        None | Some(1) => return Ok(None),
        Some(count) => count,
    };
    if !experts.is_multiple_of(count) || experts / count < 2 {
        return Err(keys.refuse(COUNT, count, format!("which does not divide {experts} experts into groups of two")));
    }
    let used_count = keys.length(USED, EXPERT_COUNT_MAX)?;
    if used_count > count {
        return Err(keys.refuse(USED, used_count, format!("but the model has {count} groups")));
    }
    Ok(Some(ExpertGroups { count, used_count }))
}

/// Rotation of heads of this length.
pub(super) fn rope(keys: &Keys<'_>, head_length: usize, rotation: Rotation) -> Result<RopeSpec, GgufError> {
    rope_of(keys, "", head_length, rotation)
}

/// Rotation of heads of this length in layers of a kind, which is the end of their keys.
pub(super) fn rope_of(
    keys: &Keys<'_>,
    kind: &str,
    head_length: usize,
    rotation: Rotation,
) -> Result<RopeSpec, GgufError> {
    let key = format!("rope.dimension_count{kind}");
    let dimension_count = keys.optional_length(&key, HEAD_LENGTH_MAX)?.unwrap_or(head_length);
    if !dimension_count.is_multiple_of(2) || dimension_count > head_length {
        let reason = format!("it must be even and at most the head length {head_length}");
        return Err(keys.refuse(&key, dimension_count, reason));
    }
    Ok(RopeSpec {
        rotation,
        dimension_count,
        freq_base: keys.positive(&format!("rope.freq_base{kind}"), Some(10_000.0))?,
        scaling: scaling(keys)?,
        has_factors: keys.has_tensor(ROPE_FACTORS),
        sections: None,
    })
}

/// A file with a factor but no type means linear scaling.
pub(super) fn scaling(keys: &Keys<'_>) -> Result<Scaling, GgufError> {
    const TYPE: &str = "rope.scaling.type";
    const FACTOR: &str = "rope.scaling.factor";
    /// The key in files from before 2023-11.
    const FORMER: &str = "rope.scale_linear";
    let kind = keys.text(TYPE)?;
    let factor = match kind.as_deref() {
        Some("none") => return Ok(Scaling::None),
        Some("linear") => keys.positive(FACTOR, None)?,
        Some("longrope") => return Ok(Scaling::Long(long(keys)?)),
        Some("yarn") => return yarn(keys, keys.positive(FACTOR, None)?).map(Scaling::Yarn),
        Some(other) => {
            return Err(keys.unsupported(TYPE, other, "a rope scaling other than none, linear, yarn and longrope"));
        }
        None if keys.float(FACTOR)?.is_some() => keys.positive(FACTOR, None)?,
        None => keys.positive(FORMER, Some(1.0))?,
    };
    Ok(if factor == 1.0 { Scaling::None } else { Scaling::Linear(factor) })
}

/// Divisors for short and for long contexts.
pub(super) fn long(keys: &Keys<'_>) -> Result<LongSpec, GgufError> {
    Ok(LongSpec {
        original_context: keys.length("rope.scaling.original_context_length", CONTEXT_LENGTH_MAX)?,
        magnitude: keys.positive("rope.scaling.attn_factor", Some(1.0))?,
    })
}

/// Experts of so many columns with a shared expert; the layers before `first` have one dense network instead.
pub(super) fn mixed(
    keys: &Keys<'_>,
    layer: usize,
    first: usize,
    shared: SharedSpec,
    columns: usize,
) -> Result<FeedForward, GgufError> {
    if layer < first {
        let columns = keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        return Ok(FeedForward::Dense(DenseSpec { columns, activation: Activation::Silu, is_fused: false }));
    }
    let mut experts = expert_layer(keys, columns)?;
    experts.router.has_selection_bias = keys.has_tensor(&format!("blk.{layer}.exp_probs_b.bias"));
    experts.shared = (shared.columns > 0).then_some(shared);
    Ok(FeedForward::Experts(experts))
}

/// YaRN with this factor (llama.cpp, `llama_context` and `rope_yarn`).
fn yarn(keys: &Keys<'_>, factor: f32) -> Result<YarnSpec, GgufError> {
    let trained = keys.length("context_length", CONTEXT_LENGTH_MAX)?;
    let original = keys.optional_length("rope.scaling.original_context_length", CONTEXT_LENGTH_MAX)?;
    let logarithmic = |slope: f32| if factor <= 1.0 { 1.0 } else { 0.1 * slope * factor.ln() + 1.0 };
    let slope = keys.float("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0) as f32;
    let own = if slope == 0.0 { logarithmic(1.0) } else { logarithmic(1.0) / logarithmic(slope) };
    Ok(YarnSpec {
        factor,
        original_context: original.unwrap_or(trained) as f32,
        beta_fast: keys.positive("rope.scaling.yarn_beta_fast", Some(32.0))?,
        beta_slow: keys.positive("rope.scaling.yarn_beta_slow", Some(1.0))?,
        magnitude: own * keys.positive("rope.scaling.attn_factor", Some(1.0))?,
    })
}

/// A model whose layers are all the same.
pub(super) fn uniform(
    keys: &Keys<'_>,
    rotation: Rotation,
    feed_forward: fn(&Keys<'_>) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    let mut spec = model(keys)?;
    let attention = attention(keys, spec.embedding_length)?;
    spec.ropes = vec![rope(keys, attention.head_length, rotation)?];
    let layer = LayerSpec::attending(attention, feed_forward(keys)?);
    Ok(spec.with_layers(std::iter::repeat_n(layer, block_count(keys)?)))
}

/// The model with layers of this attention, each with a feed-forward network of its own.
pub(super) fn layered(
    keys: &Keys<'_>,
    spec: ModelSpec,
    attention: &AttentionSpec,
    feed_forward: impl Fn(usize) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    let layers = (0..block_count(keys)?).map(|layer| Ok(LayerSpec::attending(attention.clone(), feed_forward(layer)?)));
    Ok(spec.with_layers(layers.collect::<Result<Vec<_>, GgufError>>()?))
}
