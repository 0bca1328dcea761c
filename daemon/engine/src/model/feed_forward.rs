//! The feed-forward network, with a gate (Shazeer 2020) or without, on this rank's columns.
use kernels::{Compute, Kernels, matmul, matmuls};
use models::Activation;

use super::{batch::Scratch, matrix::wanted_by, weights::Layer};

/// `scratch.normed -> scratch.partial`: this rank's columns of the feed-forward network. Both are
/// `[token, embedding_length]`.
pub fn feed_forward(compute: &Compute, layer: &Layer, tokens: usize, scratch: &mut Scratch) {
    let columns = layer.up.rows;
    let Scratch { normed, activations, gate, up, partial, .. } = scratch;
    partial.clear();
    partial.resize(normed.len(), 0.0);
    if columns == 0 {
        return;
    }
    let embedding_length = normed.len() / tokens;
    gate.resize(tokens * columns, 0.0);
    up.resize(tokens * columns, 0.0);
    if layer.gate.rows > 0 {
        activations.load(compute, normed, embedding_length, wanted_by(&[&layer.gate, &layer.up]));
        matmuls(compute, [layer.gate.view(), layer.up.view()], activations, [gate, up]);
        layer.gate.scale(gate);
    } else {
        activations.load(compute, normed, embedding_length, layer.up.wanted());
        matmul(compute, layer.up.view(), activations, up);
    }
    layer.up.scale(up);
    let combine = combination(compute.kernels, layer.spec.feed_forward.activation());
    compute.pool.chunks(gate, columns, |token, gate| {
        combine(gate, &up[token * columns..][..columns]);
    });
    activations.load(compute, gate, columns, layer.down.wanted());
    matmul(compute, layer.down.view(), activations, partial);
    layer.down.scale(partial);
}

/// The kernel that combines the products of gate and up, or overwrites the gate in a network without one.
pub(super) fn combination(kernels: &Kernels, activation: Activation) -> fn(&mut [f32], &[f32]) {
    match activation {
        Activation::Silu => kernels.silu_multiply,
        Activation::Gelu => kernels.gelu_multiply,
        Activation::SquaredRelu => kernels.squared_relu,
        Activation::ClampedSwiglu => kernels.clamped_swiglu,
    }
}
