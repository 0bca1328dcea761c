//! Differences between model families that are not visible in the tensors of their files.
use gguf::Architecture;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Neighbours (2i, 2i + 1): llama files are permuted for it.
    Neighbours,
    /// Halves (i, i + dimensions / 2), as in GPT-NeoX.
    Halves,
}

/// The rotation of a family (llama.cpp, `llama_model_rope_type`).
pub fn rotation(architecture: Architecture) -> Rotation {
    match architecture {
        Architecture::Llama => Rotation::Neighbours,
        Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Moe => Rotation::Halves,
    }
}
