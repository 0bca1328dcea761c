//! Qwen3: norms of the heads of queries and keys.
use gguf::GgufError;

use super::{
    Family,
    common::{dense, uniform},
};
use crate::{feed_forward::FeedForward, keys::Keys, mixer::HeadNorms, rotation::Rotation, spec::ModelSpec};

pub(super) const FAMILY: Family = Family { name: "qwen3", spec: |keys| with_head_norms(keys, dense) };

/// A model with norms of the heads, before they are rotated.
pub(super) fn with_head_norms(
    keys: &Keys<'_>,
    feed_forward: fn(&Keys<'_>) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    let spec = uniform(keys, Rotation::Halves, feed_forward)?;
    Ok(spec.map_attention(|_, attention| attention.head_norms = HeadNorms::BeforeRotation))
}
