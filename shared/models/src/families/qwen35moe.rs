//! Qwen3.5 and 3.6 with experts; the shared expert is weighted.
use gguf::GgufError;

use super::{Family, common::mixed, qwen3vl::in_sections, qwen35::hybrid};
use crate::{
    feed_forward::{FeedForward, SharedSpec},
    keys::Keys,
    limits::FEED_FORWARD_LENGTH_MAX,
};

pub(super) const FAMILY: Family =
    Family { name: "qwen35moe", spec: |keys| in_sections(keys, hybrid(keys, false, &experts(keys)?)?) };

/// The experts of every layer.
pub(super) fn experts(keys: &Keys<'_>) -> Result<FeedForward, GgufError> {
    let shared = keys.length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    mixed(keys, 0, 0, SharedSpec { is_weighted: true, ..SharedSpec::new(shared) }, columns)
}
