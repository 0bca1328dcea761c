//! The sizes of a model as wire versions 4 and 5 carry them: four families, whose layers are all the same. Frozen.
use gguf::{BlockFormat, GgufError};
use models::{AttentionSpec, KeySource, Keys, ModelSpec, Scaling, TensorRole, TensorSpec, families};
use serde::{Deserialize, Serialize};

use super::ModelSizes;

/// [`ModelSizes`] for a peer of wire version 4 or 5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OlderSizes {
    name: String,
    shape: Shape,
    layers: Vec<LayerFormats>,
    output: BlockFormat,
    has_biases: bool,
}

/// The families of wire version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Architecture {
    /// `llama`
    Llama,
    /// `qwen2`
    Qwen2,
    /// `qwen3`
    Qwen3,
    /// `qwen3moe`
    Qwen3Moe,
    /// A model that these versions cannot describe: not sent to them.
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Experts {
    count: usize,
    used_count: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Shape {
    architecture: Architecture,
    name: String,
    block_count: usize,
    context_length: usize,
    embedding_length: usize,
    feed_forward_length: usize,
    experts: Option<Experts>,
    head_count: usize,
    head_count_kv: usize,
    head_length: usize,
    rope_dimension_count: usize,
    rope_freq_base: f32,
    rope_scale_linear: f32,
    layer_norm_rms_epsilon: f32,
    vocabulary_length: usize,
    tied_output: bool,
    has_rope_factors: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LayerFormats {
    query: BlockFormat,
    key: BlockFormat,
    value: BlockFormat,
    attention_output: BlockFormat,
    gate: BlockFormat,
    up: BlockFormat,
    down: BlockFormat,
}

/// The families of wire version 4.
const ARCHITECTURES: [(&str, Architecture); 4] = [
    ("llama", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("qwen3moe", Architecture::Qwen3Moe),
];

impl OlderSizes {
    /// The sizes for an older peer. A model that older peers cannot run has an architecture that is not sent to them.
    pub fn of(sizes: &ModelSizes) -> Self {
        let format = |layer, role| sizes.format(layer, role).unwrap_or(BlockFormat::F32);
        let layers = (0..sizes.layers.len()).map(|layer| LayerFormats {
            query: format(layer, TensorRole::Query),
            key: format(layer, TensorRole::Key),
            value: format(layer, TensorRole::Value),
            attention_output: format(layer, TensorRole::MixerOutput),
            gate: format(layer, TensorRole::Gate),
            up: format(layer, TensorRole::Up),
            down: format(layer, TensorRole::Down),
        });
        Self {
            name: sizes.name.clone(),
            shape: Shape::of(&sizes.spec),
            layers: layers.collect(),
            output: sizes.output_format(),
            has_biases: sizes.format(0, TensorRole::QueryBias).is_some(),
        }
    }

    /// The sizes that an older peer sent.
    ///
    /// # Errors
    /// Its numbers are implausible.
    pub fn sizes(&self) -> Result<ModelSizes, GgufError> {
        let found = ARCHITECTURES.iter().find(|(_, architecture)| *architecture == self.shape.architecture);
        let family = found.and_then(|(name, _)| families::named(name));
        let family =
            family.ok_or_else(|| GgufError::Architecture { name: "(later)".into(), supported: families::names() })?;
        let spec = (family.spec)(&Keys { source: self, architecture: family.name })?;
        let layers = (0..spec.block_count()).map(|layer| {
            let tensors = spec.layer_tensors(layer);
            tensors.iter().map(|tensor| self.format(layer, tensor)).collect()
        });
        let outside = spec.tensors();
        let outside = outside.iter().map(|tensor| match tensor.role {
            TensorRole::Embedding | TensorRole::Output => Some(self.output),
            _ => Some(BlockFormat::F32),
        });
        let (layers, outside) = (layers.collect(), outside.collect());
        Ok(ModelSizes { name: self.name.clone(), layers, outside, spec }.with_expert_blocks())
    }

    /// The format of a layer's tensor.
    fn format(&self, layer: usize, tensor: &TensorSpec) -> Option<BlockFormat> {
        let formats = self.layers.get(layer);
        match tensor.role {
            TensorRole::Query => formats.map(|formats| formats.query),
            TensorRole::Key => formats.map(|formats| formats.key),
            TensorRole::Value => formats.map(|formats| formats.value),
            TensorRole::MixerOutput => formats.map(|formats| formats.attention_output),
            TensorRole::Gate => formats.map(|formats| formats.gate),
            TensorRole::Up => formats.map(|formats| formats.up),
            TensorRole::Down => formats.map(|formats| formats.down),
            TensorRole::QueryBias | TensorRole::KeyBias | TensorRole::ValueBias => {
                self.has_biases.then_some(BlockFormat::F32)
            }
            _ => (!tensor.is_optional).then_some(BlockFormat::F32),
        }
    }
}

impl Shape {
    fn of(spec: &ModelSpec) -> Self {
        let is_dense = spec.layer(0).feed_forward.experts().is_none();
        let found = ARCHITECTURES.iter().find(|(name, older)| {
            let has_experts = *older == Architecture::Qwen3Moe;
            *name == spec.architecture && spec.kinds.len() == 1 && has_experts != is_dense
        });
        let layer = spec.layer(0);
        // Older peers have only models whose layers all attend; others are sent as a family unknown to them.
        let none = AttentionSpec::new(1, 1, 2);
        let attention = layer.attention().unwrap_or(&none);
        let rope = attention.rope.and_then(|rope| spec.ropes.get(usize::from(rope)));
        let experts = layer.feed_forward.experts();
        Self {
            architecture: found.map_or(Architecture::Later, |(_, architecture)| *architecture),
            name: spec.name.clone(),
            block_count: spec.block_count(),
            context_length: spec.context_length,
            embedding_length: spec.embedding_length,
            feed_forward_length: layer.feed_forward.columns(),
            experts: experts.map(|experts| Experts { count: experts.count, used_count: experts.used_count }),
            head_count: attention.head_count,
            head_count_kv: attention.head_count_kv,
            head_length: attention.head_length,
            rope_dimension_count: rope.map_or(attention.head_length, |rope| rope.dimension_count),
            rope_freq_base: rope.map_or(10_000.0, |rope| rope.freq_base),
            rope_scale_linear: match rope.map(|rope| &rope.scaling) {
                Some(Scaling::Linear(factor)) => *factor,
                _ => 1.0,
            },
            layer_norm_rms_epsilon: spec.norm_epsilon,
            vocabulary_length: spec.vocabulary_length,
            tied_output: spec.tied_output,
            has_rope_factors: rope.is_some_and(|rope| rope.has_factors),
        }
    }
}

impl KeySource for OlderSizes {
    fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        Ok((key == "general.name").then(|| self.shape.name.clone()))
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let shape = &self.shape;
        let name = key.split_once('.').map_or(key, |(_, name)| name);
        let value = match name {
            "block_count" => Some(shape.block_count),
            "context_length" => Some(shape.context_length),
            "embedding_length" => Some(shape.embedding_length),
            "feed_forward_length" | "expert_feed_forward_length" => Some(shape.feed_forward_length),
            "expert_count" => shape.experts.map(|experts| experts.count),
            "expert_used_count" => shape.experts.map(|experts| experts.used_count),
            "attention.head_count" => Some(shape.head_count),
            "attention.head_count_kv" => Some(shape.head_count_kv),
            "attention.key_length" => Some(shape.head_length),
            "rope.dimension_count" => Some(shape.rope_dimension_count),
            _ => None,
        };
        Ok(value.map(|value| value as u64))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        let shape = &self.shape;
        let value = match key.split_once('.').map_or(key, |(_, name)| name) {
            "rope.freq_base" => Some(shape.rope_freq_base),
            "rope.scaling.factor" => Some(shape.rope_scale_linear),
            "attention.layer_norm_rms_epsilon" => Some(shape.layer_norm_rms_epsilon),
            _ => None,
        };
        Ok(value.map(f64::from))
    }

    fn rows(&self, tensor: &str) -> Option<usize> {
        match tensor {
            "token_embd.weight" => Some(self.shape.vocabulary_length),
            "output.weight" => (!self.shape.tied_output).then_some(self.shape.vocabulary_length),
            "rope_freqs.weight" => self.shape.has_rope_factors.then_some(1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Quantisation;

    #[test]
    fn families_of_version_4_survive_their_older_form() {
        for name in ["llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-30b-a3b"] {
            let sizes = ModelSizes::known(name, Quantisation::Q4KM).expect("it is known");
            let older = OlderSizes::of(&sizes).sizes().expect("it is plausible");
            let is_same = sizes.spec == older.spec && sizes.layers == older.layers;
            assert!(is_same && older.is_sound(), "{older:?}");
        }
    }
}
