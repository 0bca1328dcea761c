//! Qwen2 and 2.5: biases of queries, keys and values.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::rotation::Rotation;

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Halves, dense)?;
        Ok(spec.map_attention(|_, attention| attention.needs_biases = true))
    },
};
