//! Grouped-query attention of this rank's heads: queries, keys and values with biases, norms and rotation, stored in the
//! KV cache and attended to.
use common::limits::KV_BLOCK_LENGTH;
use kernels::{Compute, matmul, matmuls};
use models::{AttentionSpec, HeadNorms, Temperature};
use topology::LayerCut;

use crate::model::{
    attention::{Heads, Queries, attend},
    batch::{Batch, Scratch},
    kv_cache::{KvCache, Place},
    matrix::{Matrix, wanted_by},
    norm::{norm_head, norm_of_heads},
    rope::Rope,
};

/// The weights of this rank's heads. Norms and biases are whole if every rank needs them.
#[derive(Debug)]
pub struct AttentionWeights {
    /// Query rows of this rank's heads `[heads * head_length, embedding_length]`, each head followed by its gate if there
    /// are any; of all heads, as the keys, if one norm spans them.
    pub query: Matrix,
    /// Key rows of this rank's KV heads `[kv_heads * head_length, embedding_length]`; `None` if it reads the keys of an
    /// earlier layer.
    pub key: Option<Matrix>,
    /// Value rows of this rank's KV heads, as many as key rows; `None` if the values are the keys.
    pub value: Option<Matrix>,
    /// Biases of query, key and value; empty if the model has none.
    pub biases: [Vec<f32>; 3],
    /// `[head_length]` norms of each head of query and key, or `[heads * head_length]` of all of them together; empty if
    /// the model has none.
    pub head_norms: [Vec<f32>; 2],
    /// `[head_length]` ones, for the norm of each head of the values; empty if the model has none.
    pub value_norm: Vec<f32>,
    /// `[heads]` scores without a value; empty if the model has none.
    pub sinks: Vec<f32>,
}

/// The attention of a layer on this rank.
pub(in crate::model) struct OwnHeads<'a> {
    pub compute: &'a Compute,
    pub spec: &'a AttentionSpec,
    pub weights: &'a AttentionWeights,
    /// Added under the root in norms.
    pub epsilon: f32,
    pub cut: &'a LayerCut,
    pub heads: &'a Heads,
    pub ropes: &'a [Rope],
    /// Index of the layer in the cache.
    pub layer: usize,
}

impl OwnHeads<'_> {
    /// `normed -> attended`, and keys and values into the cache.
    pub(in crate::model) fn mix(&self, batch: Batch<'_>, cache: &mut KvCache, scratch: &mut Scratch) {
        self.project(batch, scratch, project_all);
        self.store(batch, cache, scratch);
        let Scratch { query, gate, attended, together, text_lengths, .. } = scratch;
        attended.resize(query.len(), 0.0);
        let AttentionSpec { window, ahead, score_cap, .. } = *self.spec;
        let (layer, queries, sinks, text_lengths) =
            (self.layer, &query[..], &self.weights.sinks[..], &text_lengths[..]);
        let queries = Queries { layer, batch, queries, window, ahead, text_lengths, sinks, score_cap };
        attend(self.compute, cache, self.heads, queries, together, attended);
        if self.spec.has_gate {
            let columns = attended.len() / batch.tokens.len();
            self.compute.pool.chunks(gate, columns, |token, gate| {
                (self.compute.kernels.sigmoid_multiply)(gate, &attended[token * columns..][..columns]);
            });
            std::mem::swap(gate, attended);
        }
    }

    /// Keys and values of `normed` into the cache, and nothing else.
    pub(in crate::model) fn keep(&self, batch: Batch<'_>, cache: &mut KvCache, scratch: &mut Scratch) {
        if !self.cut.heads_kv.is_empty() {
            self.project(batch, scratch, project_keys);
            self.store(batch, cache, scratch);
        }
    }

    /// Query, key and value, as far as `products` computes them, with bias, head norm and rotation.
    fn project(
        &self,
        batch: Batch<'_>,
        scratch: &mut Scratch,
        products: fn(&Compute, &AttentionWeights, usize, &mut Scratch),
    ) {
        let AttentionSpec { head_length, scale, head_norms, temperature, .. } = *self.spec;
        products(self.compute, self.weights, batch.tokens.len(), scratch);
        let Scratch { query, key, value, gate, attended, .. } = scratch;
        for (out, bias) in [&mut *query, key, value].into_iter().zip(&self.weights.biases) {
            if !bias.is_empty() {
                out.chunks_exact_mut(bias.len()).for_each(|row| (self.compute.kernels.add)(row, bias));
            }
        }
        if self.spec.has_gate {
            take_gates(query, gate, head_length);
        }
        if !self.weights.value_norm.is_empty() {
            let heads = value.chunks_exact_mut(head_length);
            heads.for_each(|head| norm_head(self.compute, &self.weights.value_norm, self.epsilon, head));
        }
        if head_norms == HeadNorms::Whole {
            let own = [(&mut *query, &self.cut.heads), (&mut *key, &self.cut.heads_kv)];
            for ((rows, heads), weight) in own.into_iter().zip(&self.weights.head_norms) {
                let kept = heads.start * head_length..heads.end * head_length;
                norm_of_heads(self.compute, self.epsilon, weight, kept, rows, attended);
            }
        }
        for (rows, head_norm, scale, temperature) in
            [(query, &self.weights.head_norms[0], scale, temperature), (key, &self.weights.head_norms[1], 1.0, None)]
        {
            let per_token = rows.len() / batch.tokens.len();
            for (token, row) in rows.chunks_exact_mut(per_token.max(1)).enumerate() {
                let scale = scale * temperature.map_or(1.0, |own| growth(own, batch.tokens[token].position));
                for head in row.chunks_exact_mut(head_length) {
                    self.turn(token, head_norm, head);
                    if scale != 1.0 {
                        head.iter_mut().for_each(|value| *value *= scale);
                    }
                }
            }
        }
    }

    /// The norm of a head of a token, and its rotation.
    fn turn(&self, token: usize, weight: &[f32], head: &mut [f32]) {
        if self.spec.head_norms == HeadNorms::BeforeRotation {
            norm_head(self.compute, weight, self.epsilon, head);
        }
        if let Some(rope) = self.spec.rope {
            self.ropes[usize::from(rope)].rotate(token, head);
        }
        if self.spec.head_norms == HeadNorms::AfterRotation {
            norm_head(self.compute, weight, self.epsilon, head);
        }
    }

    /// Stores the step's keys and values in the cache.
    fn store(&self, batch: Batch<'_>, cache: &mut KvCache, scratch: &Scratch) {
        if cache.layer(self.layer).is_shared {
            return;
        }
        let (heads, length) = (self.cut.heads_kv.len(), self.spec.head_length);
        let Scratch { key, value, .. } = scratch;
        let tables = batch.tables.of(cache.layer(self.layer));
        for (token, entry) in batch.tokens.iter().enumerate() {
            let position = entry.position as usize;
            let block = tables[entry.slot.index()][position / KV_BLOCK_LENGTH];
            for head in 0..heads {
                let range = (token * heads + head) * length..(token * heads + head + 1) * length;
                let (place, offset) = (Place { layer: self.layer, block, head }, position % KV_BLOCK_LENGTH);
                cache.store(self.compute.kernels, place, offset, &key[range.clone()], &value[range]);
            }
        }
    }
}

/// `normed -> query, key, value`: the products with the layer's matrices; no keys and values if it reads those of
/// another weights.
fn project_all(compute: &Compute, weights: &AttentionWeights, tokens: usize, scratch: &mut Scratch) {
    let Scratch { normed, activations, query, key, value, .. } = scratch;
    let length = normed.len() / tokens;
    query.resize(tokens * weights.query.rows, 0.0);
    for (matrix, out) in [&weights.key, &weights.value].into_iter().zip([&mut *key, value]) {
        out.resize(tokens * matrix.as_ref().map_or(0, |matrix| matrix.rows), 0.0);
    }
    match (&weights.key, &weights.value) {
        (Some(keys), Some(values)) => {
            let matrices = [&weights.query, keys, values];
            activations.load(compute, normed, length, wanted_by(&matrices));
            matmuls(compute, matrices.map(Matrix::view), activations, [&mut *query, &mut *key, &mut *value]);
            keys.scale(key);
            values.scale(value);
        }
        (Some(keys), None) => {
            let matrices = [&weights.query, keys];
            activations.load(compute, normed, length, wanted_by(&matrices));
            matmuls(compute, matrices.map(Matrix::view), activations, [&mut *query, &mut *key]);
            keys.scale(key);
            value.clone_from(key);
        }
        (None, _) => {
            activations.load(compute, normed, length, weights.query.wanted());
            matmul(compute, weights.query.view(), activations, query);
        }
    }
    weights.query.scale(query);
}

/// `normed -> key, value`, and no queries, in a layer with keys and values of its own.
fn project_keys(compute: &Compute, weights: &AttentionWeights, tokens: usize, scratch: &mut Scratch) {
    let Scratch { normed, activations, query, key, value, .. } = scratch;
    query.clear();
    let (Some(keys), Some(values)) = (&weights.key, &weights.value) else {
        return project_all(compute, weights, tokens, scratch);
    };
    key.resize(tokens * keys.rows, 0.0);
    value.resize(tokens * values.rows, 0.0);
    let matrices = [keys, values];
    activations.load(compute, normed, normed.len() / tokens, wanted_by(&matrices));
    matmuls(compute, matrices.map(Matrix::view), activations, [&mut *key, &mut *value]);
    keys.scale(key);
    values.scale(value);
}

/// Takes the gates out of `query` `[token, head, 2 * length]`.
fn take_gates(query: &mut Vec<f32>, gates: &mut Vec<f32>, length: usize) {
    gates.clear();
    gates.reserve(query.len() / 2);
    query.chunks_exact(2 * length).for_each(|head| gates.extend_from_slice(&head[length..]));
    for head in 0..gates.len() / length {
        query.copy_within(2 * head * length..(2 * head + 1) * length, head * length);
    }
    query.truncate(gates.len());
}

/// Factor of a query at a position.
fn growth(temperature: Temperature, position: u32) -> f32 {
    1.0 + temperature.slope * (1.0 + (position as f32 / temperature.length).floor()).ln()
}
