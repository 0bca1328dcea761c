//! gpt-oss: every other layer attends to a window; heads have sinks; experts have biases.
use super::{
    Family,
    common::{attention, block_count, expert_layer, model, rope},
};
use crate::{
    limits::{CONTEXT_LENGTH_MAX, FEED_FORWARD_LENGTH_MAX},
    spec::{Activation, AttentionSpec, ExpertsSpec, FeedForward, LayerSpec, Norms, Rotation},
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
        let layers = (0..block_count(keys)?).map(|layer| LayerSpec {
            attention: AttentionSpec { window: layer.is_multiple_of(2).then_some(window), ..attention.clone() },
            feed_forward: FeedForward::Experts(experts.clone()),
            norms: Norms::BeforeAsPost,
            residual_scale: 1.0,
            input_length: 0,
            has_output_scale: false,
        });
        Ok(spec.with_layers(layers))
    },
};
