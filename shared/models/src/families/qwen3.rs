//! Qwen3: norms of the heads of queries and keys.
use gguf::GgufError;

use super::{
    Family,
    common::{dense, uniform},
};
use crate::{
    keys::Keys,
    rotation::Rotation,
    spec::{FeedForward, HeadNorms, ModelSpec},
};

pub(super) const FAMILY: Family = Family { name: "qwen3", spec: |keys| with_head_norms(keys, dense) };

/// A model with norms of the heads, before they are rotated.
pub(super) fn with_head_norms(
    keys: &Keys<'_>,
    feed_forward: fn(&Keys<'_>) -> Result<FeedForward, GgufError>,
) -> Result<ModelSpec, GgufError> {
    let mut spec = uniform(keys, Rotation::Halves, feed_forward)?;
    spec.kinds.iter_mut().for_each(|kind| kind.attention.head_norms = HeadNorms::BeforeRotation);
    Ok(spec)
}
