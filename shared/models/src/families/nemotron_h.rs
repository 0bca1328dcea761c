//! Nemotron-H and Nemotron Nano 2: each layer is a state space, attention without rotation, or a network.
use gguf::GgufError;

use super::{
    Family,
    common::{HEAD_COUNT_KV, block_count, model_with_epsilon},
    granitehybrid::{attention, space},
};
use crate::{
    feed_forward::{Activation, DenseSpec, FeedForward},
    keys::Keys,
    limits::{FEED_FORWARD_LENGTH_MAX, HEAD_COUNT_MAX},
    mixer::{AttentionSpec, Mixer},
    spec::{LayerSpec, ModelSpec, NormKind, Norms},
};

pub(super) const FAMILY: Family = Family {
    name: "nemotron_h",
    spec: |keys| {
        if keys.count("expert_count")? > 0 {
            return Err(keys.unsupported("expert_count", keys.count("expert_count")?, "experts in this architecture"));
        }
        single(keys, |_, columns| {
            Ok(FeedForward::Dense(DenseSpec { columns, activation: Activation::SquaredRelu, is_fused: false }))
        })
    },
};

/// A model of layers with one half each; `network` is that of a layer with so many columns.
pub(super) fn single(
    keys: &Keys<'_>,
    network: impl Fn(usize, usize) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    const EPSILON: &str = "attention.layer_norm_rms_epsilon";
    let has_epsilon = keys.float(EPSILON)?.is_some();
    let epsilon = if has_epsilon { EPSILON } else { "attention.layer_norm_epsilon" };
    let spec = model_with_epsilon(keys, NormKind::Rms, epsilon)?;
    let space = space(keys, spec.embedding_length)?;
    let head_count = keys.length("attention.head_count", HEAD_COUNT_MAX)?;
    let head_length = keys.head_length(spec.embedding_length, head_count)?;
    let scale = keys.float("attention.scale")?.map(|_| keys.positive("attention.scale", None)).transpose()?;
    let count = block_count(keys)?;
    let heads_kv = keys.layer_counts(HEAD_COUNT_KV, HEAD_COUNT_MAX, count)?;
    let columns = keys.layer_counts("feed_forward_length", FEED_FORWARD_LENGTH_MAX, count)?;
    let layers = heads_kv.into_iter().zip(columns).enumerate().map(|(layer, (heads_kv, columns))| {
        let (mixer, feed_forward) = match (heads_kv, columns) {
            (0, 0) => (Mixer::StateSpace(space.clone()), FeedForward::None),
            (_, 0) => {
                let own = attention(keys, layer, [head_count, heads_kv, head_length])?;
                let own = AttentionSpec { rope: None, scale: scale.unwrap_or(own.scale), ..own };
                (Mixer::Attention(own), FeedForward::None)
            }
            _ => (Mixer::None, network(layer, columns)?),
        };
        Ok(LayerSpec { norms: Norms::One, ..LayerSpec::new(mixer, feed_forward) })
    });
    let layers = layers.collect::<Result<Vec<_>, GgufError>>()?;
    Ok(spec.with_layers(layers))
}
