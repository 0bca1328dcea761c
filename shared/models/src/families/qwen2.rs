//! Qwen2 and 2.5: biases of queries, keys and values.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::rotation::Rotation;

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Halves, dense)?;
        spec.kinds.iter_mut().for_each(|kind| kind.attention.needs_biases = true);
        Ok(spec)
    },
};
