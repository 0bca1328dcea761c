//! Gemma 4: layers with a window and layers that attend to everything have heads of different lengths; the last layers
//! may read the keys of earlier ones; tokens may have an input for each layer; experts may run next to a dense network.
use gguf::GgufError;

use super::{
    Family,
    common::{HEAD_COUNT_KV, block_count, expert_layer, heads, model, rope_of},
};
use crate::{
    feed_forward::{Activation, DenseSpec, ExpertsSpec, FeedForward, SharedSpec},
    keys::Keys,
    limits::{BLOCK_COUNT_MAX, CONTEXT_LENGTH_MAX, EMBEDDING_LENGTH_MAX, FEED_FORWARD_LENGTH_MAX, HEAD_COUNT_MAX},
    mixer::{AttentionSpec, HeadNorms},
    rotation::{RopeSpec, Rotation, Scaling},
    spec::{LayerSpec, Norms},
};

/// The rotation of layers that attend to everything.
const FULL: u8 = 0;
/// The rotation of layers with a window.
const WINDOWED: u8 = 1;
/// The end of the keys of layers with a window.
const WINDOW_KIND: &str = "_swa";
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
        let lengths = [keys.head_length_of("")?, keys.head_length_of(WINDOW_KIND)?];
        let full = rope_of(keys, "", lengths[0], Rotation::Halves)?;
        // Divisors turn a part of the pairs alone, only where all positions are attended to.
        let windowed = RopeSpec {
            scaling: Scaling::None,
            has_factors: false,
            ..rope_of(keys, WINDOW_KIND, lengths[1], Rotation::Halves)?
        };
        spec.ropes = vec![full, windowed];
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
            let layer = LayerSpec::attending(attention, feed_forward);
            Ok(LayerSpec { norms: Norms::Around, input_length, has_output_scale, ..layer })
        });
        let layers = layers.collect::<Result<Vec<_>, GgufError>>()?;
        Ok(spec.with_layers(layers))
    },
};

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
        for (name, counts) in [("attention.head_count", &head_counts), (HEAD_COUNT_KV, &kv_counts)] {
            if keys_of.is_some_and(|source| counts[source] != counts[layer]) {
                let reason = format!("layer {layer} uses the keys of another layer and must have as many heads");
                return Err(keys.refuse(name, counts[layer], reason));
            }
        }
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
    let shared = Some(SharedSpec { is_branch: true, ..SharedSpec::new(columns) });
    Ok(FeedForward::Experts(ExpertsSpec { activation, shared, ..expert_layer(keys, of_expert)? }))
}
