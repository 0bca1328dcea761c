//! Granite 4.0 H: state spaces in most layers, attention in the others; Granite's factors, some files with experts.
use gguf::GgufError;

use super::{
    Family,
    common::{HEAD_COUNT_KV, block_count, dense, heads, mixed, model, rope, taps},
    granite::with_factors,
};
use crate::{
    feed_forward::{FeedForward, SharedSpec},
    keys::Keys,
    limits::{EMBEDDING_LENGTH_MAX, FEED_FORWARD_LENGTH_MAX, HEAD_COUNT_MAX, HEAD_LENGTH_MAX},
    mixer::{AttentionSpec, Mixer, SQUARES_BLOCK, StateSpaceSpec},
    rotation::Rotation,
    spec::LayerSpec,
};

pub(super) const FAMILY: Family = Family {
    name: "granitehybrid",
    spec: |keys| {
        let mut spec = model(keys)?;
        let space = space(keys, spec.embedding_length)?;
        let head_count = keys.length("attention.head_count", HEAD_COUNT_MAX)?;
        let head_length = keys.head_length(spec.embedding_length, head_count)?;
        let feed_forward = feed_forward(keys)?;
        let counts = keys.layer_counts(HEAD_COUNT_KV, HEAD_COUNT_MAX, block_count(keys)?)?;
        let layers = counts.into_iter().enumerate().map(|(layer, head_count_kv)| {
            let mixer = match head_count_kv {
                0 => Mixer::StateSpace(space.clone()),
                _ => Mixer::Attention(attention(keys, layer, [head_count, head_count_kv, head_length])?),
            };
            Ok(LayerSpec::new(mixer, feed_forward.clone()))
        });
        let layers = layers.collect::<Result<Vec<_>, GgufError>>()?;
        spec.ropes = vec![rope(keys, head_length, Rotation::Neighbours)?];
        with_factors(keys, spec.with_layers(layers))
    },
};

/// One network, or experts with a shared one.
fn feed_forward(keys: &Keys<'_>) -> Result<FeedForward, GgufError> {
    if keys.count("expert_count")? == 0 {
        return dense(keys);
    }
    let columns = keys.optional_length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    // Experts have the length of the key for a single network.
    let length = keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    mixed(keys, 0, 0, SharedSpec::new(columns.unwrap_or(0)), length)
}

/// So many query heads and KV heads of a length in one of several layers.
pub(super) fn attention(keys: &Keys<'_>, layer: usize, lengths: [usize; 3]) -> Result<AttentionSpec, GgufError> {
    let is_fused = keys.has_tensor(&format!("blk.{layer}.attn_qkv.weight"));
    Ok(AttentionSpec { is_fused, ..heads(keys, lengths)? })
}

/// The state space of every layer that has one.
pub(super) fn space(keys: &Keys<'_>, embedding_length: usize) -> Result<StateSpaceSpec, GgufError> {
    const HEADS: &str = "ssm.time_step_rank";
    const GROUPS: &str = "ssm.group_count";
    const INNER: &str = "ssm.inner_size";
    if embedding_length < SQUARES_BLOCK {
        let reason = format!("models with state spaces must have at least {SQUARES_BLOCK}");
        return Err(keys.refuse("embedding_length", embedding_length, reason));
    }
    let heads = keys.length(HEADS, HEAD_COUNT_MAX)?;
    let groups = keys.length(GROUPS, HEAD_COUNT_MAX)?;
    let inner = keys.length(INNER, EMBEDDING_LENGTH_MAX)?;
    if !heads.is_multiple_of(groups) {
        return Err(keys.refuse(
            GROUPS,
            groups,
            format!("which does not divide the {heads} heads of ssm.time_step_rank"),
        ));
    }
    let head_length = inner / heads;
    if !inner.is_multiple_of(heads) || !(1..=HEAD_LENGTH_MAX).contains(&(head_length as u64)) {
        let reason = format!("it must be {heads} heads of at most {HEAD_LENGTH_MAX}");
        return Err(keys.refuse(INNER, inner, reason));
    }
    let key_length = keys.length("ssm.state_size", HEAD_LENGTH_MAX)?;
    Ok(StateSpaceSpec { heads, head_length, key_length, groups, taps: taps(keys, "ssm.conv_kernel")? })
}
