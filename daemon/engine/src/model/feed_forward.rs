//! The gated feed-forward network (Shazeer 2020) on this rank's columns.
use kernels::{Compute, Kernels, matmul, matmuls};
use models::Activation;

use super::{
    batch::Scratch,
    weights::{Layer, wanted_by},
};

/// `scratch.normed -> scratch.partial`: this rank's columns of the feed-forward network. Both are
/// `[token, embedding_length]`.
pub fn feed_forward(compute: &Compute, layer: &Layer, tokens: usize, scratch: &mut Scratch) {
    let columns = layer.gate.rows;
    let Scratch { normed, activations, gate, up, partial, .. } = scratch;
    partial.fill(0.0);
    if columns == 0 {
        return;
    }
    let embedding_length = normed.len() / tokens;
    activations.load(compute, normed, embedding_length, wanted_by(&[&layer.gate, &layer.up]));
    gate.resize(tokens * columns, 0.0);
    up.resize(tokens * columns, 0.0);
    matmuls(compute, [layer.gate.view(), layer.up.view()], activations, [gate, up]);
    let combine = combination(compute.kernels, layer.spec.feed_forward.activation());
    compute.pool.chunks(gate, columns, |token, gate| {
        combine(gate, &up[token * columns..][..columns]);
    });
    activations.load(compute, gate, columns, layer.down.wanted());
    matmul(compute, layer.down.view(), activations, partial);
}

/// The kernel that combines the products of gate and up.
pub(super) fn combination(kernels: &Kernels, activation: Activation) -> fn(&mut [f32], &[f32]) {
    match activation {
        Activation::Silu => kernels.silu_multiply,
        Activation::Gelu => kernels.gelu_multiply,
        Activation::ClampedSwiglu => kernels.clamped_swiglu,
    }
}
