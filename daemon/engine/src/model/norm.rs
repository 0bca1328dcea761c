//! Norms of the hidden states of a step.
use std::ops::Range;

use kernels::{Compute, Kernels};
use models::{ModelSpec, NormKind, limits::HEAD_LENGTH_MAX};

/// Norm of each token's hidden state `[token, weight]`; a copy if there is no weight.
pub(super) fn norm(compute: &Compute, spec: &ModelSpec, hidden: &[f32], weight: &[f32], out: &mut Vec<f32>) {
    out.resize(hidden.len(), 0.0);
    if weight.is_empty() {
        return out.copy_from_slice(hidden);
    }
    let kernel = match spec.norm {
        NormKind::Rms => compute.kernels.rms_norm,
        NormKind::Layer => compute.kernels.layer_norm,
    };
    compute.pool.chunks(out, weight.len(), |token, out| {
        kernel(&hidden[token * weight.len()..][..weight.len()], weight, spec.norm_epsilon, out);
    });
}

/// Norms of each token, not with the kernel table's norm: the hidden state has the same bits on ranks with other
/// kernels, and they choose the same experts (see `route`).
pub(super) fn same_norm(compute: &Compute, hidden: &[f32], weight: &[f32], epsilon: f32, out: &mut Vec<f32>) {
    out.resize(hidden.len(), 0.0);
    compute.pool.chunks(out, weight.len(), |token, out| {
        (Kernels::SCALAR.rms_norm)(&hidden[token * weight.len()..][..weight.len()], weight, epsilon, out);
    });
}

/// Norms a head in place.
pub(super) fn norm_head(compute: &Compute, weight: &[f32], epsilon: f32, head: &mut [f32]) {
    let before = head_copy(head);
    (compute.kernels.rms_norm)(&before[..head.len()], weight, epsilon, head);
}

/// Copies a head to the stack, because the norm's input and output may not overlap.
fn head_copy(head: &[f32]) -> [f32; HEAD_LENGTH_MAX as usize] {
    let mut copy = [0.0; HEAD_LENGTH_MAX as usize];
    copy[..head.len()].copy_from_slice(head);
    copy
}

/// Norm of all heads of each token together `[token, weight]`, of which the columns in `kept` remain.
pub(super) fn norm_of_heads(
    compute: &Compute,
    epsilon: f32,
    weight: &[f32],
    kept: Range<usize>,
    heads: &mut Vec<f32>,
    scratch: &mut Vec<f32>,
) {
    std::mem::swap(heads, scratch);
    heads.resize(scratch.len(), 0.0);
    compute.pool.chunks(heads, weight.len(), |token, out| {
        (compute.kernels.rms_norm)(&scratch[token * weight.len()..][..weight.len()], weight, epsilon, out);
    });
    let tokens = heads.len() / weight.len();
    (0..tokens).for_each(|token| {
        let from = token * weight.len();
        heads.copy_within(from + kept.start..from + kept.end, token * kept.len());
    });
    heads.truncate(tokens * kept.len());
}
