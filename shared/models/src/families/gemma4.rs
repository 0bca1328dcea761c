//! Gemma 4: layers with a window and layers that attend to everything have heads of different lengths; the last layers
//! may read the keys of earlier ones; tokens may have an input for each layer; experts may run next to a dense network.
use gguf::GgufError;

use super::{
    Family,
    common::{HEAD_COUNT_KV, block_count, expert_layer, heads, model, scaling},
};
use crate::{
    keys::Keys,
    limits::{
        BLOCK_COUNT_MAX, CONTEXT_LENGTH_MAX, EMBEDDING_LENGTH_MAX, FEED_FORWARD_LENGTH_MAX, HEAD_COUNT_MAX,
        HEAD_LENGTH_MAX,
    },
    spec::{
        Activation, AttentionSpec, DenseSpec, ExpertsSpec, FeedForward, HeadNorms, LayerSpec, Norms, RopeSpec,
        Rotation, Scaling, SharedSpec,
    },
    tensors::ROPE_FACTORS,
};

/// The rotation of layers that attend to everything.
const FULL: u8 = 0;
/// The rotation of layers with a window.
const WINDOWED: u8 = 1;
/// Which layers have a window.
const PATTERN: &str = "attention.sliding_window_pattern";
/// Elements of each token's input for each layer; 0 or absent without it.
const INPUT: &str = "embedding_length_per_layer_input";
/// How many of the last layers read the keys of earlier ones.
const SHARED: &str = "attention.shared_kv_layers";

pub(super) const FAMILY: Family = Family {
    name: "gemma4",
    spec: |keys| {
        let mut spec = model(keys)?;
        spec.embedding_scale = (spec.embedding_length as f32).sqrt();
        spec.logit_cap = keys.float("final_logit_softcapping")?.map(|cap| cap as f32).filter(|cap| *cap > 0.0);
        let count = block_count(keys)?;
        let lengths = [head_length(keys, "")?, head_length(keys, "_swa")?];
        let full = rope(keys, "", lengths[0])?;
        spec.ropes = vec![full, RopeSpec { scaling: Scaling::None, ..rope(keys, "_swa", lengths[1])? }];
        let is_windowed = keys.layer_flags(PATTERN, count)?;
        let windowed = attentions(keys, &is_windowed, lengths)?;
        let columns = keys.layer_lengths("feed_forward_length", FEED_FORWARD_LENGTH_MAX, count)?;
        let input_length = match keys.count(INPUT)? {
            0 => 0,
            _ => keys.length(INPUT, EMBEDDING_LENGTH_MAX)?,
        };
        let layers = windowed.into_iter().zip(columns).enumerate().map(|(layer, (attention, columns))| {
            let has_output_scale = keys.has_tensor(&format!("blk.{layer}.layer_output_scale.weight"));
            let feed_forward = feed_forward(keys, layer, columns)?;
            let (norms, residual_scale) = (Norms::Around, 1.0);
            Ok(LayerSpec { attention, feed_forward, norms, residual_scale, input_length, has_output_scale })
        });
        let layers = layers.collect::<Result<Vec<_>, GgufError>>()?;
        Ok(spec.with_layers(layers))
    },
};

/// Elements of a head in layers of a kind: of both keys and values.
fn head_length(keys: &Keys<'_>, kind: &str) -> Result<usize, GgufError> {
    let [key, value] = ["key", "value"].map(|of| format!("attention.{of}_length{kind}"));
    let length = keys.length(&key, HEAD_LENGTH_MAX)?;
    if !length.is_multiple_of(2) {
        return Err(keys.refuse(&key, length, "it must be even"));
    }
    let value_length = keys.length(&value, HEAD_LENGTH_MAX)?;
    if value_length != length {
        let reason = format!("only heads whose values are as long as their keys ({length}) are supported");
        return Err(keys.refuse(&value, value_length, reason));
    }
    Ok(length)
}

/// The rotation in layers of a kind with heads of this length.
fn rope(keys: &Keys<'_>, kind: &str, head_length: usize) -> Result<RopeSpec, GgufError> {
    let name = format!("rope.dimension_count{kind}");
    let dimension_count = keys.optional_length(&name, HEAD_LENGTH_MAX)?.unwrap_or(head_length);
    if !dimension_count.is_multiple_of(2) || dimension_count > head_length {
        let reason = format!("it must be even and at most the head length {head_length}");
        return Err(keys.refuse(&name, dimension_count, reason));
    }
    Ok(RopeSpec {
        rotation: Rotation::Halves,
        dimension_count,
        freq_base: keys.positive(&format!("rope.freq_base{kind}"), Some(10_000.0))?,
        scaling: scaling(keys)?,
        // Only layers that attend to everything have divisors: they turn a part of the pairs alone.
        has_factors: kind.is_empty() && keys.has_tensor(ROPE_FACTORS),
        sections: None,
    })
}

/// The attention of each layer; `[usize; 2]` are the head lengths without and with a window.
fn attentions(keys: &Keys<'_>, is_windowed: &[bool], lengths: [usize; 2]) -> Result<Vec<AttentionSpec>, GgufError> {
    let count = block_count(keys)?;
    let window = keys.length("attention.sliding_window", CONTEXT_LENGTH_MAX)?;
    let head_counts = keys.layer_lengths("attention.head_count", HEAD_COUNT_MAX, count)?;
    let kv_counts = keys.layer_lengths(HEAD_COUNT_KV, HEAD_COUNT_MAX, count)?;
    let shared = keys.count(SHARED)?;
    // The two layers before the shared ones have their keys: one with a window, and one without.
    let own = usize::try_from(shared).ok().and_then(|shared| count.checked_sub(shared)).unwrap_or(0);
    if shared > BLOCK_COUNT_MAX || shared > 0 && (own < 2 || !is_windowed[own - 2] || is_windowed[own - 1]) {
        let reason = "the two layers before those must be one with a window and then one without";
        return Err(keys.refuse(SHARED, shared, reason));
    }
    let layers = (0..count).map(|layer| {
        let is_windowed = is_windowed[layer];
        let length = lengths[usize::from(is_windowed)];
        let keys_of = (layer >= own).then(|| own - if is_windowed { 2 } else { 1 });
        let attention = heads(keys, [head_counts[layer], kv_counts[layer], length])?;
        Ok(AttentionSpec {
            rope: Some(if is_windowed { WINDOWED } else { FULL }),
            scale: 1.0,
            window: is_windowed.then_some(window),
            // Bounded by the number of layers.
            keys_of: keys_of.map(|source| source as u16),
            values_are_keys: keys_of.is_none() && !keys.has_tensor(&format!("blk.{layer}.attn_v.weight")),
            has_value_norm: true,
            head_norms: HeadNorms::BeforeRotation,
            ..attention
        })
    });
    layers.collect()
}

/// A dense network, or experts next to one.
fn feed_forward(keys: &Keys<'_>, layer: usize, columns: usize) -> Result<FeedForward, GgufError> {
    let activation = Activation::Gelu;
    if !keys.has_tensor(&format!("blk.{layer}.ffn_gate_inp.weight")) {
        return Ok(FeedForward::Dense(DenseSpec { columns, activation, is_fused: false }));
    }
    let of_expert = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    let shared = Some(SharedSpec { columns, is_weighted: false, is_branch: true });
    Ok(FeedForward::Experts(ExpertsSpec { activation, shared, ..expert_layer(keys, of_expert)? }))
}
