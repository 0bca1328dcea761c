//! Further keys of known models with layers of several kinds.

/// The value of a further key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FurtherValue {
    /// A number.
    Number(usize),
    /// A number that is no integer.
    Float(f32),
    /// A list of numbers.
    List(&'static [usize]),
}

/// Keys and their values.
pub type FurtherKeys = &'static [(&'static str, FurtherValue)];

use FurtherValue::{Float, List, Number};

/// Layers of LFM2-1.2B with attention have KV heads.
pub(crate) const LFM2: FurtherKeys = &[
    ("attention.head_count_kv", List(&[0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0])),
    ("shortconv.l_cache", Number(3)),
    ("rope.freq_base", Float(1e6)),
];

/// Keys of a Qwen3.5 with so many value heads of a delta net.
const fn qwen35(value_heads: usize) -> [(&'static str, FurtherValue); 9] {
    [
        ("ssm.group_count", Number(16)),
        ("ssm.time_step_rank", Number(value_heads)),
        ("ssm.state_size", Number(128)),
        ("ssm.inner_size", Number(128 * value_heads)),
        ("ssm.conv_kernel", Number(4)),
        ("rope.dimension_count", Number(64)),
        ("rope.dimension_sections", List(&[11, 11, 10, 0])),
        ("rope.freq_base", Float(1e7)),
        // In files with experts alone.
        ("expert_shared_feed_forward_length", Number(512)),
    ]
}

pub(crate) const QWEN35_16: FurtherKeys = &qwen35(16);
pub(crate) const QWEN35_32: FurtherKeys = &qwen35(32);
pub(crate) const QWEN35_48: FurtherKeys = &qwen35(48);

/// KV heads of 40 layers of which the 6th, 16th, 26th and 36th attend.
const fn granite_heads(heads_kv: usize) -> [usize; 40] {
    let mut heads = [0; 40];
    [heads[5], heads[15], heads[25], heads[35]] = [heads_kv; 4];
    heads
}

/// Keys of a Granite 4.0 H with so many heads of 64 elements in state spaces, and its factors of logits and scores.
const fn granite_h(
    heads: usize,
    heads_kv: &'static [usize; 40],
    scales: [f32; 2],
) -> [(&'static str, FurtherValue); 11] {
    let [logits, scores] = scales;
    [
        ("attention.head_count_kv", List(heads_kv)),
        ("embedding_scale", Float(12.0)),
        ("residual_scale", Float(0.22)),
        ("logit_scale", Float(logits)),
        ("attention.scale", Float(scores)),
        ("ssm.group_count", Number(1)),
        ("ssm.time_step_rank", Number(heads)),
        ("ssm.state_size", Number(128)),
        ("ssm.inner_size", Number(64 * heads)),
        ("ssm.conv_kernel", Number(4)),
        // In files with experts alone.
        ("expert_shared_feed_forward_length", Number(1024)),
    ]
}

pub(crate) const GRANITE_H_MICRO: FurtherKeys = &granite_h(64, &granite_heads(8), [8.0, 1.0 / 64.0]);
pub(crate) const GRANITE_H_TINY: FurtherKeys = &granite_h(48, &granite_heads(4), [6.0, 1.0 / 128.0]);

/// A number for each layer of a pattern: `value` for layers of this kind, otherwise 0.
const fn of_kind<const LAYERS: usize>(pattern: &[u8; LAYERS], kind: u8, value: usize) -> [usize; LAYERS] {
    let mut values = [0; LAYERS];
    let mut layer = 0;
    while layer < LAYERS {
        if pattern[layer] == kind {
            values[layer] = value;
        }
        layer += 1;
    }
    values
}

/// State spaces, networks and attention.
const NANO_2: &[u8; 56] = b"M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
/// State spaces, experts and attention.
const NANO_3: &[u8; 52] = b"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

/// Keys of Nemotron Nano 2 9B.
pub(crate) const NEMOTRON_NANO_2: FurtherKeys = &[
    ("attention.head_count_kv", List(&of_kind(NANO_2, b'*', 8))),
    ("feed_forward_length", List(&of_kind(NANO_2, b'-', 15_680))),
    ("ssm.group_count", Number(8)),
    ("ssm.time_step_rank", Number(128)),
    ("ssm.state_size", Number(128)),
    ("ssm.inner_size", Number(128 * 80)),
    ("ssm.conv_kernel", Number(4)),
];

/// Keys of Nemotron 3 Nano 30B-A3B.
pub(crate) const NEMOTRON_NANO_3: FurtherKeys = &[
    ("attention.head_count_kv", List(&of_kind(NANO_3, b'*', 2))),
    ("feed_forward_length", List(&of_kind(NANO_3, b'E', 1856))),
    ("expert_shared_feed_forward_length", Number(3712)),
    ("expert_weights_scale", Float(2.5)),
    ("ssm.group_count", Number(8)),
    ("ssm.time_step_rank", Number(64)),
    ("ssm.state_size", Number(128)),
    ("ssm.inner_size", Number(64 * 64)),
    ("ssm.conv_kernel", Number(4)),
];

/// Latent attention: elements of a head with rotation, without, and of its values, with a latent of 512 elements; inner
/// columns of queries; columns of the leading dense layer; shared experts.
const fn latent(
    heads: [usize; 3],
    query_columns: usize,
    dense: usize,
    shared: usize,
) -> [(&'static str, FurtherValue); 12] {
    let [rotated, plain, value] = heads;
    [
        ("attention.key_length", Number(512 + rotated)),
        ("attention.value_length", Number(512)),
        ("attention.kv_lora_rank", Number(512)),
        ("attention.q_lora_rank", Number(query_columns)),
        ("attention.key_length_mla", Number(rotated + plain)),
        ("attention.value_length_mla", Number(value)),
        ("rope.dimension_count", Number(rotated)),
        ("feed_forward_length", Number(dense)),
        ("leading_dense_block_count", Number(1)),
        ("expert_shared_count", Number(shared)),
        ("attention.head_count_kv", Number(1)),
        ("rope.freq_base", Float(if query_columns > 0 { 1e6 } else { 1e4 })),
    ]
}

pub(crate) const GLM_FLASH: FurtherKeys = &latent([64, 192, 256], 768, 10_240, 1);
pub(crate) const DEEPSEEK_LITE: FurtherKeys = &latent([64, 128, 128], 0, 10_944, 2);
