//! Hunyuan (dense): norms of the heads behind their rotation.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{rotation::Rotation, spec::HeadNorms};

pub(super) const FAMILY: Family = Family {
    name: "hunyuan-dense",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Halves, dense)?;
        spec.kinds.iter_mut().for_each(|kind| kind.attention.head_norms = HeadNorms::AfterRotation);
        Ok(spec)
    },
};
