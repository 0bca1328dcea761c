//! OLMoE: norms over all heads of queries and keys; the weights of experts are not normalised.
use super::{
    Family,
    common::{expert_layer, uniform},
};
use crate::{
    limits::FEED_FORWARD_LENGTH_MAX,
    rotation::Rotation,
    spec::{FeedForward, HeadNorms},
};

pub(super) const FAMILY: Family = Family {
    name: "olmoe",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Halves, |keys| {
            let mut experts = expert_layer(keys, keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?)?;
            experts.router.is_normalised = false;
            Ok(FeedForward::Experts(experts))
        })?;
        Ok(spec.map_layers(|_, layer| layer.attention.head_norms = HeadNorms::Whole))
    },
};
