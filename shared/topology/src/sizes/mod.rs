//! The properties of a model that determine memory and time: its spec and the format of each tensor, from a file or from
//! the table of known models. Pure; reads no weights.
use std::{fmt, str::FromStr};

use gguf::{BlockFormat, GgufFile};
use models::{
    ModelSpec, Predictor, TensorRole, TensorSpec,
    known::{self, KnownModel},
};
use serde::{Deserialize, Serialize};

pub mod older;

pub use older::OlderSizes;

/// A mix of weight formats, as in llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantisation {
    /// F16 throughout.
    F16,
    /// Q8_0 throughout.
    Q8_0,
    /// Q4_0 with an output in Q6_K.
    Q4_0,
    /// Q4_K, with Q6_K for the output and half of the value and down matrices.
    Q4KM,
}

impl Quantisation {
    /// All mixes.
    pub const ALL: [Self; 4] = [Self::F16, Self::Q8_0, Self::Q4_0, Self::Q4KM];

    fn usual(self) -> BlockFormat {
        match self {
            Self::F16 => BlockFormat::F16,
            Self::Q8_0 => BlockFormat::Q8_0,
            Self::Q4_0 => BlockFormat::Q4_0,
            Self::Q4KM => BlockFormat::Q4K,
        }
    }

    fn output(self) -> BlockFormat {
        if matches!(self, Self::Q4_0 | Self::Q4KM) { BlockFormat::Q6K } else { self.usual() }
    }

    /// The format of the value and down matrices of some layers.
    fn finer(self) -> BlockFormat {
        if self == Self::Q4KM { BlockFormat::Q6K } else { self.usual() }
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4KM => "q4_k_m",
        })
    }
}

impl FromStr for Quantisation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|quantisation| quantisation.to_string() == text.to_lowercase());
        found.ok_or_else(|| format!("unknown quantisation {text:?}; use f16, q8_0, q4_0 or q4_k_m"))
    }
}

/// The formats of tensors in the order of their table; `None` where the file lacks an optional one.
pub type TensorFormats = Vec<Option<BlockFormat>>;

/// A model's memory and time requirements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSizes {
    /// Its common name.
    pub name: String,
    /// What it computes.
    pub spec: ModelSpec,
    /// Formats of each layer's tensors ([`ModelSpec::layer_tensors`]).
    pub layers: Vec<TensorFormats>,
    /// Formats of the tensors outside the layers ([`ModelSpec::tensors`]).
    pub outside: TensorFormats,
}

impl ModelSizes {
    /// The sizes of a file whose spec is given.
    pub fn of_file(file: &GgufFile, spec: &ModelSpec) -> Self {
        let format = |name: &str| file.tensor(name).map(|tensor| tensor.format);
        let layers = (0..spec.block_count()).map(|layer| {
            let tensors = spec.layer_tensors(layer);
            tensors.iter().map(|tensor| format(&spec.layer_tensor(layer, tensor.name))).collect()
        });
        Self {
            name: spec.name.clone(),
            spec: spec.clone(),
            layers: layers.collect(),
            outside: spec.tensors().iter().map(|tensor| format(tensor.name)).collect(),
        }
    }

    /// Whether the numbers are plausible: they may come from another machine, and computations with them take time and
    /// memory.
    pub fn is_sound(&self) -> bool {
        self.spec.is_sound()
            && self.layers.len() == self.spec.block_count()
            && self.outside.len() == self.spec.tensors().len()
            && (0..self.layers.len()).all(|layer| self.layers[layer].len() == self.spec.layer_tensors(layer).len())
    }

    /// A known model with a mix of formats.
    ///
    /// # Errors
    /// No model has this name; the message lists the known names.
    pub fn known(name: &str, quantisation: Quantisation) -> Result<Self, String> {
        let found = known::MODELS.iter().find(|model| model.name == name);
        let known = found.ok_or_else(|| {
            let names: Vec<&str> = known::MODELS.iter().map(|model| model.name).collect();
            format!("unknown shape {name:?}; use one of {}, or a GGUF file", names.join(", "))
        })?;
        Ok(Self::of_known(known, quantisation))
    }

    fn of_known(known: &KnownModel, quantisation: Quantisation) -> Self {
        let spec = known.spec();
        let count = spec.block_count();
        let layers = (0..count).map(|layer| {
            let tensors = spec.layer_tensors(layer);
            tensors.iter().map(|tensor| quantisation.format(tensor, has_more_bits(layer, count))).collect()
        });
        let (layers, outside) =
            (layers.collect(), spec.tensors().iter().map(|tensor| quantisation.format(tensor, false)).collect());
        Self { name: format!("{}-{quantisation}", known.name), spec, layers, outside }.with_expert_blocks()
    }

    /// Sets the blocks of the experts in the spec.
    fn with_expert_blocks(self) -> Self {
        let spec = self
            .spec
            .clone()
            .with_expert_blocks(|layer| self.format(layer, TensorRole::Down).map_or(0, BlockFormat::block_length));
        Self { spec, ..self }
    }

    /// Approximate sizes of the predictor behind the layers: its block is taken to have the formats of the last layer that
    /// attends. `None` if no layer attends.
    pub fn predictor(&self) -> Option<Self> {
        let block = self.spec.block_count();
        let spec = self.spec.with_predictor(Predictor { block, has_output_norm: true })?;
        let like = (0..block).rev().find(|layer| self.spec.layer(*layer) == spec.layer(0))?;
        let usual = self.format(like, TensorRole::MixerOutput);
        let formats = spec.layer_tensors(0).into_iter().map(|tensor| match tensor.role {
            TensorRole::Joined => usual,
            _ if tensor.is_optional => self.format(like, tensor.role),
            _ => self.format(like, tensor.role).or(Some(BlockFormat::F32)),
        });
        let outside = spec.tensors().into_iter().map(|tensor| {
            let mut all = self.outside_tensors();
            all.find(|(other, _)| other.role == tensor.role).map(|(_, format)| format)
        });
        Some(Self { name: self.name.clone(), layers: vec![formats.collect()], outside: outside.collect(), spec })
    }

    /// A layer's tensors and their formats.
    pub fn layer_tensors(&self, layer: usize) -> impl Iterator<Item = (TensorSpec, BlockFormat)> {
        let tensors = self.spec.layer_tensors(layer).into_iter().zip(&self.layers[layer]);
        tensors.filter_map(|(tensor, format)| Some((tensor, (*format)?)))
    }

    /// The tensors outside the layers and their formats.
    pub fn outside_tensors(&self) -> impl Iterator<Item = (TensorSpec, BlockFormat)> {
        let tensors = self.spec.tensors().into_iter().zip(&self.outside);
        tensors.filter_map(|(tensor, format)| Some((tensor, (*format)?)))
    }

    /// The format of a layer's tensor.
    pub fn format(&self, layer: usize, role: TensorRole) -> Option<BlockFormat> {
        self.layer_tensors(layer).find(|(tensor, _)| tensor.role == role).map(|(_, format)| format)
    }

    /// The format of the output matrix.
    pub fn output_format(&self) -> BlockFormat {
        let output = self.outside_tensors().find(|(tensor, _)| tensor.role == TensorRole::Output);
        output.map_or(BlockFormat::F32, |(_, format)| format)
    }

    /// Number of weights in the matrices of all layers, except routers, and in the output matrix.
    pub fn weight_count(&self) -> u64 {
        let layers = (0..self.layers.len()).flat_map(|layer| self.layer_tensors(layer));
        let matrices = layers
            .chain(self.outside_tensors())
            .map(|(tensor, _)| tensor)
            .filter(|tensor| !tensor.is_float && tensor.role != TensorRole::Embedding);
        matrices.map(|tensor| tensor.dimensions.iter().map(|length| *length as u64).product::<u64>()).sum()
    }
}

impl Quantisation {
    /// The format of a tensor in such a file; `None` for an optional one, which no known model has.
    fn format(self, tensor: &TensorSpec, has_more_bits: bool) -> Option<BlockFormat> {
        if tensor.is_optional {
            return None;
        }
        let format = match tensor.role {
            _ if tensor.is_float => BlockFormat::F32,
            TensorRole::Embedding | TensorRole::Output => self.output(),
            TensorRole::Value | TensorRole::Down if has_more_bits => self.finer(),
            _ => self.usual(),
        };
        Some(fitting(format, tensor.dimensions[0]))
    }
}

/// Whether a layer is in the first or last eighth, or the third of each three in between (llama.cpp, llama-quant.cpp).
pub fn has_more_bits(block: usize, count: usize) -> bool {
    let eighth = count / 8;
    block < eighth || block >= 7 * count / 8 || (block - eighth) % 3 == 2
}

/// The format, or llama.cpp's fallback if rows are not a multiple of its block.
pub fn fitting(format: BlockFormat, columns: usize) -> BlockFormat {
    if columns.is_multiple_of(format.block_length()) {
        return format;
    }
    let fallback = match format {
        BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Iq4Xs => BlockFormat::Iq4Nl,
        BlockFormat::Iq3Xxs | BlockFormat::Iq3S => BlockFormat::Iq4Nl,
        BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs | BlockFormat::Iq2S => BlockFormat::Iq4Nl,
        BlockFormat::Q4K => BlockFormat::Q5_0,
        BlockFormat::Q5K => BlockFormat::Q5_1,
        BlockFormat::Q6K => BlockFormat::Q8_0,
        _ => BlockFormat::F16,
    };
    fitting(fallback, columns)
}

#[cfg(test)]
mod tests {
    use models::{AttentionSpec, ExpertsSpec, FeedForward, Mixer};

    use super::*;

    fn attention(sizes: &mut ModelSizes) -> &mut AttentionSpec {
        match &mut sizes.spec.kinds[0].mixer {
            Mixer::Attention(attention) => attention,
            _ => panic!("it has attention"),
        }
    }

    #[test]
    fn implausible_sizes_of_another_machine_are_rejected() {
        type Change = fn(&mut ModelSizes);
        let known = || ModelSizes::known("qwen3-30b-a3b", Quantisation::Q4KM).expect("it is known");
        assert!(known().is_sound());
        let changes: [Change; 11] = [
            |sizes| sizes.spec.layers.push(0),
            |sizes| (sizes.spec.layers, sizes.layers) = (Vec::new(), Vec::new()),
            |sizes| sizes.spec.layers[3] = 1,
            |sizes| sizes.layers[3].truncate(5),
            |sizes| sizes.spec.embedding_length = 0,
            |sizes| sizes.spec.embedding_length = usize::MAX,
            |sizes| attention(sizes).head_count_kv = 0,
            |sizes| attention(sizes).head_count_kv = 5,
            |sizes| attention(sizes).rope = Some(1),
            |sizes| sizes.spec.vocabulary_length = usize::MAX,
            |sizes| {
                let experts = sizes.spec.kinds[0].feed_forward.experts().expect("it has some").clone();
                sizes.spec.kinds[0].feed_forward =
                    FeedForward::Experts(ExpertsSpec { count: 4, used_count: 8, ..experts });
            },
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut sizes = known();
            change(&mut sizes);
            assert!(!sizes.is_sound(), "change {index}");
        }
    }

    #[test]
    fn known_models_have_the_weights_of_their_names() {
        for (name, billions) in [
            ("tinyllama-1.1b", 1.03),
            ("llama-2-7b", 6.61),
            ("llama-3.1-8b", 7.50),
            ("llama-3.2-1b", 1.24),
            ("llama-3.2-3b", 3.21),
            ("llama-3.3-70b", 69.5),
            ("qwen2.5-7b", 7.07),
            ("qwen3-0.6b", 0.60),
            ("qwen3-30b-a3b", 30.2),
            ("mixtral-8x7b", 46.6),
            ("gpt-oss-20b", 20.3),
            ("gemma-3-4b", 3.88),
            ("phi-4", 14.1),
            ("granite-4.0-micro", 3.40),
            ("ministral-3-8b", 7.96),
            ("glm-4.7-flash", 29.6),
            ("deepseek-v2-lite", 15.5),
        ] {
            let sizes = ModelSizes::known(name, Quantisation::Q4_0).expect("it is known");
            let found = sizes.weight_count() as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 0.01, "{name}: {found}");
        }
        let error = ModelSizes::known("llama-9", Quantisation::F16).expect_err("there is none");
        assert!(error.contains("llama-3.1-8b"), "{error}");
    }

    #[test]
    fn formats_are_mixed_as_in_files_with_fallbacks() {
        let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q4KM).expect("it is known");
        let finer = (0..32).filter(|layer| sizes.format(*layer, TensorRole::Down) == Some(BlockFormat::Q6K)).count();
        assert_eq!((finer, sizes.output_format()), (16, BlockFormat::Q6K));
        assert!((0..32).all(|layer| sizes.format(layer, TensorRole::Gate) == Some(BlockFormat::Q4K)));
        let small = ModelSizes::known("qwen2.5-0.5b", Quantisation::Q4KM).expect("it is known");
        let formats = [TensorRole::Query, TensorRole::Down].map(|role| small.format(0, role));
        assert_eq!(formats, [Some(BlockFormat::Q5_0), Some(BlockFormat::Q6K)]);
        assert_eq!("Q4_K_M".parse(), Ok(Quantisation::Q4KM));
        assert!("q9".parse::<Quantisation>().is_err());
    }
}
