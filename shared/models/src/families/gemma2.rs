//! Gemma 2: layers with and without a window take turns; scores and logits are limited; norms around both halves.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{
    feed_forward::{Activation, FeedForward},
    limits::CONTEXT_LENGTH_MAX,
    rotation::Rotation,
    spec::Norms,
};

/// Layers of the 27B model, whose scores have another scale.
const LARGEST: usize = 46;

pub(super) const FAMILY: Family = Family {
    name: "gemma2",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Halves, dense)?;
        spec.embedding_scale = (spec.embedding_length as f32).sqrt();
        spec.logit_cap = Some(keys.positive("final_logit_softcapping", Some(30.0))?);
        let score_cap = Some(keys.positive("attn_logit_softcapping", Some(50.0))?);
        let window = keys.optional_length("attention.sliding_window", CONTEXT_LENGTH_MAX)?.unwrap_or(4096);
        let (count, embedding) = (spec.block_count(), spec.embedding_length);
        let spec = spec.map_attention(|index, attention| {
            attention.score_cap = score_cap;
            attention.window = index.is_multiple_of(2).then_some(window);
            if count == LARGEST {
                attention.scale = 1.0 / ((embedding / attention.head_count) as f32).sqrt();
            }
        });
        Ok(spec.map_layers(|_, layer| {
            layer.norms = Norms::Around;
            if let FeedForward::Dense(dense) = &mut layer.feed_forward {
                dense.activation = Activation::Gelu;
            }
        }))
    },
};
