//! OLMo 2 and 3: norms behind both halves, and norms over all heads of queries and keys; files with a window (OLMo 3)
//! scale the rotation only in layers that attend to everything.
use super::{
    Family,
    common::{attention, block_count, dense, model, rope, windowed},
};
use crate::{
    limits::CONTEXT_LENGTH_MAX,
    mixer::{AttentionSpec, HeadNorms},
    rotation::{RopeSpec, Rotation, Scaling},
    spec::{LayerSpec, Norms},
};

/// The rotation of layers that attend to everything.
const FULL: u8 = 0;
/// The rotation of layers with a window.
const WINDOWED: u8 = 1;

pub(super) const FAMILY: Family = Family {
    name: "olmo2",
    spec: |keys| {
        let mut spec = model(keys)?;
        let attention = AttentionSpec { head_norms: HeadNorms::Whole, ..attention(keys, spec.embedding_length)? };
        let feed_forward = dense(keys)?;
        let window = match keys.count("attention.sliding_window")? {
            0 => None,
            _ => Some(keys.length("attention.sliding_window", CONTEXT_LENGTH_MAX)?),
        };
        let full = RopeSpec { has_factors: false, ..rope(keys, attention.head_length, Rotation::Halves)? };
        let freq_base = keys.positive("rope.freq_base_swa", Some(full.freq_base))?;
        spec.ropes = match window {
            Some(_) => vec![full.clone(), RopeSpec { freq_base, scaling: Scaling::None, ..full }],
            None => vec![full],
        };
        let layers = windowed(keys, block_count(keys)?, 4)?.into_iter().map(|is_windowed| {
            let window = window.filter(|_| is_windowed);
            let rope = Some(if window.is_some() { WINDOWED } else { FULL });
            let attention = AttentionSpec { window, rope, ..attention.clone() };
            LayerSpec { norms: Norms::Behind, ..LayerSpec::attending(attention, feed_forward.clone()) }
        });
        Ok(spec.with_layers(layers))
    },
};
