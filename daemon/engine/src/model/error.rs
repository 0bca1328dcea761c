//! Why a shard, or an expert that it lacks, cannot be loaded.
use std::io;

/// Why a shard could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file changed between check and load.
    #[error("tensor {0} disappeared from the file; do not replace a model while it is loading")]
    Missing(String),
    /// The file cannot be read.
    #[error("cannot read tensor {tensor}: {source}; check the file and its disk")]
    Read {
        /// The tensor.
        tensor: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be read for experts that stay on the disk.
    #[error(transparent)]
    Experts(ExpertError),
    /// The system has no memory for the shard.
    #[error("cannot allocate {bytes} bytes for weights: {source}; use more nodes or a smaller model")]
    Memory {
        /// Bytes requested.
        bytes: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The file was written to.
    #[error("the file changed while it was loading; do not modify it, and assign again")]
    Changed,
    /// The assignment was cancelled.
    #[error("the load was cancelled")]
    Cancelled,
}

/// Experts cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read experts of {tensor}: {source}; check the model file and its disk, then assign again")]
pub struct ExpertError {
    /// The tensor with their matrices.
    pub tensor: String,
    /// The error of the system.
    pub source: io::Error,
}
