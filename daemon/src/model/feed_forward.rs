//! The gated feed-forward network (Shazeer 2020, SwiGLU) on this rank's columns.
use super::{forward::Scratch, weights::Layer};
use crate::kernels::{Compute, matmul};

/// `scratch.normed -> scratch.partial`: this rank's columns of the feed-forward network, both `[token, embedding_length]`.
pub fn feed_forward(compute: &Compute, layer: &Layer, tokens: usize, scratch: &mut Scratch) {
    let columns = layer.gate.rows;
    let Scratch { normed, activations, gate, up, partial, .. } = scratch;
    partial.fill(0.0);
    if columns == 0 {
        return;
    }
    let embedding_length = normed.len() / tokens;
    let quantise = layer.gate.format.is_quantised() || layer.up.format.is_quantised();
    activations.load(compute.kernels, normed, embedding_length, quantise);
    gate.resize(tokens * columns, 0.0);
    up.resize(tokens * columns, 0.0);
    matmul(compute, layer.gate.view(), activations, gate);
    matmul(compute, layer.up.view(), activations, up);
    (compute.kernels.silu_multiply)(gate, up);
    activations.load(compute.kernels, gate, columns, layer.down.format.is_quantised());
    matmul(compute, layer.down.view(), activations, partial);
}
