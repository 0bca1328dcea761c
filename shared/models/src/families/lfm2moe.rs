//! LFM2 with experts behind its first layers.
use super::{Family, common::mixed, lfm2::convolutional};
use crate::{
    feed_forward::SharedSpec,
    limits::{BLOCK_COUNT_MAX, FEED_FORWARD_LENGTH_MAX},
};

pub(super) const FAMILY: Family = Family {
    name: "lfm2moe",
    spec: |keys| {
        let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let first = keys.optional_length("leading_dense_block_count", BLOCK_COUNT_MAX)?.unwrap_or(0);
        convolutional(keys, |layer| mixed(keys, layer, first, SharedSpec::new(0), columns))
    },
};
