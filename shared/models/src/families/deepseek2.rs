//! DeepSeek-V2, GLM-4.7-Flash, GigaChat 3 and Kanana-2: latent attention, experts behind some dense layers.
use gguf::GgufError;

use super::{
    Family,
    common::{block_count, mixed, model, rope},
};
use crate::{
    feed_forward::{FeedForward, Scores, SharedSpec},
    keys::Keys,
    limits::{BLOCK_COUNT_MAX, EMBEDDING_LENGTH_MAX, FEED_FORWARD_LENGTH_MAX, HEAD_COUNT_MAX, HEAD_LENGTH_MAX},
    mixer::{LatentSpec, Mixer},
    rotation::{RopeSpec, Rotation, Scaling},
    spec::{LayerSpec, ModelSpec},
};

pub(super) const FAMILY: Family = Family { name: "deepseek2", spec };

fn spec(keys: &Keys<'_>) -> Result<ModelSpec, GgufError> {
    let mut spec = model(keys)?;
    let (latent, rope) = latent(keys)?;
    spec.ropes = vec![rope];
    let layers = block_count(keys)?;
    let columns = keys.length("expert_feed_forward_length", FEED_FORWARD_LENGTH_MAX)?;
    let count = keys.count("expert_shared_count")?.min(64) as usize;
    let shared = SharedSpec::new(columns * count);
    let first = keys.count("leading_dense_block_count")?.min(BLOCK_COUNT_MAX) as usize;
    let is_normalised = keys.flag("expert_weights_norm")?.unwrap_or(false);
    // Early files of GLM-4.7-Flash do not name the sigmoid (llama.cpp, `deepseek2`).
    let is_glm = matches!(layers, 47 | 48) && spec.vocabulary_length == 154_880;
    let is_sigmoid = is_glm && keys.count("expert_gating_func")? == 0;
    let layers = (0..layers).map(|layer| {
        let mut feed_forward = mixed(keys, layer, first, shared.clone(), columns)?;
        if let FeedForward::Experts(experts) = &mut feed_forward {
            experts.router.is_normalised = is_normalised;
            if is_sigmoid {
                experts.router.scores = Scores::Sigmoid;
            }
        }
        Ok(LayerSpec::new(Mixer::Latent(latent.clone()), feed_forward))
    });
    Ok(spec.with_layers(layers.collect::<Result<Vec<_>, GgufError>>()?))
}

/// The attention of every layer, and the rotation of its heads.
fn latent(keys: &Keys<'_>) -> Result<(LatentSpec, RopeSpec), GgufError> {
    const QUERY: &str = "attention.key_length_mla";
    const LATENT: &str = "attention.kv_lora_rank";
    const SLOPE: &str = "rope.scaling.yarn_log_multiplier";
    const TEMPERATURE: &str = "attention.temperature_scale";
    // Keys and values of all heads in one tensor, as converters wrote them until April 2025.
    const FORMER: &str = "blk.0.attn_kv_b.weight";
    if keys.has_tensor(FORMER) {
        return Err(GgufError::FormerTensor { tensor: FORMER.into(), wanted: "attn_k_b and attn_v_b" });
    }
    let head_count = keys.length("attention.head_count", HEAD_COUNT_MAX)?;
    let query_length = keys.length(QUERY, HEAD_LENGTH_MAX)?;
    let value_length = keys.length("attention.value_length_mla", HEAD_LENGTH_MAX)?;
    let latent_length = keys.length(LATENT, HEAD_LENGTH_MAX)?;
    let query_columns = match keys.unsigned("attention.q_lora_rank")? {
        None | Some(0) => None,
        Some(_) => Some(keys.length("attention.q_lora_rank", EMBEDDING_LENGTH_MAX)?),
    };
    if let Some(scale) = keys.float(TEMPERATURE)?.filter(|scale| *scale != 0.0) {
        return Err(keys.unsupported(TEMPERATURE, scale, "queries that grow with their position in this architecture"));
    }
    let mut rope = RopeSpec { has_factors: false, ..rope(keys, query_length, Rotation::Neighbours)? };
    let rotated_length = rope.dimension_count;
    if rotated_length >= query_length {
        let reason = format!("it must be more than the {rotated_length} rotated elements");
        return Err(keys.refuse(QUERY, query_length, reason));
    }
    if latent_length + rotated_length > HEAD_LENGTH_MAX as usize {
        let reason = format!("with {rotated_length} rotated elements it must be at most {HEAD_LENGTH_MAX}");
        return Err(keys.refuse(LATENT, latent_length, reason));
    }
    let mut scale = 1.0 / (query_length as f32).sqrt();
    if let Scaling::Yarn(yarn) = &mut rope.scaling {
        let slope = keys.float(SLOPE)?.unwrap_or(0.0) as f32;
        if slope != 0.0 {
            // The scores have the factor instead of sines and cosines.
            yarn.magnitude = keys.positive("rope.scaling.attn_factor", Some(1.0))?;
        }
        let factor = yarn.magnitude * (1.0 + slope * yarn.factor.ln());
        scale *= factor * factor;
        if !scale.is_normal() {
            return Err(keys.refuse(SLOPE, slope, format!("which makes the factor of the scores {scale}")));
        }
    }
    let plain_length = query_length - rotated_length;
    let latent = LatentSpec {
        head_count,
        plain_length,
        rotated_length,
        value_length,
        latent_length,
        query_columns,
        rope: 0,
        scale,
    };
    Ok((latent, rope))
}
