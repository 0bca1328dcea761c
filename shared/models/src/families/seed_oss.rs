//! Seed-OSS: qwen2 whose second norm is named after the attention.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{rotation::Rotation, spec::Norms};

pub(super) const FAMILY: Family = Family {
    name: "seed_oss",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Halves, dense)?;
        spec.kinds.iter_mut().for_each(|kind| kind.norms = Norms::BeforeAsPost);
        Ok(spec)
    },
};
