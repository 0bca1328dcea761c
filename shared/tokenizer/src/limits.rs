//! Limits of a vocabulary, beyond every known model.

/// Most tokens of a vocabulary; the largest in use has 0.3 million.
pub const VOCABULARY_LENGTH_MAX: usize = 1 << 22;

/// Most merges of a byte-level BPE vocabulary; the largest in use has 0.5 million.
pub const MERGES_MAX: usize = 1 << 23;

/// Longest token or merge in bytes; the longest in use has about 1000 (runs of spaces).
pub const TOKEN_BYTES_MAX: usize = 4096;

/// Most tokens that a model must not generate; they are biased in every request.
pub const SUPPRESSED_MAX: usize = 256;
