//! Command R7B and Command A: both halves of a layer read the same norm, layers with a window are rotated, and every
//! fourth attends to everything without rotation.
use super::{
    Family,
    common::{attention, block_count, dense, model_with, rope, windowed},
};
use crate::{
    limits::CONTEXT_LENGTH_MAX,
    mixer::AttentionSpec,
    rotation::Rotation,
    spec::{LayerSpec, NormKind, Norms},
};

pub(super) const FAMILY: Family = Family {
    name: "cohere2",
    spec: |keys| {
        let mut spec = model_with(keys, NormKind::Layer)?;
        spec.logit_scale = keys.positive("logit_scale", None)?;
        let window = keys.length("attention.sliding_window", CONTEXT_LENGTH_MAX)?;
        let attention = attention(keys, spec.embedding_length)?;
        let feed_forward = dense(keys)?;
        spec.ropes = vec![rope(keys, attention.head_length, Rotation::Neighbours)?];
        let layers = windowed(keys, block_count(keys)?, 4)?.into_iter().map(|is_windowed| {
            let (window, rope) = (is_windowed.then_some(window), is_windowed.then_some(0));
            let attention = AttentionSpec { window, rope, ..attention.clone() };
            LayerSpec { norms: Norms::Parallel, ..LayerSpec::attending(attention, feed_forward.clone()) }
        });
        Ok(spec.with_layers(layers))
    },
};
