//! Multi-head latent attention (DeepSeek-V2, 2024) of this rank's heads. The cache holds the latent of each position and
//! one rotated key; the matrices of the heads' keys and values are multiplied with queries and results instead, so that
//! all heads read one KV head. Every rank caches the whole latent.
use common::limits::KV_BLOCK_LENGTH;
use kernels::{Compute, RowsOf, matmul, matmuls, separate_products};
use models::LatentSpec;

use crate::model::{
    attention::{Heads, Queries, attend},
    batch::{Batch, Routing, Scratch},
    kv_cache::{KvCache, Place},
    matrix::{Matrix, wanted_by},
    rope::Rope,
};

/// The weights of this rank's heads.
#[derive(Debug)]
pub struct LatentWeights {
    /// `[columns, embedding_length]` before the queries, and `[columns]` of the norm behind it, if the model has them.
    pub query_inner: Option<(Matrix, Vec<f32>)>,
    /// `[heads * query_length, columns]`, or of the hidden state.
    pub query: Matrix,
    /// `[latent_length + rotated_length, embedding_length]`
    pub latent: Matrix,
    /// `[latent_length]` of the norm of the latent.
    pub latent_norm: Vec<f32>,
    /// `[latent_length, plain_length]` for each head: from its query to the factors of latents.
    pub latent_query: Matrix,
    /// `[value_length, latent_length]` for each head: from what it read to its result.
    pub latent_value: Matrix,
}

/// The attention of a layer on this rank.
pub(in crate::model) struct OwnLatent<'a> {
    pub compute: &'a Compute,
    pub spec: &'a LatentSpec,
    pub weights: &'a LatentWeights,
    /// Added under the root in norms.
    pub epsilon: f32,
    pub heads: &'a Heads,
    pub rope: &'a Rope,
    /// Index of the layer in the cache.
    pub layer: usize,
}

impl OwnLatent<'_> {
    /// `normed -> attended`, and the latents into the cache.
    pub(in crate::model) fn mix(&self, batch: Batch<'_>, cache: &mut KvCache, scratch: &mut Scratch) {
        let (tokens, length) = (batch.tokens.len(), self.spec.latent_length);
        self.project(tokens, scratch);
        self.turn(tokens, scratch);
        self.store(batch, cache, scratch);
        self.absorb(tokens, scratch);
        let Scratch { query, attended, together, .. } = scratch;
        attended.resize(tokens * self.weights.latent_query.count * length, 0.0);
        let (layer, queries) = (self.layer, &query[..]);
        let queries =
            Queries { layer, batch, queries, window: None, ahead: 0, text_lengths: &[], sinks: &[], score_cap: None };
        attend(self.compute, cache, self.heads, queries, together, attended);
        self.results(tokens, scratch);
    }

    /// `normed -> query, key`: the heads' queries, and the latent with the key behind it.
    fn project(&self, tokens: usize, scratch: &mut Scratch) {
        let LatentWeights { query_inner, query: queries, latent, .. } = self.weights;
        let Scratch { normed, activations, query, key, gate, up, .. } = scratch;
        let compute = self.compute;
        let (first, norm) = query_inner.as_ref().map_or((queries, &[][..]), |(inner, norm)| (inner, &norm[..]));
        let matrices = [first, latent];
        activations.load(compute, normed, normed.len() / tokens, wanted_by(&matrices));
        gate.resize(tokens * first.rows, 0.0);
        key.resize(tokens * latent.rows, 0.0);
        matmuls(compute, matrices.map(Matrix::view), activations, [&mut *gate, &mut *key]);
        first.scale(gate);
        latent.scale(key);
        if norm.is_empty() {
            return std::mem::swap(gate, query);
        }
        up.resize(gate.len(), 0.0);
        for (inner, out) in gate.chunks_exact(norm.len()).zip(up.chunks_exact_mut(norm.len())) {
            (compute.kernels.rms_norm)(inner, norm, self.epsilon, out);
        }
        query.resize(tokens * queries.rows, 0.0);
        activations.load(compute, up, norm.len(), queries.wanted());
        matmul(compute, queries.view(), activations, query);
        queries.scale(query);
    }

    /// The norm of the latents, also into `value`; rotation of keys and queries, and the scale of the latter.
    fn turn(&self, tokens: usize, scratch: &mut Scratch) {
        let LatentSpec { plain_length, latent_length, scale, .. } = *self.spec;
        let Scratch { query, key, value, .. } = scratch;
        value.resize(tokens * latent_length, 0.0);
        let keys = key.chunks_exact_mut(self.weights.latent.rows).zip(value.chunks_exact_mut(latent_length));
        for (token, (key, value)) in keys.enumerate() {
            let (latent, rotated) = key.split_at_mut(latent_length);
            (self.compute.kernels.rms_norm)(latent, &self.weights.latent_norm, self.epsilon, value);
            latent.copy_from_slice(value);
            self.rope.rotate(token, rotated);
        }
        self.compute.pool.chunks(query, self.weights.query.rows, |token, heads| {
            heads.iter_mut().for_each(|value| *value *= scale);
            for head in heads.chunks_exact_mut(self.spec.query_length()) {
                self.rope.rotate(token, &mut head[plain_length..]);
            }
        });
    }

    /// Stores the step's latents in the cache.
    fn store(&self, batch: Batch<'_>, cache: &mut KvCache, scratch: &Scratch) {
        let tables = batch.tables.of(cache.layer(self.layer));
        let rows = scratch.key.chunks_exact(self.weights.latent.rows);
        let rows = rows.zip(scratch.value.chunks_exact(self.spec.latent_length));
        for (entry, (key, value)) in batch.tokens.iter().zip(rows) {
            let position = entry.position as usize;
            let block = tables[entry.slot.index()][position / KV_BLOCK_LENGTH];
            let place = Place { layer: self.layer, block, head: 0 };
            cache.store(self.compute.kernels, place, position % KV_BLOCK_LENGTH, key, value);
        }
    }

    /// `query`: the parts that are not rotated become as long as a latent.
    fn absorb(&self, tokens: usize, scratch: &mut Scratch) {
        let LatentSpec { plain_length, latent_length, .. } = *self.spec;
        let (heads, length) = (self.weights.latent_query.count, self.spec.query_length());
        let Scratch { query, gate, up, spread, routing, .. } = scratch;
        routing.groups.load_all(tokens, heads);
        self.by_head(query, heads, length, plain_length, gate);
        self.products(&self.weights.latent_query, routing, gate, up);
        let row = latent_length + length - plain_length;
        spread.resize(tokens * heads * row, 0.0);
        let (query_rows, up) = (&query[..], &up[..]);
        self.compute.pool.chunks(spread, heads * row, |token, out| {
            for (number, out) in out.chunks_exact_mut(row).enumerate() {
                let (absorbed, rotated) = out.split_at_mut(latent_length);
                absorbed.copy_from_slice(&up[(number * tokens + token) * latent_length..][..latent_length]);
                rotated.copy_from_slice(&query_rows[(token * heads + number) * length..][plain_length..length]);
            }
        });
        std::mem::swap(query, spread);
    }

    /// `attended`: what the heads read of latents becomes their results.
    fn results(&self, tokens: usize, scratch: &mut Scratch) {
        let (heads, length) = (self.weights.latent_value.count, self.spec.latent_length);
        let Scratch { attended, gate, up, routing, .. } = scratch;
        self.by_head(attended, heads, length, length, gate);
        self.products(&self.weights.latent_value, routing, gate, up);
        // The other way round.
        self.by_head(up, tokens, self.spec.value_length, self.spec.value_length, attended);
    }

    /// Products of rows `[head, token, columns]` with each head's matrix, `[head, token, rows of a matrix]`.
    fn products(&self, matrices: &Matrix, routing: &mut Routing, rows: &[f32], out: &mut Vec<f32>) {
        let Routing { groups, activations, .. } = routing;
        activations.load(self.compute, groups, rows, matrices.columns, RowsOf::Groups, matrices.wanted());
        out.resize(groups.rows() * matrices.rows, 0.0);
        separate_products(self.compute, matrices.stack(), groups, activations, out);
    }

    /// The first `kept` of each `length` elements of `rows` `[token, head, length]` as `[head, token, kept]`.
    fn by_head(&self, rows: &[f32], heads: usize, length: usize, kept: usize, out: &mut Vec<f32>) {
        let tokens = rows.len() / length / heads;
        out.resize(rows.len() / length * kept, 0.0);
        // One token is copied faster than threads wake up.
        let at_once = if tokens == 1 { heads } else { 1 };
        self.compute.pool.chunks(out, at_once * tokens * kept, |chunk, out| {
            for (row, out) in out.chunks_exact_mut(kept).enumerate() {
                let (head, token) = (chunk * at_once + row / tokens, row % tokens);
                out.copy_from_slice(&rows[(token * heads + head) * length..][..kept]);
            }
        });
    }
}
