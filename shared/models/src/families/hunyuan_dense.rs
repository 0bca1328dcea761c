//! Hunyuan (dense): norms of the heads behind their rotation.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{mixer::HeadNorms, rotation::Rotation};

pub(super) const FAMILY: Family = Family {
    name: "hunyuan-dense",
    spec: |keys| {
        let spec = uniform(keys, Rotation::Halves, dense)?;
        Ok(spec.map_attention(|_, attention| attention.head_norms = HeadNorms::AfterRotation))
    },
};
