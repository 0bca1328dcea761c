//! Dimensions of well-known models from their config.json: for planning without a file, and for synthetic files with a
//! real model's shape.

/// A model's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownShape {
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
}

/// Layers, embedding, feed-forward, heads, KV heads, head length, vocabulary, context.
type Dimensions = [usize; 8];

const fn known(name: &'static str, architecture: &'static str, dimensions: Dimensions, tied: bool) -> KnownShape {
    let [block_count, embedding_length, feed_forward_length, head_count, head_count_kv, head_length, ..] = dimensions;
    let [.., vocabulary_length, context_length] = dimensions;
    KnownShape {
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
    }
}

/// Llama 3.1 and later.
const fn llama3(name: &'static str, dimensions: Dimensions, tied: bool) -> KnownShape {
    KnownShape { has_rope_factors: true, ..known(name, "llama", dimensions, tied) }
}

/// All known shapes, by family and size.
pub const SHAPES: &[KnownShape] = &[
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
    KnownShape {
        experts: Some((128, 8)),
        ..known("qwen3-30b-a3b", "qwen3moe", [48, 2048, 768, 32, 4, 128, 151_936, 40_960], false)
    },
];
