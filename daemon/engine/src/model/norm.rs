//! Norms of the hidden states of a step.
use kernels::Compute;
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
