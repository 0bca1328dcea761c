//! Ling and Ring 2.0: experts in groups behind some dense layers, fused queries, keys and values.
use super::{
    Family,
    common::{attention, layered, mixed, model, rope},
};
use crate::{
    feed_forward::{FeedForward, SharedSpec},
    limits::{BLOCK_COUNT_MAX, FEED_FORWARD_LENGTH_MAX},
    mixer::{AttentionSpec, HeadNorms},
    rotation::Rotation,
};

pub(super) const FAMILY: Family = Family {
    name: "bailingmoe2",
    spec: |keys| {
        let mut spec = model(keys)?;
        let attention =
            AttentionSpec { head_norms: HeadNorms::BeforeRotation, ..attention(keys, spec.embedding_length)? };
        spec.ropes = vec![rope(keys, attention.head_length, Rotation::Halves)?];
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let wide = keys.optional_length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let count = keys.count("expert_shared_count")?.min(64) as usize;
        let shared = SharedSpec::new(wide.unwrap_or(columns) * count);
        let first = keys.count("leading_dense_block_count")?.min(BLOCK_COUNT_MAX) as usize;
        let is_normalised = keys.flag("expert_weights_norm")?.unwrap_or(false);
        layered(keys, spec, &attention, |layer| {
            let mut feed_forward = mixed(keys, layer, first, shared.clone(), columns)?;
            if let FeedForward::Experts(experts) = &mut feed_forward {
                experts.router.is_normalised = is_normalised;
            }
            Ok(feed_forward)
        })
    },
};
