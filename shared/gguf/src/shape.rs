//! The hyper-parameters of a model, named like the GGUF keys and checked before anything is computed with them; and the
//! tensors that the architecture needs, checked against them.

use serde::{Deserialize, Serialize};

use super::block::BlockFormat;
use super::error::{GgufError, shown};
use super::file::GgufFile;
use super::metadata::Metadata;

/// Most layers.
pub const BLOCK_COUNT_MAX: u64 = 1024;
/// Longest context that a file may specify.
pub const CONTEXT_LENGTH_MAX: u64 = 1 << 24;
/// Longest hidden state.
pub const EMBEDDING_LENGTH_MAX: u64 = 1 << 17;
/// Most columns of the feed-forward network, or of an expert.
pub const FEED_FORWARD_LENGTH_MAX: u64 = 1 << 20;
/// Most experts of a layer.
pub const EXPERT_COUNT_MAX: u64 = 1024;
/// Most heads of a layer.
pub const HEAD_COUNT_MAX: u64 = 1024;
/// Longest head.
pub const HEAD_LENGTH_MAX: u64 = 1024;
/// Most tokens of a vocabulary.
pub const VOCABULARY_LENGTH_MAX: usize = 1 << 22;

/// The model families that Bramble supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Architecture {
    /// Llama 1 to 3, Mistral and models of the same architecture; RoPE rotates adjacent pairs.
    Llama,
    /// Qwen2 and 2.5: biases on Q, K and V; RoPE rotates halves (NeoX).
    Qwen2,
    /// Qwen3: norms of each head of Q and K; RoPE rotates halves (NeoX).
    Qwen3,
    /// Qwen3 whose feed-forward networks are mixtures of experts.
    Qwen3Moe,
}

impl Architecture {
    /// Every architecture.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe];
    const SUPPORTED: &'static str = "llama, qwen2, qwen3 and qwen3moe";

    /// As in `general.architecture`, which is also the prefix of its keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
        }
    }

    /// Whether each head of Q and K has a norm; such models have no biases.
    pub const fn has_head_norms(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen3Moe)
    }

    /// Whether the feed-forward networks are mixtures of experts.
    pub const fn has_experts(self) -> bool {
        matches!(self, Self::Qwen3Moe)
    }

    fn read(metadata: Metadata) -> Result<Self, GgufError> {
        const KEY: &str = "general.architecture";
        let name = metadata.text(KEY)?.ok_or(GgufError::MissingKey { key: KEY.into() })?;
        let found = Self::ALL.into_iter().find(|architecture| architecture.name() == name);
        found.ok_or_else(|| GgufError::Architecture { name: shown(name.as_bytes()), supported: Self::SUPPORTED })
    }
}

/// The experts of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// `expert_count`: experts of a layer.
    pub count: usize,
    /// `expert_used_count`: experts used for each token, at most `count`.
    pub used_count: usize,
}

/// The hyper-parameters of a model that has all its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Family.
    pub architecture: Architecture,
    /// `general.name`, printable, truncated if very long; may be empty.
    pub name: String,
    /// Layers.
    pub block_count: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Elements of a hidden state.
    pub embedding_length: usize,
    /// Columns of the feed-forward network, or of each expert (`expert_feed_forward_length`).
    pub feed_forward_length: usize,
    /// The experts; `None` for a single feed-forward network.
    pub experts: Option<Experts>,
    /// Query heads of a layer.
    pub head_count: usize,
    /// Key and value heads of a layer; divides `head_count`.
    pub head_count_kv: usize,
    /// Elements of a head, even.
    pub head_length: usize,
    /// Elements of a head that are rotated, even, at most `head_length`.
    pub rope_dimension_count: usize,
    /// Base of the rotation angles.
    pub rope_freq_base: f32,
    /// Divisor of positions; 1 without scaling.
    pub rope_scale_linear: f32,
    /// Added under the root in RMS norms.
    pub layer_norm_rms_epsilon: f32,
    /// Rows of `token_embd.weight`.
    pub vocabulary_length: usize,
    /// Whether `token_embd.weight` is also the LM head.
    pub tied_output: bool,
    /// Whether `rope_freqs.weight` divides the rotation angles.
    pub has_rope_factors: bool,
}

impl Shape {
    /// Reads and checks the hyper-parameters, and checks that exactly the expected tensors exist with their dimensions.
    pub fn read(file: &GgufFile) -> Result<Self, GgufError> {
        let metadata = file.metadata();
        let architecture = Architecture::read(metadata)?;
        let keys = Keys { metadata, architecture: architecture.name() };
        let has_experts = architecture.has_experts();
        keys.refuse_unsupported(has_experts)?;
        let feed_forward_length = if has_experts { "expert_feed_forward_length" } else { "feed_forward_length" };

        let embedding_length = keys.length("embedding_length", EMBEDDING_LENGTH_MAX)?;
        let head_count = keys.length("attention.head_count", HEAD_COUNT_MAX)?;
        let head_count_kv = keys.optional_length("attention.head_count_kv", HEAD_COUNT_MAX)?.unwrap_or(head_count);
        if !head_count.is_multiple_of(head_count_kv) {
            let reason = format!("which does not divide the {head_count} heads");
            return Err(keys.refuse("attention.head_count_kv", head_count_kv, reason));
        }
        let head_length = keys.head_length(embedding_length, head_count)?;
        let embedding = file.tensor("token_embd.weight").ok_or(GgufError::MissingTensor {
            tensor: "token_embd.weight".into(),
            architecture: architecture.name(),
        })?;
        let shape = Self {
            architecture,
            name: shown(metadata.text("general.name")?.unwrap_or_default().as_bytes()),
            block_count: keys.length("block_count", BLOCK_COUNT_MAX)?,
            context_length: keys.length("context_length", CONTEXT_LENGTH_MAX)?,
            embedding_length,
            feed_forward_length: keys.length(feed_forward_length, FEED_FORWARD_LENGTH_MAX)?,
            experts: has_experts.then(|| keys.experts()).transpose()?,
            head_count,
            head_count_kv,
            head_length,
            rope_dimension_count: keys.rope_dimension_count(head_length)?,
            rope_freq_base: keys.positive("rope.freq_base", Some(10_000.0))?,
            rope_scale_linear: keys.rope_scale_linear()?,
            layer_norm_rms_epsilon: keys.positive("attention.layer_norm_rms_epsilon", None)?,
            vocabulary_length: embedding.rows(),
            tied_output: file.tensor("output.weight").is_none(),
            has_rope_factors: file.tensor("rope_freqs.weight").is_some(),
        };
        shape.check_vocabulary(metadata)?;
        TensorCheck { file, shape: &shape, found: 0 }.all()?;
        Ok(shape)
    }

    /// Whether some model of this architecture and depth has a tensor of this name.
    fn uses(&self, name: &str) -> bool {
        const MODEL: [&str; 4] = ["token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"];
        const WEIGHTS: [&str; 6] = ["attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"];
        const DENSE: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];
        const EXPERTS: [&str; 4] = ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
        let Some((block, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return MODEL.contains(&name);
        };
        // Also rejects other spellings of the number, such as 01.
        if !block.parse::<usize>().is_ok_and(|number| number < self.block_count && number.to_string() == block) {
            return false;
        }
        match part.split_once('.') {
            Some((part, "weight")) if WEIGHTS.contains(&part) => true,
            Some((part, "weight")) if DENSE.contains(&part) => self.experts.is_none(),
            Some((part, "weight")) if EXPERTS.contains(&part) => self.experts.is_some(),
            Some(("attn_q" | "attn_k" | "attn_v", "bias")) => !self.architecture.has_head_norms(),
            Some(("attn_q_norm" | "attn_k_norm", "weight")) => self.architecture.has_head_norms(),
            _ => false,
        }
    }

    fn check_vocabulary(&self, metadata: Metadata) -> Result<(), GgufError> {
        const KEY: &str = "tokenizer.ggml.tokens";
        let tokens = metadata.texts(KEY)?.map_or(0, |tokens| tokens.len());
        let rows = self.vocabulary_length;
        if tokens <= rows && rows <= VOCABULARY_LENGTH_MAX {
            return Ok(());
        }
        Err(GgufError::Parameter {
            key: KEY.into(),
            value: format!("a list of {tokens} tokens"),
            reason: format!("token_embd.weight has {rows} rows (at most {VOCABULARY_LENGTH_MAX} are supported)"),
        })
    }
}

/// The keys of one architecture.
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn refuse(&self, name: &str, value: impl ToString, reason: impl Into<String>) -> GgufError {
        GgufError::Parameter { key: self.key(name), value: value.to_string(), reason: reason.into() }
    }

    fn missing(&self, name: &str) -> GgufError {
        GgufError::MissingKey { key: self.key(name) }
    }

    /// Rejects features that would give wrong results if they were ignored.
    fn refuse_unsupported(&self, has_experts: bool) -> Result<(), GgufError> {
        if let Some(kind) = self.metadata.text("general.type")?
            && kind != "model"
        {
            return Err(GgufError::Unsupported {
                key: "general.type".into(),
                value: shown(kind.as_bytes()),
                feature: "a file without a language model",
            });
        }
        let unsupported =
            |name: &str, value: String, feature| Err(GgufError::Unsupported { key: self.key(name), value, feature });
        if !has_experts {
            return match self.metadata.unsigned(&self.key("expert_count"))?.unwrap_or(0) {
                0 => Ok(()),
                count => unsupported("expert_count", count.to_string(), "a mixture of experts in this architecture"),
            };
        }
        // 0 and 1: unspecified, softmax (llama.cpp, llama_expert_gating_func_type).
        let gating = self.metadata.unsigned(&self.key("expert_gating_func"))?.unwrap_or(0);
        if gating > 1 {
            return unsupported("expert_gating_func", gating.to_string(), "a router other than softmax");
        }
        let scale = self.metadata.float(&self.key("expert_weights_scale"))?.unwrap_or(0.0);
        if scale != 0.0 && scale != 1.0 {
            return unsupported("expert_weights_scale", scale.to_string(), "a scale of the experts' weights");
        }
        Ok(())
    }

    /// The number of experts and the number used for each token.
    fn experts(&self) -> Result<Experts, GgufError> {
        const USED: &str = "expert_used_count";
        let count = self.length("expert_count", EXPERT_COUNT_MAX)?;
        let used_count = self.length(USED, EXPERT_COUNT_MAX)?;
        if used_count <= count {
            return Ok(Experts { count, used_count });
        }
        Err(self.refuse(USED, used_count, format!("but the model has {count} experts")))
    }

    fn optional_length(&self, name: &str, max: u64) -> Result<Option<usize>, GgufError> {
        match self.metadata.unsigned(&self.key(name))? {
            None => Ok(None),
            // The bounds fit 32 bits.
            Some(value) if (1..=max).contains(&value) => Ok(Some(value as usize)),
            Some(value) => Err(self.refuse(name, value, format!("it must be 1 to {max}"))),
        }
    }

    fn length(&self, name: &str, max: u64) -> Result<usize, GgufError> {
        self.optional_length(name, max)?.ok_or_else(|| self.missing(name))
    }

    fn positive(&self, name: &str, default: Option<f32>) -> Result<f32, GgufError> {
        let Some(value) = self.metadata.float(&self.key(name))? else {
            return default.ok_or_else(|| self.missing(name));
        };
        let value = value as f32;
        if value.is_normal() && value > 0.0 {
            return Ok(value);
        }
        Err(self.refuse(name, value, "it must be a number above 0"))
    }

    fn head_length(&self, embedding_length: usize, head_count: usize) -> Result<usize, GgufError> {
        const KEY: &str = "attention.key_length";
        const VALUE: &str = "attention.value_length";
        let head_length = match self.optional_length(KEY, HEAD_LENGTH_MAX)? {
            Some(length) => length,
            None if embedding_length.is_multiple_of(head_count) => embedding_length / head_count,
            None => {
                let reason = format!("which does not divide embedding_length {embedding_length}");
                return Err(self.refuse("attention.head_count", head_count, reason));
            }
        };
        if !head_length.is_multiple_of(2) || head_length as u64 > HEAD_LENGTH_MAX {
            let reason = format!("heads must be of even length and at most {HEAD_LENGTH_MAX}");
            return Err(self.refuse(KEY, head_length, reason));
        }
        let value_length = self.optional_length(VALUE, HEAD_LENGTH_MAX)?.unwrap_or(head_length);
        if value_length != head_length {
            let reason = format!("only heads whose values are as long as their keys ({head_length}) are supported");
            return Err(self.refuse(VALUE, value_length, reason));
        }
        Ok(head_length)
    }

    fn rope_dimension_count(&self, head_length: usize) -> Result<usize, GgufError> {
        const KEY: &str = "rope.dimension_count";
        let count = self.optional_length(KEY, HEAD_LENGTH_MAX)?.unwrap_or(head_length);
        if count.is_multiple_of(2) && count <= head_length {
            return Ok(count);
        }
        let reason = format!("it must be even and at most the head length {head_length}");
        Err(self.refuse(KEY, count, reason))
    }

    /// The factor of linear scaling. A file with a factor but no type means linear scaling.
    fn rope_scale_linear(&self) -> Result<f32, GgufError> {
        const TYPE: &str = "rope.scaling.type";
        const FACTOR: &str = "rope.scaling.factor";
        /// The key in files from before 2023-11.
        const FORMER: &str = "rope.scale_linear";
        let kind = self.metadata.text(&self.key(TYPE))?;
        if let Some(other) = kind
            && !["none", "linear"].contains(&other)
        {
            return Err(GgufError::Unsupported {
                key: self.key(TYPE),
                value: shown(other.as_bytes()),
                feature: "a rope scaling other than none and linear",
            });
        }
        if kind == Some("none") {
            return Ok(1.0);
        }
        if kind.is_none() && !self.metadata.float(&self.key(FACTOR)).map(|value| value.is_some())? {
            return self.positive(FORMER, Some(1.0));
        }
        self.positive(FACTOR, None)
    }
}

/// Compares the tensor table with the shape.
struct TensorCheck<'a> {
    file: &'a GgufFile,
    shape: &'a Shape,
    /// Number of tensors that are part of the architecture.
    found: usize,
}

impl TensorCheck<'_> {
    fn all(mut self) -> Result<(), GgufError> {
        let shape = self.shape;
        let embedding = shape.embedding_length;
        let vocabulary = shape.vocabulary_length;
        self.matrix("token_embd.weight", embedding, vocabulary)?;
        if !shape.tied_output {
            self.matrix("output.weight", embedding, vocabulary)?;
        }
        self.vector("output_norm.weight", embedding)?;
        if shape.has_rope_factors {
            self.vector("rope_freqs.weight", shape.rope_dimension_count / 2)?;
        }
        for block in 0..shape.block_count {
            self.block(block)?;
        }
        if self.found == self.file.tensors().count() {
            return Ok(());
        }
        let unexpected = self.file.tensors().find(|tensor| !shape.uses(tensor.name));
        let unexpected = unexpected.map_or(&b"(unknown)"[..], |tensor| tensor.name.as_bytes());
        Err(GgufError::UnexpectedTensor { tensor: shown(unexpected), architecture: shape.architecture.name() })
    }

    fn block(&mut self, block: usize) -> Result<(), GgufError> {
        let shape = self.shape;
        let name = |part: &str| format!("blk.{block}.{part}");
        let embedding = shape.embedding_length;
        let q = shape.head_count * shape.head_length;
        let kv = shape.head_count_kv * shape.head_length;
        let hidden = shape.feed_forward_length;
        self.vector(&name("attn_norm.weight"), embedding)?;
        self.matrix(&name("attn_q.weight"), embedding, q)?;
        self.matrix(&name("attn_k.weight"), embedding, kv)?;
        self.matrix(&name("attn_v.weight"), embedding, kv)?;
        self.matrix(&name("attn_output.weight"), q, embedding)?;
        for (part, rows) in [("attn_q.bias", q), ("attn_k.bias", kv), ("attn_v.bias", kv)] {
            let there = self.file.tensor(&name(part)).is_some();
            match shape.architecture {
                Architecture::Qwen2 => self.vector(&name(part), rows)?,
                Architecture::Llama if there => self.vector(&name(part), rows)?,
                // A bias of Qwen3 is left over and rejected as unexpected.
                Architecture::Llama | Architecture::Qwen3 | Architecture::Qwen3Moe => {}
            }
        }
        if shape.architecture.has_head_norms() {
            self.vector(&name("attn_q_norm.weight"), shape.head_length)?;
            self.vector(&name("attn_k_norm.weight"), shape.head_length)?;
        }
        self.vector(&name("ffn_norm.weight"), embedding)?;
        let Some(Experts { count, .. }) = shape.experts else {
            self.matrix(&name("ffn_gate.weight"), embedding, hidden)?;
            self.matrix(&name("ffn_up.weight"), embedding, hidden)?;
            return self.matrix(&name("ffn_down.weight"), hidden, embedding);
        };
        self.floats(&name("ffn_gate_inp.weight"), [embedding, count, 1])?;
        self.tensor(&name("ffn_gate_exps.weight"), [embedding, hidden, count])?;
        self.tensor(&name("ffn_up_exps.weight"), [embedding, hidden, count])?;
        self.tensor(&name("ffn_down_exps.weight"), [hidden, embedding, count]).map(drop)
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<(), GgufError> {
        self.floats(name, [length, 1, 1])
    }

    fn matrix(&mut self, name: &str, columns: usize, rows: usize) -> Result<(), GgufError> {
        self.tensor(name, [columns, rows, 1]).map(drop)
    }

    /// Requires a tensor to be F32.
    fn floats(&mut self, name: &str, dimensions: [usize; 3]) -> Result<(), GgufError> {
        let format = self.tensor(name, dimensions)?;
        if format == BlockFormat::F32 {
            return Ok(());
        }
        Err(GgufError::TensorFormat { tensor: name.to_owned(), found: format.name() })
    }

    fn tensor(&mut self, name: &str, dimensions: [usize; 3]) -> Result<BlockFormat, GgufError> {
        let tensor = self.file.tensor(name).ok_or_else(|| GgufError::MissingTensor {
            tensor: name.to_owned(),
            architecture: self.shape.architecture.name(),
        })?;
        let [columns, rows, count] = dimensions.map(|length| length as u64);
        if tensor.dimensions != [columns, rows, count, 1] {
            let (found, expected) = (shown_dimensions(&tensor.dimensions), shown_dimensions(&[columns, rows, count]));
            return Err(GgufError::TensorShape { tensor: name.to_owned(), found, expected });
        }
        self.found += 1;
        Ok(tensor.format)
    }
}

/// Dimensions for messages: the first two, and later ones that are not 1.
fn shown_dimensions(dimensions: &[u64]) -> Vec<u64> {
    let count = dimensions.iter().rposition(|length| *length != 1).map_or(0, |last| last + 1);
    dimensions[..count.max(2)].to_vec()
}
