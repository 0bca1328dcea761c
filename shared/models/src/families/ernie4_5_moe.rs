//! ERNIE 4.5 with experts in all layers but the first ones.
use super::{
    Family,
    common::{attention, block_count, mixed, model, rope},
};
use crate::{
    limits::{BLOCK_COUNT_MAX, FEED_FORWARD_LENGTH_MAX},
    spec::{LayerSpec, Norms, Rotation, SharedSpec},
};

pub(super) const FAMILY: Family = Family {
    name: "ernie4_5-moe",
    spec: |keys| {
        let mut spec = model(keys)?;
        let attention = attention(keys, spec.embedding_length)?;
        spec.ropes = vec![rope(keys, attention.head_length, Rotation::Neighbours)?];
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let shared = keys.optional_length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let shared = SharedSpec { columns: shared.unwrap_or(0), is_weighted: false, is_branch: false };
        let first = keys.count("leading_dense_block_count")?.min(BLOCK_COUNT_MAX) as usize;
        let step = keys.optional_length("interleave_moe_layer_step", BLOCK_COUNT_MAX)?.unwrap_or(1);
        let layers = (0..block_count(keys)?).map(|layer| {
            let is_mixture = layer >= first && (layer + 1).is_multiple_of(step);
            let feed_forward = mixed(keys, layer, if is_mixture { 0 } else { layer + 1 }, shared.clone(), columns)?;
            Ok(LayerSpec {
                attention: attention.clone(),
                feed_forward,
                norms: Norms::Before,
                residual_scale: 1.0,
                input_length: 0,
                has_output_scale: false,
            })
        });
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        Ok(spec.with_layers(layers))
    },
};
