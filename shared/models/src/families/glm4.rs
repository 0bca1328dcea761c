//! GLM-4 (0414): norms around both halves of a layer, fused gate and up. Files of its models with vision (4.1V, 4.6V)
//! name sections of the rotation, and are permuted for halves (llama.cpp, `llama_model_rope_type`); in a text, all
//! sections follow the same position.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{rotation::Rotation, spec::Norms};

pub(super) const FAMILY: Family = Family {
    name: "glm4",
    spec: |keys| {
        let sections = keys.integers("rope.dimension_sections")?.unwrap_or_default();
        let has_sections = matches!(sections[..], [time, height, ..] if time > 0 && height > 0);
        let rotation = if has_sections { Rotation::Halves } else { Rotation::Neighbours };
        let mut spec = uniform(keys, rotation, dense)?;
        spec.kinds.iter_mut().for_each(|kind| kind.norms = Norms::Around);
        Ok(spec)
    },
};
