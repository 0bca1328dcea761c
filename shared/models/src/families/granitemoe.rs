//! Granite 3 with experts; some files have a shared expert.
use super::{Family, common::mixed, granite::scaled};
use crate::{feed_forward::SharedSpec, limits::FEED_FORWARD_LENGTH_MAX};

pub(super) const FAMILY: Family = Family {
    name: "granitemoe",
    spec: |keys| {
        scaled(keys, |keys| {
            let columns = keys.optional_length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
            let shared = SharedSpec::new(columns.unwrap_or(0));
            // Its experts have the length of the key for a single network.
            let columns = keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
            mixed(keys, 0, 0, shared, columns)
        })
    },
};
