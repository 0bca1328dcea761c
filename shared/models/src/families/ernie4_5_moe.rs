//! ERNIE 4.5 with experts in all layers but the first ones.
use super::{
    Family,
    common::{attention, layered, mixed, model, rope},
};
use crate::{
    feed_forward::SharedSpec,
    limits::{BLOCK_COUNT_MAX, FEED_FORWARD_LENGTH_MAX},
    rotation::Rotation,
};

pub(super) const FAMILY: Family = Family {
    name: "ernie4_5-moe",
    spec: |keys| {
        let mut spec = model(keys)?;
        let attention = attention(keys, spec.embedding_length)?;
        spec.ropes = vec![rope(keys, attention.head_length, Rotation::Neighbours)?];
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let shared = keys.optional_length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let shared = SharedSpec::new(shared.unwrap_or(0));
        let first = keys.count("leading_dense_block_count")?.min(BLOCK_COUNT_MAX) as usize;
        let step = keys.optional_length("interleave_moe_layer_step", BLOCK_COUNT_MAX)?.unwrap_or(1);
        layered(keys, spec, &attention, |layer| {
            let is_mixture = layer >= first && (layer + 1).is_multiple_of(step);
            mixed(keys, layer, if is_mixture { 0 } else { layer + 1 }, shared.clone(), columns)
        })
    },
};
