//! Bounds of hyper-parameters: computations with them take time and memory, and they come from files and peers.

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

/// Most segments of a tensor.
pub const SEGMENTS_MAX: usize = 8;

/// Whether a length is 1 to `most`.
pub(crate) fn within(length: usize, most: u64) -> bool {
    (1..=most).contains(&(length as u64))
}
