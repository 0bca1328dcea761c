//! Granite 3 and 4 (dense): llama with factors of the embedding, the scores, the branches and the logits.
use gguf::GgufError;

use super::{
    Family,
    common::{dense, uniform},
};
use crate::{feed_forward::FeedForward, keys::Keys, rotation::Rotation, spec::ModelSpec};

pub(super) const FAMILY: Family = Family { name: "granite", spec: |keys| scaled(keys, dense) };

/// A llama with Granite's factors.
pub(super) fn scaled(
    keys: &Keys<'_>,
    feed_forward: fn(&Keys<'_>) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    with_factors(keys, uniform(keys, Rotation::Neighbours, feed_forward)?)
}

/// A model with Granite's factors, and without rotation if a key disables it.
pub(super) fn with_factors(keys: &Keys<'_>, mut spec: ModelSpec) -> Result<ModelSpec, GgufError> {
    // As in llama.cpp: false means no rotation.
    let is_rotated = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    let optional = |name: &str| keys.positive(name, Some(1.0));
    spec.embedding_scale = optional("embedding_scale")?;
    spec.logit_scale = 1.0 / optional("logit_scale")?;
    let residual_scale = optional("residual_scale")?;
    let scale = keys.float("attention.scale")?.map(|_| keys.positive("attention.scale", None)).transpose()?;
    let spec = spec.map_layers(|_, layer| layer.residual_scale = residual_scale);
    Ok(spec.map_attention(|_, attention| {
        attention.scale = scale.unwrap_or(attention.scale);
        attention.rope = attention.rope.filter(|_| is_rotated);
    }))
}
