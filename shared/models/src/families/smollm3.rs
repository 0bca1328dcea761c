//! SmolLM3: llama without rotation in every fourth layer.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::rotation::Rotation;

/// Of so many layers, the last is not rotated.
const PERIOD: usize = 4;

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    spec: |keys| {
        Ok(uniform(keys, Rotation::Neighbours, dense)?.map_attention(|index, attention| {
            attention.rope = attention.rope.filter(|_| index % PERIOD != PERIOD - 1);
        }))
    },
};
