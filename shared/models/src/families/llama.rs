//! Llama 1 to 3, Mistral, Mixtral and models of the same architecture.
use gguf::GgufError;

use super::{
    Family,
    common::{dense, expert_layer, uniform},
};
use crate::{feed_forward::FeedForward, keys::Keys, limits::FEED_FORWARD_LENGTH_MAX, rotation::Rotation};

pub(super) const FAMILY: Family =
    Family { name: "llama", spec: |keys| uniform(keys, Rotation::Neighbours, feed_forward) };

/// One network, or experts of the same length (Mixtral).
fn feed_forward(keys: &Keys<'_>) -> Result<FeedForward, GgufError> {
    if keys.count("expert_count")? == 0 {
        return dense(keys);
    }
    let columns = keys.length("feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    expert_layer(keys, columns).map(FeedForward::Experts)
}
