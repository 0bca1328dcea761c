//! Gemma 3: five layers that attend to a window follow each other before one that attends to everything; norms around
//! both halves of a layer.
use gguf::GgufError;

use super::{
    Family,
    common::{attention, block_count, dense, model, rope, windowed},
};
use crate::{
    feed_forward::{Activation, DenseSpec, FeedForward},
    keys::Keys,
    limits::CONTEXT_LENGTH_MAX,
    mixer::{AttentionSpec, HeadNorms},
    rotation::{RopeSpec, Rotation, Scaling},
    spec::{LayerSpec, ModelSpec, Norms},
};

/// The rotation of layers that attend to everything.
const FULL: u8 = 0;
/// The rotation of layers with a window.
const WINDOWED: u8 = 1;
/// Layers of the 27B model, whose scores have another scale.
const LARGEST: usize = 62;

pub(super) const FAMILY: Family = Family { name: "gemma3", spec };

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec, GgufError> {
    let mut spec = model(keys)?;
    spec.embedding_scale = (spec.embedding_length as f32).sqrt();
    spec.logit_cap = keys.float("final_logit_softcapping")?.map(|cap| cap as f32).filter(|cap| *cap > 0.0);
    let count = block_count(keys)?;
    let mut attention =
        AttentionSpec { head_norms: HeadNorms::BeforeRotation, ..attention(keys, spec.embedding_length)? };
    if count == LARGEST {
        attention.scale = 1.0 / ((spec.embedding_length / attention.head_count) as f32).sqrt();
    }
    let full = rope(keys, attention.head_length, Rotation::Halves)?;
    let freq_base = keys.positive("rope.freq_base_swa", Some(10_000.0))?;
    spec.ropes = vec![full.clone(), RopeSpec { freq_base, scaling: Scaling::None, ..full }];
    let feed_forward = match dense(keys)? {
        FeedForward::Dense(dense) => FeedForward::Dense(DenseSpec { activation: Activation::Gelu, ..dense }),
        experts => experts,
    };
    let window = keys.length("attention.sliding_window", CONTEXT_LENGTH_MAX)?;
    let layers = windowed(keys, count, 6)?.into_iter().map(|is_windowed| {
        let rope = Some(if is_windowed { WINDOWED } else { FULL });
        let attention = AttentionSpec { window: is_windowed.then_some(window), rope, ..attention.clone() };
        LayerSpec { norms: Norms::Around, ..LayerSpec::attending(attention, feed_forward.clone()) }
    });
    Ok(spec.with_layers(layers))
}
