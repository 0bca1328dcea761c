//! LFM2: short convolutions in most layers, attention in the others.
use gguf::GgufError;

use super::{
    Family,
    common::{HEAD_COUNT_KV, block_count, dense, heads, model, rope, taps},
};
use crate::{
    feed_forward::FeedForward,
    keys::Keys,
    limits::{CONTEXT_LENGTH_MAX, HEAD_COUNT_MAX},
    mixer::{AttentionSpec, ConvolutionSpec, HeadNorms, Mixer},
    rotation::Rotation,
    spec::{LayerSpec, ModelSpec, OutputNorm},
};

pub(super) const FAMILY: Family = Family {
    name: "lfm2",
    spec: |keys| {
        let feed_forward = dense(keys)?;
        convolutional(keys, |_| Ok(feed_forward.clone()))
    },
};

/// A model whose layers without KV heads have a convolution.
pub(super) fn convolutional(
    keys: &Keys<'_>,
    feed_forward: impl Fn(usize) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    let mut spec = model(keys)?;
    let head_count = keys.length("attention.head_count", HEAD_COUNT_MAX)?;
    let head_length = keys.head_length(spec.embedding_length, head_count)?;
    let convolution = ConvolutionSpec { channels: spec.embedding_length, taps: taps(keys, "shortconv.l_cache")? };
    let window = keys.count("attention.sliding_window")?;
    let window = (window > 0).then(|| keys.length("attention.sliding_window", CONTEXT_LENGTH_MAX)).transpose()?;
    let counts = keys.layer_counts(HEAD_COUNT_KV, HEAD_COUNT_MAX, block_count(keys)?)?;
    let layers = counts.into_iter().enumerate().map(|(layer, head_count_kv)| {
        let mixer = match head_count_kv {
            0 => Mixer::Convolution(convolution.clone()),
            _ => Mixer::Attention(AttentionSpec {
                window,
                head_norms: HeadNorms::BeforeRotation,
                ..heads(keys, [head_count, head_count_kv, head_length])?
            }),
        };
        Ok(LayerSpec::new(mixer, feed_forward(layer)?))
    });
    let layers = layers.collect::<Result<Vec<_>, GgufError>>()?;
    spec.ropes = vec![rope(keys, head_length, Rotation::Halves)?];
    spec.output_norm = OutputNorm::Embedding;
    Ok(spec.with_layers(layers))
}
