//! Dimensions of well-known models from their config.json: for planning without a file, and for synthetic files with a
//! real model's dimensions. Their families read them as if they came from a file.
use gguf::GgufError;

use crate::{
    families,
    keys::{KeySource, Keys},
    spec::ModelSpec,
    tensors::{ROPE_FACTORS, TOKEN_EMBEDDING},
};

/// A model's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// Its common name, in lower case.
    pub name: &'static str,
    /// As in `general.architecture`.
    pub architecture: &'static str,
    /// Layers.
    pub block_count: usize,
    /// Elements of a hidden state.
    pub embedding_length: usize,
    /// Columns of the feed-forward network, or of one expert.
    pub feed_forward_length: usize,
    /// Query heads.
    pub head_count: usize,
    /// Key and value heads.
    pub head_count_kv: usize,
    /// Elements of a head.
    pub head_length: usize,
    /// Tokens.
    pub vocabulary_length: usize,
    /// Positions for which it was trained.
    pub context_length: usize,
    /// Whether the embedding is also the output matrix.
    pub tied_output: bool,
    /// Whether files have `rope_freqs.weight`.
    pub has_rope_factors: bool,
    /// Experts of a layer, and how many a token uses.
    pub experts: Option<(usize, usize)>,
    /// Positions of a window, if some layers have one.
    pub window: Option<usize>,
}

/// Layers, embedding, feed-forward, heads, KV heads, head length, vocabulary, context.
type Dimensions = [usize; 8];

const fn known(name: &'static str, architecture: &'static str, dimensions: Dimensions, tied: bool) -> KnownModel {
    let [block_count, embedding_length, feed_forward_length, head_count, head_count_kv, head_length, ..] = dimensions;
    let [.., vocabulary_length, context_length] = dimensions;
    KnownModel {
        name,
        architecture,
        block_count,
        embedding_length,
        feed_forward_length,
        head_count,
        head_count_kv,
        head_length,
        vocabulary_length,
        context_length,
        tied_output: tied,
        has_rope_factors: false,
        experts: None,
        window: None,
    }
}

/// A model whose layers partly attend to a window.
const fn windowed(name: &'static str, family: &'static str, dimensions: Dimensions, window: usize) -> KnownModel {
    KnownModel { window: Some(window), ..known(name, family, dimensions, true) }
}

/// gpt-oss of so many layers and experts.
const fn gpt_oss(name: &'static str, layers: usize, experts: usize) -> KnownModel {
    let dimensions = [layers, 2880, 2880, 64, 8, 64, 201_088, 131_072];
    KnownModel { experts: Some((experts, 4)), window: Some(128), ..known(name, "gpt-oss", dimensions, false) }
}

/// Llama 3.1 and later.
const fn llama3(name: &'static str, dimensions: Dimensions, tied: bool) -> KnownModel {
    KnownModel { has_rope_factors: true, ..known(name, "llama", dimensions, tied) }
}

/// All known models, by family and size.
pub const MODELS: &[KnownModel] = &[
    known("tinyllama-1.1b", "llama", [22, 2048, 5632, 32, 4, 64, 32_000, 2048], false),
    known("llama-2-7b", "llama", [32, 4096, 11_008, 32, 32, 128, 32_000, 4096], false),
    known("llama-2-13b", "llama", [40, 5120, 13_824, 40, 40, 128, 32_000, 4096], false),
    known("llama-30b", "llama", [60, 6656, 17_920, 52, 52, 128, 32_000, 2048], false),
    llama3("llama-3.1-8b", [32, 4096, 14_336, 32, 8, 128, 128_256, 131_072], false),
    llama3("llama-3.2-1b", [16, 2048, 8192, 32, 8, 64, 128_256, 131_072], true),
    llama3("llama-3.2-3b", [28, 3072, 8192, 24, 8, 128, 128_256, 131_072], true),
    llama3("llama-3.3-70b", [80, 8192, 28_672, 64, 8, 128, 128_256, 131_072], false),
    known("mistral-7b", "llama", [32, 4096, 14_336, 32, 8, 128, 32_768, 32_768], false),
    known("qwen2.5-0.5b", "qwen2", [24, 896, 4864, 14, 2, 64, 151_936, 32_768], true),
    known("qwen2.5-1.5b", "qwen2", [28, 1536, 8960, 12, 2, 128, 151_936, 32_768], true),
    known("qwen2.5-7b", "qwen2", [28, 3584, 18_944, 28, 4, 128, 152_064, 32_768], false),
    known("qwen2.5-14b", "qwen2", [48, 5120, 13_824, 40, 8, 128, 152_064, 32_768], false),
    known("qwen2.5-32b", "qwen2", [64, 5120, 27_648, 40, 8, 128, 152_064, 32_768], false),
    known("qwen3-0.6b", "qwen3", [28, 1024, 3072, 16, 8, 128, 151_936, 40_960], true),
    known("qwen3-1.7b", "qwen3", [28, 2048, 6144, 16, 8, 128, 151_936, 40_960], true),
    known("qwen3-4b", "qwen3", [36, 2560, 9728, 32, 8, 128, 151_936, 40_960], true),
    known("qwen3-8b", "qwen3", [36, 4096, 12_288, 32, 8, 128, 151_936, 40_960], false),
    known("qwen3-14b", "qwen3", [40, 5120, 17_408, 40, 8, 128, 151_936, 40_960], false),
    known("qwen3-32b", "qwen3", [64, 5120, 25_600, 64, 8, 128, 151_936, 40_960], false),
    KnownModel {
        experts: Some((128, 8)),
        ..known("qwen3-30b-a3b", "qwen3moe", [48, 2048, 768, 32, 4, 128, 151_936, 40_960], false)
    },
    KnownModel {
        experts: Some((8, 2)),
        ..known("mixtral-8x7b", "llama", [32, 4096, 14_336, 32, 8, 128, 32_000, 32_768], false)
    },
    gpt_oss("gpt-oss-20b", 24, 32),
    gpt_oss("gpt-oss-120b", 36, 128),
    windowed("gemma-2-2b", "gemma2", [26, 2304, 9216, 8, 4, 256, 256_000, 8192], 4096),
    windowed("gemma-2-9b", "gemma2", [42, 3584, 14_336, 16, 8, 256, 256_000, 8192], 4096),
    windowed("gemma-3-1b", "gemma3", [26, 1152, 6912, 4, 1, 256, 262_144, 32_768], 512),
    windowed("gemma-3-4b", "gemma3", [34, 2560, 10_240, 8, 4, 256, 262_144, 131_072], 1024),
    windowed("gemma-3-12b", "gemma3", [48, 3840, 15_360, 16, 8, 256, 262_144, 131_072], 1024),
    windowed("gemma-3-27b", "gemma3", [62, 5376, 21_504, 32, 16, 128, 262_144, 131_072], 1024),
    known("phi-4-mini", "phi3", [32, 3072, 8192, 24, 8, 128, 200_064, 131_072], true),
    known("phi-4", "phi3", [40, 5120, 17_920, 40, 10, 128, 100_352, 16_384], false),
    known("ministral-3-3b", "mistral3", [26, 3072, 9216, 32, 8, 128, 131_072, 262_144], true),
    known("ministral-3-8b", "mistral3", [34, 4096, 14_336, 32, 8, 128, 131_072, 262_144], false),
    known("ministral-3-14b", "mistral3", [40, 5120, 16_384, 32, 8, 128, 131_072, 262_144], false),
    known("granite-4.0-micro", "granite", [40, 2560, 8192, 40, 8, 64, 100_352, 131_072], true),
    known("smollm3-3b", "smollm3", [36, 2048, 11_008, 16, 4, 128, 128_256, 65_536], true),
    known("glm-4-9b", "glm4", [40, 4096, 13_696, 32, 2, 128, 151_552, 32_768], false),
];

impl KnownModel {
    /// What the model computes.
    ///
    /// # Panics
    /// The table names a family that does not exist, or lacks one of its keys: a test reads every row.
    pub fn spec(&self) -> ModelSpec {
        let family = families::named(self.architecture).expect("the table has only families that exist");
        let keys = Keys { source: self, architecture: family.name };
        (family.spec)(&keys).expect("the table has all keys of the family")
    }
}

impl KeySource for KnownModel {
    fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        Ok((key == "general.name").then(|| self.name.into()))
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let name = key.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.')).unwrap_or(key);
        let value = match name {
            "block_count" => Some(self.block_count),
            "context_length" => Some(self.context_length),
            "embedding_length" => Some(self.embedding_length),
            "feed_forward_length" | "expert_feed_forward_length" => Some(self.feed_forward_length),
            "attention.sliding_window" => self.window,
            "expert_count" => self.experts.map(|(count, _)| count),
            "expert_used_count" => self.experts.map(|(_, used)| used),
            "attention.head_count" => Some(self.head_count),
            "attention.head_count_kv" => Some(self.head_count_kv),
            "attention.key_length" => Some(self.head_length),
            _ => None,
        };
        Ok(value.map(|value| value as u64))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        Ok(key.ends_with(".attention.layer_norm_rms_epsilon").then_some(1e-5))
    }

    fn rows(&self, tensor: &str) -> Option<usize> {
        match tensor {
            TOKEN_EMBEDDING => Some(self.vocabulary_length),
            "output.weight" => (!self.tied_output).then_some(self.vocabulary_length),
            ROPE_FACTORS => self.has_rope_factors.then_some(1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_model_has_the_keys_of_its_family() {
        for model in MODELS {
            let spec = model.spec();
            assert!(spec.is_sound(), "{}", model.name);
            assert_eq!((spec.architecture.as_str(), spec.block_count()), (model.architecture, model.block_count));
            let experts = spec.layer(0).feed_forward.experts().map(|experts| (experts.count, experts.used_count));
            assert_eq!((spec.layer(0).feed_forward.columns(), experts), (model.feed_forward_length, model.experts));
        }
    }
}
