//! The language model of Qwen3-VL with experts.
use super::{Family, common::experts, qwen3::with_head_norms, qwen3vl::in_sections};

pub(super) const FAMILY: Family =
    Family { name: "qwen3vlmoe", spec: |keys| in_sections(keys, with_head_norms(keys, experts)?) };
