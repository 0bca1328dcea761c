//! Small models with seeded random weights for every architecture and format, as GGUF bytes. A weight depends only on
//! the seed and its tensor's name, so two models that differ only in format differ by rounding.

use gguf::BlockFormat;
use topology::sizes::{fitting, has_more_bits};

use crate::chain::Chain;
use crate::gguf_writer::GgufWriter;
use crate::quantise::quantise;
use crate::random::Random;

/// Minimum vocabulary: unknown, start, end, 256 bytes, and some pieces.
pub const VOCABULARY_LENGTH_MIN: usize = 300;

/// Approximate standard deviation of the logits.
const LOGIT_SPREAD: f32 = 3.0;

/// Standard deviation of the weights of a wide embedding. A block adds about 1.
const WIDE_EMBEDDING: f32 = 4.0;

/// The families that this writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama.
    Llama,
    /// Qwen2.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe];

    /// As in `general.architecture`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
        }
    }

    const fn has_head_norms(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen3Moe)
    }

    /// Whether the feed-forward networks are mixtures of experts.
    pub const fn has_experts(self) -> bool {
        matches!(self, Self::Qwen3Moe)
    }
}

/// The experts of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts used for each token.
    pub used_count: usize,
}

/// A model to be written. `new` gives one of a few hundred kB; tests change the fields that they are about.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Family.
    pub architecture: Architecture,
    /// Seed of every weight.
    pub seed: u64,
    /// GGUF version, 2 or 3.
    pub version: u32,
    /// Format of `token_embd.weight`.
    pub embedding_format: BlockFormat,
    /// Format of `attn_q`, `attn_k`, `attn_v` and `attn_output`.
    pub attention_format: BlockFormat,
    /// Format of `ffn_gate` and `ffn_up`.
    pub feed_forward_format: BlockFormat,
    /// Format of `ffn_down`.
    pub feed_forward_down_format: BlockFormat,
    /// Format of `output.weight`.
    pub output_format: BlockFormat,
    /// Format of `attn_v` and `ffn_down` in the layers to which llama.cpp's Q4_K_M gives more bits; `None`: as in the
    /// others.
    pub finer_format: Option<BlockFormat>,
    /// Number of layers.
    pub block_count: usize,
    /// Context length in tokens.
    pub context_length: usize,
    /// Elements of a hidden state.
    pub embedding_length: usize,
    /// Columns of the feed-forward network, or of an expert.
    pub feed_forward_length: usize,
    /// Experts per layer and experts used per token; only for architectures with experts.
    pub experts: Experts,
    /// Query heads.
    pub head_count: usize,
    /// Key and value heads.
    pub head_count_kv: usize,
    /// Elements of a head.
    pub head_length: usize,
    /// Elements of a head to which RoPE applies.
    pub rope_dimension_count: usize,
    /// Base of the RoPE frequencies.
    pub rope_freq_base: f32,
    /// 1 for no scaling; any other value is written as linear scaling.
    pub rope_scale_linear: f32,
    /// Size of the vocabulary, at least [`VOCABULARY_LENGTH_MIN`].
    pub vocabulary_length: usize,
    /// Whether `output.weight` is left out.
    pub tied: bool,
    /// Whether the embedding outweighs what the blocks add: hidden states then differ from token to token, and routers
    /// use all experts about equally. A tied output would repeat a token forever.
    pub wide_embedding: bool,
    /// Whether there is a `rope_freqs.weight` as in Llama 3 files.
    pub rope_factors: bool,
    /// Whether Q, K and V have biases; Qwen2 always has them, Qwen3 must not.
    pub attention_biases: bool,
    /// Continue every text along a chain of tokens; needs a wide embedding, and an output of its own.
    pub chain: Option<Chain>,
}

impl TinyModel {
    /// Two layers in F32, four heads over two KV heads of length 32, 300 tokens, context 256.
    pub fn new(architecture: Architecture) -> Self {
        Self {
            architecture,
            seed: 1,
            version: 3,
            embedding_format: BlockFormat::F32,
            attention_format: BlockFormat::F32,
            feed_forward_format: BlockFormat::F32,
            feed_forward_down_format: BlockFormat::F32,
            output_format: BlockFormat::F32,
            finer_format: None,
            block_count: 2,
            context_length: 256,
            embedding_length: 128,
            feed_forward_length: 256,
            experts: Experts { count: 8, used_count: 3 },
            head_count: 4,
            head_count_kv: 2,
            head_length: 32,
            rope_dimension_count: 32,
            rope_freq_base: 10_000.0,
            rope_scale_linear: 1.0,
            vocabulary_length: VOCABULARY_LENGTH_MIN,
            tied: architecture == Architecture::Llama,
            wide_embedding: false,
            rope_factors: false,
            attention_biases: architecture == Architecture::Qwen2,
            chain: None,
        }
    }

    /// Continues every text along a chain of tokens.
    pub fn with_chain(self, chain: Chain) -> Self {
        Self { chain: Some(chain), tied: false, wide_embedding: true, ..self }
    }

    /// Sets one format for all matrices; rows that are not whole blocks fall back as in real files.
    pub fn with_format(mut self, format: BlockFormat) -> Self {
        self.embedding_format = format;
        self.attention_format = format;
        self.feed_forward_format = format;
        self.feed_forward_down_format = format;
        self.output_format = format;
        self
    }

    /// The bytes of a single file.
    pub fn bytes(&self) -> Vec<u8> {
        self.writer().finish()
    }

    /// The bytes of `count` splits.
    pub fn splits(&self, count: usize) -> Vec<Vec<u8>> {
        self.writer().finish_splits(count)
    }

    /// The unfinished file, for a test to change.
    pub fn writer(&self) -> GgufWriter {
        let mut writer = self.hyper_parameters(GgufWriter::new(self.version));
        writer = vocabulary(writer, self.vocabulary_length);
        let embedding = self.embedding_length;
        let spread = LOGIT_SPREAD / (embedding as f32).sqrt();
        let tokens = self.vocabulary_length;
        let width = if self.wide_embedding { WIDE_EMBEDDING } else { spread };
        writer = self.matrix(writer, "token_embd.weight", self.embedding_format, [embedding, tokens], width);
        if let Some(chain) = self.chain {
            writer = self.chained_output(writer, chain, spread / WIDE_EMBEDDING);
        } else if !self.tied {
            writer = self.matrix(writer, "output.weight", self.output_format, [embedding, tokens], spread);
        }
        writer = self.vector(writer, "output_norm.weight", embedding, 1.0);
        if self.rope_factors {
            writer = self.rope_freqs(writer);
        }
        for block in 0..self.block_count {
            writer = self.block(writer, block);
        }
        writer
    }

    /// An output that gives each token the logit of the embedding of the token before it in the chain.
    fn chained_output(&self, writer: GgufWriter, chain: Chain, scale: f32) -> GgufWriter {
        let (embedding, tokens, seed) = (self.embedding_length, self.vocabulary_length, self.seed);
        let format = fitting(self.output_format, embedding);
        writer.made_tensor("output.weight", &[embedding as u64, tokens as u64], format, move |out| {
            let mut random = Random::named(seed, "token_embd.weight");
            let rows: Vec<Vec<f32>> = (0..tokens).map(|_| random.normals(embedding, WIDE_EMBEDDING * scale)).collect();
            chain
                .before(tokens, VOCABULARY_LENGTH_MIN)
                .into_iter()
                .try_for_each(|before| out.write_all(&quantise(format, &rows[before])))
        })
    }

    fn hyper_parameters(&self, writer: GgufWriter) -> GgufWriter {
        let name = self.architecture.name();
        let key = |part: &str| format!("{name}.{part}");
        let Experts { count, used_count } = self.experts;
        let has_experts = self.architecture.has_experts();
        let feed_forward_length = self.feed_forward_length * if has_experts { used_count } else { 1 };
        let mut writer = writer
            .text("general.architecture", name)
            .text("general.type", "model")
            .text("general.name", &format!("tiny {name}"))
            .u32(&key("block_count"), self.block_count as u32)
            .u32(&key("context_length"), self.context_length as u32)
            .u32(&key("embedding_length"), self.embedding_length as u32)
            .u32(&key("feed_forward_length"), feed_forward_length as u32)
            .u32(&key("attention.head_count"), self.head_count as u32)
            .u32(&key("attention.head_count_kv"), self.head_count_kv as u32)
            .u32(&key("attention.key_length"), self.head_length as u32)
            .u32(&key("attention.value_length"), self.head_length as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .u32(&key("rope.dimension_count"), self.rope_dimension_count as u32)
            .f32(&key("rope.freq_base"), self.rope_freq_base);
        if has_experts {
            writer = writer
                .u32(&key("expert_count"), count as u32)
                .u32(&key("expert_used_count"), used_count as u32)
                .u32(&key("expert_feed_forward_length"), self.feed_forward_length as u32);
        }
        if self.rope_scale_linear != 1.0 {
            writer = writer
                .text(&key("rope.scaling.type"), "linear")
                .f32(&key("rope.scaling.factor"), self.rope_scale_linear);
        }
        writer
    }

    fn block(&self, mut writer: GgufWriter, block: usize) -> GgufWriter {
        let name = |part: &str| format!("blk.{block}.{part}");
        let embedding = self.embedding_length;
        let hidden = self.feed_forward_length;
        let q = self.head_count * self.head_length;
        let kv = self.head_count_kv * self.head_length;
        let attention = self.attention_format;
        let gate = self.feed_forward_format;
        let finer = self.finer_format.filter(|_| has_more_bits(block, self.block_count));
        writer = self.vector(writer, &name("attn_norm.weight"), embedding, 1.0);
        writer = self.vector(writer, &name("ffn_norm.weight"), embedding, 1.0);
        for (part, format, columns, rows) in [
            ("attn_q.weight", attention, embedding, q),
            ("attn_k.weight", attention, embedding, kv),
            ("attn_v.weight", finer.unwrap_or(attention), embedding, kv),
            ("attn_output.weight", attention, q, embedding),
        ] {
            writer = self.matrix(writer, &name(part), format, [columns, rows], unit_scale(columns));
        }
        let down = finer.unwrap_or(self.feed_forward_down_format);
        let (experts, end) = match self.architecture.has_experts() {
            true => (self.experts.count, "_exps.weight"),
            false => (1, ".weight"),
        };
        for (part, format, columns, rows) in [
            ("ffn_gate", gate, embedding, hidden),
            ("ffn_up", gate, embedding, hidden),
            ("ffn_down", down, hidden, embedding),
        ] {
            let (part, dimensions) = (name(&format!("{part}{end}")), [columns, rows, experts]);
            writer = self.stack(writer, &part, format, dimensions, unit_scale(columns));
        }
        if self.architecture.has_experts() {
            // Widely spread logits, as trained routers have: the experts of a token get different weights.
            let (part, scale) = (name("ffn_gate_inp.weight"), 2.0 * unit_scale(embedding));
            writer = self.matrix(writer, &part, BlockFormat::F32, [embedding, experts], scale);
        }
        if self.attention_biases {
            for (part, rows) in [("attn_q.bias", q), ("attn_k.bias", kv), ("attn_v.bias", kv)] {
                writer = self.vector(writer, &name(part), rows, 0.0);
            }
        }
        if self.architecture.has_head_norms() {
            for part in ["attn_q_norm.weight", "attn_k_norm.weight"] {
                writer = self.vector(writer, &name(part), self.head_length, 1.0);
            }
        }
        writer
    }

    fn matrix(
        &self,
        writer: GgufWriter,
        name: &str,
        format: BlockFormat,
        [columns, rows]: [usize; 2],
        scale: f32,
    ) -> GgufWriter {
        self.stack(writer, name, format, [columns, rows, 1], scale)
    }

    /// Matrices of one tensor, each with different weights.
    fn stack(
        &self,
        writer: GgufWriter,
        name: &str,
        format: BlockFormat,
        [columns, rows, count]: [usize; 3],
        scale: f32,
    ) -> GgufWriter {
        let format = fitting(format, columns);
        let dimensions = [columns, rows, count].map(|length| length as u64);
        let dimensions = &dimensions[..if count > 1 { 3 } else { 2 }];
        let (seed, tensor) = (self.seed, name.to_owned());
        writer.made_tensor(name, dimensions, format, move |out| {
            for matrix in 0..count {
                let name = if matrix == 0 { tensor.clone() } else { format!("{tensor}#{matrix}") };
                let mut random = Random::named(seed, &name);
                (0..rows).try_for_each(|_| out.write_all(&quantise(format, &random.normals(columns, scale))))?;
            }
            Ok(())
        })
    }

    /// An F32 vector with values near `mean`.
    fn vector(&self, writer: GgufWriter, name: &str, length: usize, mean: f32) -> GgufWriter {
        let mut weights = Random::named(self.seed, name).normals(length, 0.1);
        weights.iter_mut().for_each(|weight| *weight += mean);
        let bytes = quantise(BlockFormat::F32, &weights);
        writer.tensor(name, &[length as u64], BlockFormat::F32, bytes)
    }

    /// Frequency factors from 1 for the fastest pairs to 8 for the slowest, as in Llama 3.1.
    fn rope_freqs(&self, writer: GgufWriter) -> GgufWriter {
        let length = self.rope_dimension_count / 2;
        let last = length.saturating_sub(1).max(1) as f32;
        let factors: Vec<f32> = (0..length).map(|i| 8f32.powf(i as f32 / last)).collect();
        let bytes = quantise(BlockFormat::F32, &factors);
        writer.tensor("rope_freqs.weight", &[length as u64], BlockFormat::F32, bytes)
    }
}

/// A row of n such weights times n numbers of variance 1 has variance 1.
fn unit_scale(columns: usize) -> f32 {
    1.0 / (columns as f32).sqrt()
}

/// An SPM vocabulary: the special tokens, all bytes, letters, some words, and made-up pieces up to `length`.
pub(crate) fn vocabulary(writer: GgufWriter, length: usize) -> GgufWriter {
    const NORMAL: i32 = 1;
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    const WORDS: [&str; 10] =
        ["\u{2581}", "th", "he", "\u{2581}th", "\u{2581}the", "an", "\u{2581}an", "nd", "\u{2581}and", "in"];
    assert!(length >= VOCABULARY_LENGTH_MIN, "a vocabulary needs at least {VOCABULARY_LENGTH_MIN} tokens");
    let mut tokens = vec![("<unk>".to_owned(), UNKNOWN), ("<s>".to_owned(), CONTROL), ("</s>".to_owned(), CONTROL)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(WORDS.map(|word| (word.to_owned(), NORMAL)));
    tokens.extend(('a'..='z').map(|letter| (letter.to_string(), NORMAL)));
    // Upper case and digits: none equals a word from above.
    tokens.extend((0..length).map(|number| (format!("Z{number}"), NORMAL)));
    tokens.truncate(length);
    let pieces: Vec<&str> = tokens.iter().map(|(piece, _)| piece.as_str()).collect();
    let kinds: Vec<i32> = tokens.iter().map(|&(_, kind)| kind).collect();
    // Merging prefers the higher score; special tokens and bytes have none.
    let scores: Vec<f32> =
        kinds.iter().enumerate().map(|(id, &kind)| if kind == NORMAL { -(id as f32) } else { 0.0 }).collect();
    writer
        .text("tokenizer.ggml.model", "llama")
        .text("tokenizer.ggml.pre", "default")
        .texts("tokenizer.ggml.tokens", &pieces)
        .floats("tokenizer.ggml.scores", &scores)
        .integers("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .flag("tokenizer.ggml.add_bos_token", true)
}
