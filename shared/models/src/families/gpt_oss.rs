//! gpt-oss: every other layer attends to a window; heads have sinks; experts have biases.
use super::{
    Family,
    common::{attention, block_count, expert_layer, model, rope},
};
use crate::{
    feed_forward::{Activation, ExpertsSpec, FeedForward},
    limits::{CONTEXT_LENGTH_MAX, FEED_FORWARD_LENGTH_MAX},
    mixer::AttentionSpec,
    rotation::Rotation,
    spec::{LayerSpec, Norms},
};

pub(super) const FAMILY: Family = Family {
    name: "gpt-oss",
    spec: |keys| {
        let mut spec = model(keys)?;
        let attention = AttentionSpec {
            has_sinks: true,
            needs_biases: true,
            needs_output_bias: true,
            ..attention(keys, spec.embedding_length)?
        };
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let experts =
            ExpertsSpec { activation: Activation::ClampedSwiglu, has_biases: true, ..expert_layer(keys, columns)? };
        spec.ropes = vec![rope(keys, attention.head_length, Rotation::Halves)?];
        let window = keys.length("attention.sliding_window", CONTEXT_LENGTH_MAX)?;
        let layers = (0..block_count(keys)?).map(|layer| {
            let window = layer.is_multiple_of(2).then_some(window);
            let attention = AttentionSpec { window, ..attention.clone() };
            let feed_forward = FeedForward::Experts(experts.clone());
            LayerSpec { norms: Norms::BeforeAsPost, ..LayerSpec::attending(attention, feed_forward) }
        });
        Ok(spec.with_layers(layers))
    },
};
