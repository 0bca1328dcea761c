//! Phi-3, 3.5 and 4: fused queries, keys and values, fused gate and up, divisors of angles for long contexts. Files
//! name a window, which llama.cpp ignores too.
use super::{
    Family,
    common::{dense, long, uniform},
};
use crate::rotation::{Rotation, Scaling};

pub(super) const FAMILY: Family = Family {
    name: "phi3",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Halves, dense)?;
        // Files do not always name the scaling that their tensors mean.
        if keys.has_tensor("rope_factors_long.weight") {
            let long = long(keys)?;
            spec.ropes.iter_mut().for_each(|rope| rope.scaling = Scaling::Long(long.clone()));
        }
        Ok(spec)
    },
};
