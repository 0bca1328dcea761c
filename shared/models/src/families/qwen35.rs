//! Qwen3.5 and 3.6: gated delta nets, and gated attention in every fourth layer.
use gguf::GgufError;

use super::{
    Family,
    common::{attention, block_count, dense, model, rope, taps},
    qwen3vl::in_sections,
};
use crate::{
    feed_forward::FeedForward,
    keys::Keys,
    limits::{BLOCK_COUNT_MAX, EMBEDDING_LENGTH_MAX, HEAD_COUNT_MAX, HEAD_LENGTH_MAX},
    mixer::{AttentionSpec, DeltaSpec, HeadNorms, Mixer, PER_KEY_MAX},
    rotation::Rotation,
    spec::{LayerSpec, ModelSpec, Norms},
};

pub(super) const FAMILY: Family =
    Family { name: "qwen35", spec: |keys| in_sections(keys, hybrid(keys, false, &dense(keys)?)?) };

/// A model of delta nets, whose value heads may be grouped by key head, and attention.
pub(super) fn hybrid(keys: &Keys<'_>, is_grouped: bool, feed_forward: &FeedForward) -> Result<ModelSpec, GgufError> {
    let mut spec = model(keys)?;
    let delta = DeltaSpec { is_grouped, ..delta(keys)? };
    let attention = AttentionSpec {
        has_gate: true,
        // Fused tensors of this name are those of the delta nets.
        is_fused: false,
        head_norms: HeadNorms::BeforeRotation,
        ..attention(keys, spec.embedding_length)?
    };
    spec.ropes = vec![rope(keys, attention.head_length, Rotation::Halves)?];
    let layers = recurrent(keys, block_count(keys)?)?.into_iter().map(|is_recurrent| {
        let mixer = match is_recurrent {
            true => Mixer::Delta(delta.clone()),
            false => Mixer::Attention(attention.clone()),
        };
        LayerSpec { norms: Norms::BeforeAsPost, ..LayerSpec::new(mixer, feed_forward.clone()) }
    });
    Ok(spec.with_layers(layers))
}

/// Whether each layer is a delta net: a flag for each, or all but the last of a period.
fn recurrent(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, GgufError> {
    const LAYERS: &str = "attention.recurrent_layers";
    if keys.flags(LAYERS)?.is_some() {
        return keys.layer_flags(LAYERS, layers);
    }
    let period = keys.optional_length("full_attention_interval", BLOCK_COUNT_MAX)?.unwrap_or(4);
    Ok((1..=layers).map(|number| !number.is_multiple_of(period)).collect())
}

fn delta(keys: &Keys<'_>) -> Result<DeltaSpec, GgufError> {
    const KEY_HEADS: &str = "ssm.group_count";
    const LENGTH: &str = "ssm.state_size";
    const INNER: &str = "ssm.inner_size";
    let key_heads = keys.length(KEY_HEADS, HEAD_COUNT_MAX)?;
    let value_heads = keys.length("ssm.time_step_rank", HEAD_COUNT_MAX)?;
    let head_length = keys.length(LENGTH, HEAD_LENGTH_MAX)?;
    let inner = keys.length(INNER, EMBEDDING_LENGTH_MAX)?;
    if !value_heads.is_multiple_of(key_heads) || value_heads / key_heads > PER_KEY_MAX {
        let reason = format!("it must divide the {value_heads} value heads into groups of at most {PER_KEY_MAX}");
        return Err(keys.refuse(KEY_HEADS, key_heads, reason));
    }
    if !head_length.is_multiple_of(32) {
        return Err(keys.refuse(LENGTH, head_length, "it must be a multiple of 32"));
    }
    if inner != value_heads * head_length {
        let reason = format!("but there are {value_heads} value heads of {head_length}");
        return Err(keys.refuse(INNER, inner, reason));
    }
    let taps = taps(keys, "ssm.conv_kernel")?;
    Ok(DeltaSpec { key_heads, value_heads, head_length, taps, is_grouped: false })
}
