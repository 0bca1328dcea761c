//! GLM-4.5, 4.6 and 4.7: experts behind some dense layers, a sigmoid for a router, blocks that predict further tokens.
use super::{
    Family,
    common::{attention, layered, mixed, model, rope},
};
use crate::{
    feed_forward::{FeedForward, Scores, SharedSpec},
    limits::{BLOCK_COUNT_MAX, FEED_FORWARD_LENGTH_MAX},
    mixer::HeadNorms,
    rotation::Rotation,
    spec::Norms,
};

pub(super) const FAMILY: Family = Family {
    name: "glm4moe",
    spec: |keys| {
        let mut spec = model(keys)?;
        let mut attention = attention(keys, spec.embedding_length)?;
        if keys.has_tensor("blk.0.attn_q_norm.weight") {
            attention.head_norms = HeadNorms::BeforeRotation;
        }
        spec.ropes = vec![rope(keys, attention.head_length, Rotation::Halves)?];
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let count = keys.count("expert_shared_count")?.min(64) as usize;
        let shared = SharedSpec::new(columns * count);
        let first = keys.count("leading_dense_block_count")?.min(BLOCK_COUNT_MAX) as usize;
        let is_unset = keys.count("expert_gating_func")? == 0;
        let is_normalised = keys.flag("expert_weights_norm")?.unwrap_or(true);
        let spec = layered(keys, spec, &attention, |layer| {
            let mut feed_forward = mixed(keys, layer, first, shared.clone(), columns)?;
            if let FeedForward::Experts(experts) = &mut feed_forward {
                experts.router.is_normalised = is_normalised;
                if is_unset {
                    experts.router.scores = Scores::Sigmoid;
                }
            }
            Ok(feed_forward)
        })?;
        Ok(spec.map_layers(|_, layer| layer.norms = Norms::BeforeAsPost))
    },
};
