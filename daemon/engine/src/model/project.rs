//! Queries, keys and values of a step.
use kernels::{Compute, matmul, matmuls};

use super::{
    batch::Scratch,
    matrix::{Matrix, wanted_by},
    weights::Layer,
};

/// `normed -> query, key, value`: the products with the layer's matrices; no keys and values if it reads those of
/// another layer.
pub(super) fn project_all(compute: &Compute, layer: &Layer, tokens: usize, scratch: &mut Scratch) {
    let Scratch { normed, activations, query, key, value, .. } = scratch;
    let length = normed.len() / tokens;
    query.resize(tokens * layer.query.rows, 0.0);
    for (matrix, out) in [&layer.key, &layer.value].into_iter().zip([&mut *key, value]) {
        out.resize(tokens * matrix.as_ref().map_or(0, |matrix| matrix.rows), 0.0);
    }
    match (&layer.key, &layer.value) {
        (Some(keys), Some(values)) => {
            let matrices = [&layer.query, keys, values];
            activations.load(compute, normed, length, wanted_by(&matrices));
            matmuls(compute, matrices.map(Matrix::view), activations, [&mut *query, &mut *key, &mut *value]);
            keys.scale(key);
            values.scale(value);
        }
        (Some(keys), None) => {
            let matrices = [&layer.query, keys];
            activations.load(compute, normed, length, wanted_by(&matrices));
            matmuls(compute, matrices.map(Matrix::view), activations, [&mut *query, &mut *key]);
            keys.scale(key);
            value.clone_from(key);
        }
        (None, _) => {
            activations.load(compute, normed, length, layer.query.wanted());
            matmul(compute, layer.query.view(), activations, query);
        }
    }
    layer.query.scale(query);
}
