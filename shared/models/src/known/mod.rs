//! Dimensions of well-known models from their config.json: for planning without a file, and for synthetic files with a
//! real model's dimensions. Their families read them as if they came from a file.
#[cfg(test)]
mod tests;

use gguf::GgufError;

use crate::{
    families,
    further::{
        DEEPSEEK_LITE, FurtherKeys, FurtherValue, GLM_FLASH, GRANITE_H_MICRO, GRANITE_H_TINY, LFM2, NEMOTRON_NANO_2,
        NEMOTRON_NANO_3, QWEN35_16, QWEN35_32, QWEN35_48,
    },
    keys::{KeySource, Keys},
    spec::ModelSpec,
    tensors::{FUSED_EXPERTS, ROPE_FACTORS, TOKEN_EMBEDDING},
};

/// A model's dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// How its layers differ from each other.
    pub mixed: Option<MixedLayers>,
    /// Whether queries, keys and values, and gate and up, are the rows of one tensor each.
    pub is_fused: bool,
    /// Further keys of its files, or other values of the keys above.
    pub further: FurtherKeys,
}

/// How the layers of a Gemma 4 model differ from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedLayers {
    /// Every layer whose number plus one is a multiple of this attends to everything; the others have a window.
    pub period: usize,
    /// Key and value heads of layers that attend to everything, and the elements of a head there.
    pub full: [usize; 2],
    /// How many of the last layers read the keys of earlier ones.
    pub shared: usize,
    /// Columns of the feed-forward network in those.
    pub shared_columns: usize,
    /// Elements of each token's input for each layer; 0 without it.
    pub input_length: usize,
    /// Columns of an expert; 0 without experts.
    pub expert_columns: usize,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum KnownValue {
    /// A number.
    Number(usize),
    /// A number that is no integer.
    Float(f32),
    /// A number for each layer.
    Numbers(Vec<usize>),
    /// A flag for each layer.
    Flags(Vec<bool>),
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
        mixed: None,
        is_fused: false,
        further: &[],
    }
}

/// A model whose layers partly attend to a window.
const fn windowed(name: &'static str, family: &'static str, dimensions: Dimensions, window: usize) -> KnownModel {
    KnownModel { window: Some(window), ..known(name, family, dimensions, true) }
}

/// A model with fused tensors.
const fn fused(name: &'static str, family: &'static str, dimensions: Dimensions, tied: bool) -> KnownModel {
    KnownModel { is_fused: true, ..known(name, family, dimensions, tied) }
}

/// gpt-oss of so many layers and experts.
const fn gpt_oss(name: &'static str, layers: usize, experts: usize) -> KnownModel {
    let dimensions = [layers, 2880, 2880, 64, 8, 64, 201_088, 131_072];
    KnownModel { experts: Some((experts, 4)), window: Some(128), ..known(name, "gpt-oss", dimensions, false) }
}

/// Gemma 4, with a context of 131072 tokens.
const fn gemma4(
    name: &'static str,
    dimensions: Dimensions,
    window: usize,
    experts: Option<(usize, usize)>,
    mixed: MixedLayers,
) -> KnownModel {
    let plain = known(name, "gemma4", dimensions, true);
    KnownModel { experts, window: Some(window), has_rope_factors: true, mixed: Some(mixed), ..plain }
}

/// Gemma 4 without shared keys: every sixth layer attends to everything.
const fn sixths(full: [usize; 2], expert_columns: usize) -> MixedLayers {
    MixedLayers { period: 6, full, shared: 0, shared_columns: 0, input_length: 0, expert_columns }
}

/// Factors of the embedding, the branches, the logits and the scores of Granite 4.
const GRANITE: FurtherKeys = &[
    ("embedding_scale", FurtherValue::Float(12.0)),
    ("residual_scale", FurtherValue::Float(0.22)),
    ("logit_scale", FurtherValue::Float(10.0)),
    ("attention.scale", FurtherValue::Float(1.0 / 64.0)),
];

/// A model with further keys.
const fn with(model: KnownModel, further: FurtherKeys) -> KnownModel {
    KnownModel { further, ..model }
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
    gemma4(
        "gemma-4-e2b",
        [35, 1536, 6144, 8, 1, 256, 262_144, 131_072],
        512,
        None,
        MixedLayers {
            period: 5,
            full: [1, 512],
            shared: 20,
            shared_columns: 12_288,
            input_length: 256,
            expert_columns: 0,
        },
    ),
    gemma4(
        "gemma-4-e4b",
        [42, 2560, 10_240, 8, 2, 256, 262_144, 131_072],
        512,
        None,
        MixedLayers { shared: 18, shared_columns: 10_240, input_length: 256, ..sixths([2, 512], 0) },
    ),
    gemma4("gemma-4-12b", [48, 3840, 15_360, 16, 8, 256, 262_144, 131_072], 1024, None, sixths([1, 512], 0)),
    gemma4(
        "gemma-4-26b-a4b",
        [30, 2816, 2112, 16, 8, 256, 262_144, 131_072],
        1024,
        Some((128, 8)),
        sixths([2, 512], 704),
    ),
    gemma4("gemma-4-31b", [60, 5376, 21_504, 32, 16, 256, 262_144, 131_072], 1024, None, sixths([4, 512], 0)),
    fused("phi-4-mini", "phi3", [32, 3072, 8192, 24, 8, 128, 200_064, 131_072], true),
    fused("phi-4", "phi3", [40, 5120, 17_920, 40, 10, 128, 100_352, 16_384], false),
    known("ministral-3-3b", "mistral3", [26, 3072, 9216, 32, 8, 128, 131_072, 262_144], true),
    known("ministral-3-8b", "mistral3", [34, 4096, 14_336, 32, 8, 128, 131_072, 262_144], false),
    known("ministral-3-14b", "mistral3", [40, 5120, 16_384, 32, 8, 128, 131_072, 262_144], false),
    with(known("granite-4.0-micro", "granite", [40, 2560, 8192, 40, 8, 64, 100_352, 131_072], true), GRANITE),
    with(known("lfm2-1.2b", "lfm2", [16, 2048, 8192, 32, 8, 64, 65_536, 128_000], true), LFM2),
    with(known("qwen3.5-0.8b", "qwen35", [24, 1024, 3584, 8, 2, 256, 248_320, 262_144], true), QWEN35_16),
    with(known("qwen3.5-2b", "qwen35", [24, 2048, 6144, 8, 2, 256, 248_320, 262_144], true), QWEN35_16),
    with(known("qwen3.5-4b", "qwen35", [32, 2560, 9216, 16, 4, 256, 248_320, 262_144], true), QWEN35_32),
    with(known("qwen3.5-9b", "qwen35", [32, 4096, 12_288, 16, 4, 256, 248_320, 262_144], false), QWEN35_32),
    with(known("qwen3.5-27b", "qwen35", [64, 5120, 17_408, 24, 4, 256, 248_320, 262_144], false), QWEN35_48),
    with(
        KnownModel {
            experts: Some((256, 8)),
            ..known("qwen3.5-35b-a3b", "qwen35moe", [40, 2048, 512, 16, 2, 256, 248_320, 262_144], false)
        },
        QWEN35_32,
    ),
    with(
        known("granite-4.0-h-micro", "granitehybrid", [40, 2048, 8192, 32, 8, 64, 100_352, 131_072], true),
        GRANITE_H_MICRO,
    ),
    with(
        KnownModel {
            experts: Some((64, 6)),
            ..known("granite-4.0-h-tiny", "granitehybrid", [40, 1536, 512, 12, 4, 128, 100_352, 131_072], true)
        },
        GRANITE_H_TINY,
    ),
    with(
        known("nemotron-nano-9b-v2", "nemotron_h", [56, 4480, 15_680, 40, 8, 128, 131_072, 131_072], false),
        NEMOTRON_NANO_2,
    ),
    with(
        KnownModel {
            experts: Some((128, 6)),
            ..known("nemotron-3-nano-30b-a3b", "nemotron_h_moe", [52, 2688, 1856, 32, 2, 128, 131_072, 262_144], false)
        },
        NEMOTRON_NANO_3,
    ),
    with(
        KnownModel {
            experts: Some((512, 10)),
            ..known("qwen3-next-80b-a3b", "qwen3next", [48, 2048, 512, 16, 2, 256, 151_936, 262_144], false)
        },
        QWEN35_32,
    ),
    known("smollm3-3b", "smollm3", [36, 2048, 11_008, 16, 4, 128, 128_256, 65_536], true),
    with(
        KnownModel {
            experts: Some((64, 4)),
            ..known("glm-4.7-flash", "deepseek2", [47, 2048, 1536, 20, 1, 256, 154_880, 202_752], false)
        },
        GLM_FLASH,
    ),
    with(
        KnownModel {
            experts: Some((64, 6)),
            ..known("deepseek-v2-lite", "deepseek2", [27, 2048, 1408, 16, 1, 192, 102_400, 163_840], false)
        },
        DEEPSEEK_LITE,
    ),
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

impl KnownModel {
    /// The keys of a file with so many of its layers, without the architecture in front.
    pub fn keys(&self, layers: usize) -> Vec<(&'static str, KnownValue)> {
        use KnownValue::{Float, Number};
        let lengths = [self.head_length; 2].map(Number);
        let [key_length, value_length] = lengths;
        let mut keys = vec![
            ("block_count", Number(layers)),
            ("context_length", Number(self.context_length)),
            ("embedding_length", Number(self.embedding_length)),
            ("feed_forward_length", Number(self.feed_forward_length)),
            ("attention.head_count", Number(self.head_count)),
            ("attention.head_count_kv", Number(self.head_count_kv)),
            ("attention.key_length", key_length),
            ("attention.value_length", value_length),
            ("rope.dimension_count", Number(self.head_length)),
            ("attention.layer_norm_rms_epsilon", Float(1e-5)),
        ];
        keys.retain(|(key, _)| self.further.iter().all(|(further, _)| further != key));
        keys.extend(self.further.iter().map(|(key, value)| (*key, value.into())));
        keys.extend(self.window.map(|window| ("attention.sliding_window", Number(window))));
        if let Some((count, used_count)) = self.experts {
            let columns = self.mixed.map_or(self.feed_forward_length, |mixed| mixed.expert_columns);
            keys.push(("expert_count", Number(count)));
            keys.push(("expert_used_count", Number(used_count)));
            keys.push(("expert_feed_forward_length", Number(columns)));
        }
        if let Some(mixed) = &self.mixed {
            keys.retain(|(key, _)| !OF_LAYERS.contains(key));
            keys.extend(mixed.keys(self, layers));
        }
        keys
    }

    /// Tensors that its files have besides those that every file of its family has.
    pub fn optional_tensors(&self) -> Vec<&'static str> {
        let mut tensors = Vec::new();
        tensors.extend((!self.tied_output).then_some("output.weight"));
        tensors.extend(self.has_rope_factors.then_some(ROPE_FACTORS));
        if self.is_fused {
            tensors.extend([FUSED_HEADS, FUSED_GATE]);
        }
        if let Some(mixed) = &self.mixed {
            tensors.push("layer_output_scale.weight");
            if mixed.expert_columns > 0 {
                tensors.extend(["ffn_gate_inp.weight", FUSED_EXPERTS, "ffn_down_exps.scale"]);
            }
        }
        tensors
    }

    fn value(&self, key: &str) -> Option<KnownValue> {
        let name = key.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.'))?;
        self.keys(self.block_count).into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Whether the values of a layer are its keys: where layers that attend to everything have fewer heads.
    pub fn values_are_keys(&self, layer: usize) -> bool {
        self.mixed.is_some_and(|mixed| mixed.is_full(layer) && mixed.shared == 0 && mixed.full[0] < self.head_count_kv)
    }
}

/// Queries, keys and values in one tensor.
const FUSED_HEADS: &str = "attn_qkv.weight";
/// Gate and up in one tensor.
const FUSED_GATE: &str = "ffn_up.weight";
/// Keys that differ between layers in a model whose layers are mixed.
const OF_LAYERS: [&str; 5] = [
    "feed_forward_length",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
];

impl MixedLayers {
    fn is_full(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.period)
    }

    fn keys(&self, model: &KnownModel, layers: usize) -> Vec<(&'static str, KnownValue)> {
        use KnownValue::{Flags, Float, Number, Numbers};
        let own = layers.saturating_sub(self.shared);
        let columns =
            (0..layers).map(|layer| if layer < own { model.feed_forward_length } else { self.shared_columns });
        let heads = (0..layers).map(|layer| if self.is_full(layer) { self.full[0] } else { model.head_count_kv });
        vec![
            ("feed_forward_length", Numbers(columns.collect())),
            ("attention.head_count_kv", Numbers(heads.collect())),
            ("attention.sliding_window_pattern", Flags((0..layers).map(|layer| !self.is_full(layer)).collect())),
            ("attention.shared_kv_layers", Number(self.shared.min(layers))),
            ("attention.key_length", Number(self.full[1])),
            ("attention.value_length", Number(self.full[1])),
            ("attention.key_length_swa", Number(model.head_length)),
            ("attention.value_length_swa", Number(model.head_length)),
            ("rope.dimension_count", Number(self.full[1])),
            ("rope.dimension_count_swa", Number(model.head_length)),
            ("rope.freq_base", Float(1e6)),
            ("rope.freq_base_swa", Float(1e4)),
            ("final_logit_softcapping", Float(30.0)),
            ("embedding_length_per_layer_input", Number(self.input_length)),
        ]
    }
}

impl From<&FurtherValue> for KnownValue {
    fn from(value: &FurtherValue) -> Self {
        match value {
            FurtherValue::Number(number) => Self::Number(*number),
            FurtherValue::Float(number) => Self::Float(*number),
            FurtherValue::List(numbers) => Self::Numbers(numbers.to_vec()),
        }
    }
}

impl KeySource for KnownModel {
    fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        Ok((key == "general.name").then(|| self.name.into()))
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let Some(KnownValue::Number(number)) = self.value(key) else { return Ok(None) };
        Ok(Some(number as u64))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        let Some(KnownValue::Float(number)) = self.value(key) else { return Ok(None) };
        Ok(Some(f64::from(number)))
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        let Some(KnownValue::Numbers(numbers)) = self.value(key) else { return Ok(None) };
        Ok(Some(numbers.into_iter().map(|number| number as i64).collect()))
    }

    fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let Some(KnownValue::Flags(flags)) = self.value(key) else { return Ok(None) };
        Ok(Some(flags))
    }

    fn rows(&self, tensor: &str) -> Option<usize> {
        let of_layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        match (tensor, of_layer) {
            (TOKEN_EMBEDDING | "output.weight", _) => {
                let is_there = tensor == TOKEN_EMBEDDING || !self.tied_output;
                is_there.then_some(self.vocabulary_length)
            }
            (_, Some((layer, "attn_v.weight"))) => {
                layer.parse().ok().filter(|layer| !self.values_are_keys(*layer)).map(|_| 1)
            }
            // Gate and up.
            (_, Some((_, FUSED_GATE))) => self.is_fused.then_some(2 * self.feed_forward_length),
            (_, Some((_, part))) => self.optional_tensors().contains(&part).then_some(1),
            (name, None) => self.optional_tensors().contains(&name).then_some(1),
        }
    }
}
