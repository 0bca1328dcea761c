//! GLM-4 (0414): norms around both halves of a layer, fused gate and up.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{rotation::Rotation, spec::Norms};

pub(super) const FAMILY: Family = Family {
    name: "glm4",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Neighbours, dense)?;
        spec.kinds.iter_mut().for_each(|kind| kind.norms = Norms::Around);
        Ok(spec)
    },
};
