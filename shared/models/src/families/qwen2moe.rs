//! Qwen 1.5 and 2 with experts: their weights are not normalised, and the shared expert is weighted.
use super::{
    Family,
    common::{mixed, uniform},
};
use crate::{
    feed_forward::{FeedForward, SharedSpec},
    limits::FEED_FORWARD_LENGTH_MAX,
    rotation::Rotation,
};

pub(super) const FAMILY: Family = Family {
    name: "qwen2moe",
    spec: |keys| {
        uniform(keys, Rotation::Halves, |keys| {
            let shared = keys.length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
            let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
            let mut feed_forward =
                mixed(keys, 0, 0, SharedSpec { is_weighted: true, ..SharedSpec::new(shared) }, columns)?;
            if let FeedForward::Experts(experts) = &mut feed_forward {
                experts.router.is_normalised = false;
            }
            Ok(feed_forward)
        })
    },
};
