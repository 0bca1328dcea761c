//! Arcee (AFM): llama without a gate in the feed-forward network.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{
    feed_forward::{Activation, FeedForward},
    rotation::Rotation,
};

pub(super) const FAMILY: Family = Family {
    name: "arcee",
    spec: |keys| {
        uniform(keys, Rotation::Neighbours, |keys| {
            let mut feed_forward = dense(keys)?;
            if let FeedForward::Dense(network) = &mut feed_forward {
                (network.activation, network.is_fused) = (Activation::SquaredRelu, false);
            }
            Ok(feed_forward)
        })
    },
};
