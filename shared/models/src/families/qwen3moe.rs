//! Qwen3 whose feed-forward networks are mixtures of experts.
use super::{Family, common::experts, qwen3::with_head_norms};
pub(super) const FAMILY: Family = Family { name: "qwen3moe", spec: |keys| with_head_norms(keys, experts) };
