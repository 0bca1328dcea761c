//! The gated feed-forward network (Shazeer 2020, SwiGLU) on this rank's columns.
use kernels::{Compute, matmul, matmuls};

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
    compute.pool.chunks(gate, columns, |token, gate| {
        (compute.kernels.silu_multiply)(gate, &up[token * columns..][..columns]);
    });
    activations.load(compute, gate, columns, layer.down.wanted());
    matmul(compute, layer.down.view(), activations, partial);
}
