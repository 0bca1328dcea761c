//! Qwen3.5 and 3.6 with experts; the shared expert is weighted.
use super::{Family, common::mixed, qwen35::hybrid};
use crate::{limits::FEED_FORWARD_LENGTH_MAX, spec::SharedSpec};

pub(super) const FAMILY: Family = Family {
    name: "qwen35moe",
    spec: |keys| {
        let shared = keys.length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let shared = SharedSpec { is_weighted: true, ..SharedSpec::new(shared) };
        hybrid(keys, &mixed(keys, 0, 0, shared, columns)?)
    },
};
