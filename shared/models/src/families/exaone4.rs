//! EXAONE 4: norms behind both halves; the 32B model has windows, and rotates only there (like llama.cpp,
//! Bramble recognizes it by its number of layers).
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{
    limits::{BLOCK_COUNT_MAX, CONTEXT_LENGTH_MAX},
    spec::{HeadNorms, LayerSpec, Norms, Rotation},
};

/// Layers of the 32B model.
const LARGEST: usize = 64;

pub(super) const FAMILY: Family = Family {
    name: "exaone4",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Halves, dense)?;
        let window = keys.optional_length("attention.sliding_window", CONTEXT_LENGTH_MAX)?;
        let window = window.filter(|_| spec.block_count() == LARGEST);
        let period = keys.optional_length("attention.sliding_window_pattern", BLOCK_COUNT_MAX)?.unwrap_or(4);
        let layers: Vec<LayerSpec> = (0..spec.block_count())
            .map(|index| {
                let mut layer = spec.layer(index).clone();
                layer.norms = Norms::Behind;
                layer.attention.head_norms = HeadNorms::BeforeRotation;
                let is_windowed = index % period != period - 1;
                layer.attention.window = window.filter(|_| is_windowed);
                layer.attention.rope = layer.attention.rope.filter(|_| window.is_none() || is_windowed);
                layer
            })
            .collect();
        Ok(spec.with_layers(layers))
    },
};
