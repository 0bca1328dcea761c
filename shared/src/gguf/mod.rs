//! Reads GGUF files; never trusts a number in them.
pub mod block;

pub use block::BlockFormat;

/// Families of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "stub until the reader lands")]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

/// Hyper-parameters.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "stub until the reader lands")]
pub struct Shape {
    pub architecture: Architecture,
    pub name: String,
    pub block_count: usize,
    pub context_length: usize,
    pub embedding_length: usize,
    pub feed_forward_length: usize,
    pub head_count: usize,
    pub head_count_kv: usize,
    pub head_length: usize,
    pub rope_dimension_count: usize,
    pub rope_freq_base: f32,
    pub rope_scale_linear: f32,
    pub layer_norm_rms_epsilon: f32,
    pub vocabulary_length: usize,
    pub tied_output: bool,
    pub has_rope_factors: bool,
}
