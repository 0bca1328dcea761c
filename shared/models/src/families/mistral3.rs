//! Ministral 3: llama whose queries grow with their position.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::{limits::CONTEXT_LENGTH_MAX, mixer::Temperature, rotation::Rotation};

pub(super) const FAMILY: Family = Family {
    name: "mistral3",
    spec: |keys| {
        let mut spec = uniform(keys, Rotation::Neighbours, dense)?;
        let slope = keys.float("attention.temperature_scale")?.unwrap_or(0.0) as f32;
        if slope != 0.0 {
            const LENGTH: &str = "rope.scaling.original_context_length";
            let length = keys.length(LENGTH, CONTEXT_LENGTH_MAX)? as f32;
            let temperature = Some(Temperature { slope, length });
            spec = spec.map_attention(|_, attention| attention.temperature = temperature);
        }
        Ok(spec)
    },
};
