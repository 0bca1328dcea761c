//! Gemma 3: five layers that attend to a window follow each other before one that attends to everything; norms around
//! both halves of a layer.
use super::{
    Family,
    common::{attention, block_count, dense, model, rope},
};
use crate::{
    limits::CONTEXT_LENGTH_MAX,
    spec::{
        Activation, AttentionSpec, DenseSpec, FeedForward, HeadNorms, LayerSpec, Norms, RopeSpec, Rotation, Scaling,
    },
};

/// The rotation of layers that attend to everything.
const FULL: u8 = 0;
/// The rotation of layers with a window.
const WINDOWED: u8 = 1;
/// Layers of the 27B model, whose scores have another scale.
const LARGEST: usize = 62;

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    spec: |keys| {
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
        let period = keys.optional_length("attention.sliding_window_pattern", 1024)?.unwrap_or(6);
        let layers = (0..count).map(|layer| {
            let is_full = layer % period == period - 1;
            LayerSpec {
                attention: AttentionSpec {
                    window: (!is_full).then_some(window),
                    rope: Some(if is_full { FULL } else { WINDOWED }),
                    ..attention.clone()
                },
                feed_forward: feed_forward.clone(),
                norms: Norms::Around,
                residual_scale: 1.0,
                input_length: 0,
                has_output_scale: false,
            }
        });
        Ok(spec.with_layers(layers))
    },
};
