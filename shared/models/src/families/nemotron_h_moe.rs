//! Nemotron 3 Nano: Nemotron-H with experts without gates in place of networks.
use super::{
    Family,
    common::{block_count, expert_layer},
    nemotron_h::single,
};
use crate::{
    feed_forward::{Activation, ExpertsSpec, FeedForward, RouterSpec, Scores, SharedSpec},
    limits::FEED_FORWARD_LENGTH_MAX,
};

pub(super) const FAMILY: Family = Family {
    name: "nemotron_h_moe",
    spec: |keys| {
        const LATENT: &str = "moe_latent_size";
        const COLUMNS: &str = "expert_feed_forward_length";
        let latent = keys.count(LATENT)?;
        if latent > 0 {
            return Err(keys.unsupported(LATENT, latent, "experts that read a projection of the hidden state"));
        }
        let shared = keys.optional_length("expert_shared_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
        let is_normalised = keys.flag("expert_weights_norm")?.unwrap_or(false);
        let each = match (keys.unsigned(COLUMNS), keys.integers(COLUMNS)) {
            (Ok(None), Ok(None)) => Vec::new(),
            _ => keys.layer_counts(COLUMNS, FEED_FORWARD_LENGTH_MAX, block_count(keys)?)?,
        };
        single(keys, |layer, all| {
            let columns = each.get(layer).copied().unwrap_or(0);
            let experts = expert_layer(keys, columns)?;
            // As in llama.cpp: the columns of all experts that a token uses.
            let columns = if columns > 0 { columns } else { all / experts.used_count };
            if columns == 0 {
                return Err(keys.refuse(COLUMNS, 0, format!("but layer {layer} has experts")));
            }
            let router =
                RouterSpec { scores: Scores::Sigmoid, has_selection_bias: true, is_normalised, ..experts.router };
            Ok(FeedForward::Experts(ExpertsSpec {
                columns,
                activation: Activation::SquaredRelu,
                router,
                is_fused: false,
                shared: shared.map(SharedSpec::new),
                ..experts
            }))
        })
    },
};
