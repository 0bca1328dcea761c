//! OLMoE: norms over all heads of queries and keys; the weights of experts are not normalised.
use super::{
    Family,
    common::{expert_layer, uniform},
};
use crate::{feed_forward::FeedForward, limits::FEED_FORWARD_LENGTH_MAX, mixer::HeadNorms, rotation::Rotation};

pub(super) const FAMILY: Family = Family {
    name: "olmoe",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Halves, |keys| {
            let mut experts = expert_layer(keys, keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?)?;
            experts.router.is_normalised = false;
            Ok(FeedForward::Experts(experts))
        })?;
        Ok(spec.map_attention(|_, attention| attention.head_norms = HeadNorms::Whole))
    },
};
