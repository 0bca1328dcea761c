//! The properties of a model that determine memory and time: its dimensions and the format of each matrix, from a file
//! or from the table of known shapes. Pure; reads no weights.
use std::{fmt, str::FromStr};

use gguf::{
    Architecture, BlockFormat, Experts, GgufFile, Shape,
    shape::{
        BLOCK_COUNT_MAX, CONTEXT_LENGTH_MAX, EMBEDDING_LENGTH_MAX, EXPERT_COUNT_MAX, FEED_FORWARD_LENGTH_MAX,
        HEAD_COUNT_MAX, HEAD_LENGTH_MAX, VOCABULARY_LENGTH_MAX,
    },
};
use serde::{Deserialize, Serialize};

use super::known::{self, KnownShape};

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

/// Formats of a layer's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFormats {
    /// `attn_q`
    pub query: BlockFormat,
    /// `attn_k`
    pub key: BlockFormat,
    /// `attn_v`
    pub value: BlockFormat,
    /// `attn_output`
    pub attention_output: BlockFormat,
    /// `ffn_gate`, of the experts if there are any
    pub gate: BlockFormat,
    /// `ffn_up`
    pub up: BlockFormat,
    /// `ffn_down`
    pub down: BlockFormat,
}

/// A model's memory and time requirements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSizes {
    /// Its common name.
    pub name: String,
    /// Dimensions used to cut it into shards. `feed_forward_length` is that of one expert if there are any.
    pub shape: Shape,
    /// Formats by layer.
    pub layers: Vec<LayerFormats>,
    /// Format of the output matrix; `token_embd.weight` if it is tied.
    pub output: BlockFormat,
    /// Whether query, key and value have biases.
    pub has_biases: bool,
}

impl ModelSizes {
    /// The sizes of a file whose shape is given.
    pub fn of_file(file: &GgufFile, shape: &Shape) -> Self {
        let [gate, up, down] = match shape.experts {
            Some(_) => ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"],
            None => ["ffn_gate", "ffn_up", "ffn_down"],
        };
        let format = |name: String| file.tensor(&name).map_or(BlockFormat::F32, |tensor| tensor.format);
        let output = if shape.tied_output { "token_embd.weight" } else { "output.weight" };
        Self {
            name: shape.name.clone(),
            shape: shape.clone(),
            layers: (0..shape.block_count)
                .map(|block| {
                    let of = |part: &str| format(format!("blk.{block}.{part}.weight"));
                    LayerFormats {
                        query: of("attn_q"),
                        key: of("attn_k"),
                        value: of("attn_v"),
                        attention_output: of("attn_output"),
                        gate: of(gate),
                        up: of(up),
                        down: of(down),
                    }
                })
                .collect(),
            output: format(output.into()),
            has_biases: file.tensor("blk.0.attn_q.bias").is_some(),
        }
    }

    /// Whether the numbers are plausible: they may come from another machine, and computations with them take time and
    /// memory.
    pub fn is_sound(&self) -> bool {
        let shape = &self.shape;
        let within = |length: usize, most: u64| (1..=most).contains(&(length as u64));
        let experts = shape.experts.is_none_or(|experts| {
            within(experts.count, EXPERT_COUNT_MAX) && (1..=experts.count).contains(&experts.used_count)
        });
        within(shape.block_count, BLOCK_COUNT_MAX)
            && shape.block_count == self.layers.len()
            && within(shape.context_length, CONTEXT_LENGTH_MAX)
            && within(shape.embedding_length, EMBEDDING_LENGTH_MAX)
            && within(shape.feed_forward_length, FEED_FORWARD_LENGTH_MAX)
            && within(shape.head_count, HEAD_COUNT_MAX)
            && within(shape.head_count_kv, HEAD_COUNT_MAX)
            && shape.head_count.is_multiple_of(shape.head_count_kv)
            && within(shape.head_length, HEAD_LENGTH_MAX)
            && within(shape.vocabulary_length, VOCABULARY_LENGTH_MAX as u64)
            && experts
    }

    /// A known shape with a mix of formats.
    ///
    /// # Errors
    /// No shape has this name; the message lists the known names.
    pub fn known(name: &str, quantisation: Quantisation) -> Result<Self, String> {
        let found = known::SHAPES.iter().find(|shape| shape.name == name);
        let known = found.ok_or_else(|| {
            let names: Vec<&str> = known::SHAPES.iter().map(|shape| shape.name).collect();
            format!("unknown shape {name:?}; use one of {}, or a GGUF file", names.join(", "))
        })?;
        Ok(Self::of_known(known, quantisation))
    }

    fn of_known(known: &KnownShape, quantisation: Quantisation) -> Self {
        let shape = shape(known);
        let usual = |columns: usize| fitting(quantisation.usual(), columns);
        Self {
            name: format!("{}-{quantisation}", known.name),
            layers: (0..known.block_count)
                .map(|block| {
                    let finer = has_more_bits(block, known.block_count);
                    let more =
                        |columns: usize| if finer { fitting(quantisation.finer(), columns) } else { usual(columns) };
                    let embedding = known.embedding_length;
                    LayerFormats {
                        query: usual(embedding),
                        key: usual(embedding),
                        value: more(embedding),
                        attention_output: usual(known.head_count * known.head_length),
                        gate: usual(embedding),
                        up: usual(embedding),
                        down: more(known.feed_forward_length),
                    }
                })
                .collect(),
            output: fitting(quantisation.output(), known.embedding_length),
            has_biases: known.architecture == "qwen2",
            shape,
        }
    }

    /// Bytes of all weights that a single rank reads: the layers and the output.
    pub fn weight_count(&self) -> u64 {
        let shape = &self.shape;
        let [embedding, feed_forward] = [shape.embedding_length as u64, shape.feed_forward_length as u64];
        let heads = 2 * (shape.head_count + shape.head_count_kv) as u64 * shape.head_length as u64;
        let experts = shape.experts.map_or(1, |experts| experts.count as u64);
        shape.block_count as u64 * embedding * (heads + 3 * feed_forward * experts)
            + embedding * shape.vocabulary_length as u64
    }
}

fn shape(known: &KnownShape) -> Shape {
    let architecture = Architecture::ALL.into_iter().find(|architecture| architecture.name() == known.architecture);
    Shape {
        architecture: architecture.expect("the table has only known architectures: a test checks it"),
        name: known.name.into(),
        block_count: known.block_count,
        context_length: known.context_length,
        embedding_length: known.embedding_length,
        feed_forward_length: known.feed_forward_length,
        experts: known.experts.map(|(count, used_count)| Experts { count, used_count }),
        head_count: known.head_count,
        head_count_kv: known.head_count_kv,
        head_length: known.head_length,
        rope_dimension_count: known.head_length,
        rope_freq_base: 10_000.0,
        rope_scale_linear: 1.0,
        layer_norm_rms_epsilon: 1e-5,
        vocabulary_length: known.vocabulary_length,
        tied_output: known.tied_output,
        has_rope_factors: known.has_rope_factors,
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
        BlockFormat::Q4K => BlockFormat::Q5_0,
        BlockFormat::Q5K => BlockFormat::Q5_1,
        BlockFormat::Q6K => BlockFormat::Q8_0,
        _ => BlockFormat::F16,
    };
    fitting(fallback, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_sizes_of_another_machine_are_rejected() {
        type Change = fn(&mut ModelSizes);
        let known = || ModelSizes::known("qwen3-30b-a3b", Quantisation::Q4KM).expect("it is known");
        assert!(known().is_sound());
        let changes: [Change; 8] = [
            |sizes| sizes.shape.block_count += 1,
            |sizes| (sizes.shape.block_count, sizes.layers) = (0, Vec::new()),
            |sizes| sizes.shape.embedding_length = 0,
            |sizes| sizes.shape.embedding_length = usize::MAX,
            |sizes| sizes.shape.head_count_kv = 0,
            |sizes| sizes.shape.head_count_kv = 5,
            |sizes| sizes.shape.vocabulary_length = usize::MAX,
            |sizes| sizes.shape.experts = Some(Experts { count: 4, used_count: 8 }),
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut sizes = known();
            change(&mut sizes);
            assert!(!sizes.is_sound(), "change {index}");
        }
    }

    #[test]
    fn known_shapes_have_the_weights_of_their_names() {
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
        ] {
            let sizes = ModelSizes::known(name, Quantisation::Q4_0).expect("it is known");
            let found = sizes.weight_count() as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 0.01, "{name}: {found}");
        }
        for shape in known::SHAPES {
            assert_eq!(ModelSizes::of_known(shape, Quantisation::Q4KM).shape.architecture.name(), shape.architecture);
        }
        let error = ModelSizes::known("llama-9", Quantisation::F16).expect_err("there is none");
        assert!(error.contains("llama-3.1-8b"), "{error}");
    }

    #[test]
    fn formats_are_mixed_as_in_files_with_fallbacks() {
        let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q4KM).expect("it is known");
        let finer = sizes.layers.iter().filter(|layer| layer.down == BlockFormat::Q6K).count();
        assert_eq!((finer, sizes.output), (16, BlockFormat::Q6K));
        assert!(sizes.layers.iter().all(|layer| layer.gate == BlockFormat::Q4K));
        let small = ModelSizes::known("qwen2.5-0.5b", Quantisation::Q4KM).expect("it is known");
        assert_eq!((small.layers[0].query, small.layers[0].down), (BlockFormat::Q5_0, BlockFormat::Q6K));
        assert_eq!("Q4_K_M".parse(), Ok(Quantisation::Q4KM));
        assert!("q9".parse::<Quantisation>().is_err());
    }
}
