//! EXAONE 4: norms behind both halves; the 32B model has windows, and rotates only there (like llama.cpp,
//! Bramble recognizes it by its number of layers).
use super::{
    Family,
    common::{dense, uniform, windowed},
};
use crate::{limits::CONTEXT_LENGTH_MAX, mixer::HeadNorms, rotation::Rotation, spec::Norms};

/// Layers of the 32B model.
const LARGEST: usize = 64;

pub(super) const FAMILY: Family = Family {
    name: "exaone4",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Halves, dense)?;
        let window = keys.optional_length("attention.sliding_window", CONTEXT_LENGTH_MAX)?;
        let window = window.filter(|_| spec.block_count() == LARGEST);
        let is_windowed = windowed(keys, spec.block_count(), 4)?;
        let spec = spec.map_layers(|_, layer| layer.norms = Norms::Behind);
        Ok(spec.map_attention(|index, attention| {
            attention.head_norms = HeadNorms::BeforeRotation;
            attention.window = window.filter(|_| is_windowed[index]);
            attention.rope = attention.rope.filter(|_| window.is_none() || is_windowed[index]);
        }))
    },
};
