//! Qwen3-Next and Qwen3-Coder-Next: as Qwen3.5 with experts, but the value heads of a key head follow each other.
use super::{Family, qwen35::hybrid, qwen35moe::experts};

pub(super) const FAMILY: Family = Family { name: "qwen3next", spec: |keys| hybrid(keys, true, &experts(keys)?) };
