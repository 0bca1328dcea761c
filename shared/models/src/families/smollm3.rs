//! SmolLM3: llama without rotation in every fourth layer.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::spec::{LayerSpec, Rotation};

/// Of so many layers, the last is not rotated.
const PERIOD: usize = 4;

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Neighbours, dense)?;
        let layers: Vec<LayerSpec> = (0..spec.block_count())
            .map(|index| {
                let mut layer = spec.layer(index).clone();
                layer.attention.rope = layer.attention.rope.filter(|_| index % PERIOD != PERIOD - 1);
                layer
            })
            .collect();
        Ok(spec.with_layers(layers))
    },
};
