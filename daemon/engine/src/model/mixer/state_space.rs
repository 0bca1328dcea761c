//! A state space (Mamba-2, Dao and Gu 2024) on this rank's heads. A token's values, keys and queries pass through a short
//! convolution; then the state matrix of each head decays, takes up the product of value and key, and is read with the
//! query. Token by token, so that a prompt's result does not depend on how it is cut.
use kernels::{Compute, ScanRun, matmuls};
use models::StateSpaceSpec;
use topology::LayerCut;

use super::{
    convolution::convolve,
    runs, softplus,
    state::{Followed, Passed, StateCache},
    through_states,
};
use crate::model::{
    batch::{BatchToken, Scratch},
    matrix::{Matrix, wanted_by},
};

/// The weights of this rank's heads and of the keys and queries of their groups.
#[derive(Debug)]
pub struct StateSpaceWeights {
    /// `[values, embedding_length]`
    pub gate: Matrix,
    /// `[values, embedding_length]`
    pub value: Matrix,
    /// `[2 * groups * key_length, embedding_length]`: keys, then queries.
    pub key: Matrix,
    /// `[heads, embedding_length]`
    pub rate: Matrix,
    /// Of the values, and of keys and queries.
    pub filters: [ChannelFilters; 2],
    /// `[heads]`
    pub rate_bias: Vec<f32>,
    /// `[heads]`, negative.
    pub decay_factor: Vec<f32>,
    /// `[heads]`
    pub skip: Vec<f32>,
    /// `[values]` of the norm of each group.
    pub norm: Vec<f32>,
    /// Added under the root in norms.
    pub epsilon: f32,
}

/// The filters of some channels.
#[derive(Debug)]
pub struct ChannelFilters {
    /// `[taps, channels]`
    pub filters: Vec<f32>,
    /// `[channels]`; empty if the model has none.
    pub bias: Vec<f32>,
    /// `[channels]` ones.
    pub ones: Vec<f32>,
}

impl ChannelFilters {
    pub(in crate::model) fn new(filters: Vec<f32>, bias: Vec<f32>, channels: usize) -> Self {
        Self { filters, bias, ones: vec![1.0; channels] }
    }

    /// The convolution of a run's channels in place, its bias and its activation. `row` is scratch.
    fn apply(&self, compute: &Compute, tail: &mut [f32], rows: &mut [f32], row: &mut Vec<f32>) {
        let channels = self.ones.len();
        row.resize(channels, 0.0);
        for own in rows.chunks_exact_mut(channels) {
            convolve(&self.filters, tail, own, row);
            if !self.bias.is_empty() {
                (compute.kernels.add)(row, &self.bias);
            }
            (compute.kernels.silu_multiply)(row, &self.ones);
            own.copy_from_slice(row);
        }
    }
}

/// The state space of a layer on this rank.
pub(in crate::model) struct OwnSpace<'a> {
    pub compute: &'a Compute,
    pub spec: &'a StateSpaceSpec,
    pub weights: &'a StateSpaceWeights,
    pub cut: &'a LayerCut,
    /// Numbered in the stage.
    pub layer: usize,
}

impl OwnSpace<'_> {
    /// `normed -> attended`: results of the states, gated and normed `[token, values]`. If the norm spans several
    /// ranks, it is only multiplied with the norm's weights, and `squares` are the sums of squares before that, of each
    /// token.
    pub(in crate::model) fn mix(&self, tokens: &[BatchToken], states: &mut StateCache, scratch: &mut Scratch) {
        let Self { spec, weights, layer, .. } = self;
        self.project(tokens.len(), scratch);
        let Scratch { query, gate, value, up, attended, spread, read, .. } = scratch;
        let heads = weights.rate.rows;
        // Decay and rate of each head.
        value.clear();
        for rates in up.chunks_exact(heads) {
            value.extend((0..heads).flat_map(|head| {
                let rate = softplus(rates[head] + weights.rate_bias[head]);
                [(rate * weights.decay_factor[head]).exp(), rate]
            }));
        }
        let (values, keys) = (weights.value.rows, weights.key.rows);
        attended.resize(tokens.len() * values, 0.0);
        for index in 0..states.followed() {
            let Followed { state, log, count, accepted } = states.follow(*layer, index);
            let (own_values, rest) = log.split_at_mut(count * values);
            let (own_keys, gates) = rest.split_at_mut(count * keys);
            let (own_values, own_keys) = (&mut own_values[..accepted * values], &mut own_keys[..accepted * keys]);
            self.pass(state, own_values, own_keys, gates, spread, read);
        }
        for (begin, run) in runs(tokens) {
            let count = run.len();
            let own_values = &mut query[begin * values..][..count * values];
            let own_keys = &mut gate[begin * keys..][..count * keys];
            let gates = &value[begin * heads * 2..][..count * heads * 2];
            let Passed { state, log } = states.before(*layer, run);
            if !log.is_empty() {
                let (logged_values, rest) = log.split_at_mut(own_values.len());
                let (logged_keys, logged_gates) = rest.split_at_mut(own_keys.len());
                logged_values.copy_from_slice(own_values);
                logged_keys.copy_from_slice(own_keys);
                logged_gates.copy_from_slice(gates);
            }
            self.pass(state, own_values, own_keys, gates, spread, read);
            let length = spec.head_length;
            for (head, out) in read.chunks_exact(count * length).enumerate() {
                for (token, out) in out.chunks_exact(length).enumerate() {
                    attended[(begin + token) * values + head * length..][..length].copy_from_slice(out);
                }
            }
        }
        self.norm(scratch);
    }

    /// Passes tokens of a sequence through its state: `values` and `keys` `[token, channels]` pass through the convolution,
    /// `gates` are decays and rates, `read` becomes the results `[head, token, head_length]`. `row` is scratch.
    fn pass(
        &self,
        state: &mut [f32],
        values: &mut [f32],
        keys: &mut [f32],
        gates: &[f32],
        row: &mut Vec<f32>,
        read: &mut Vec<f32>,
    ) {
        let Self { compute, spec, weights, cut, .. } = self;
        let (tail, matrices) = state.split_at_mut(spec.tail_length(cut.heads.len()));
        let (value_tail, key_tail) = tail.split_at_mut(weights.value.rows * (spec.taps - 1));
        let [of_values, of_keys] = &weights.filters;
        of_values.apply(compute, value_tail, values, row);
        of_keys.apply(compute, key_tail, keys, row);
        read.resize(values.len(), 0.0);
        self.scan(values, keys, gates, matrices, read);
    }

    /// `normed -> query` (values), `key` (gates), `gate` (keys and queries), `up` (rates).
    fn project(&self, tokens: usize, scratch: &mut Scratch) {
        let StateSpaceWeights { gate: gates, value, key: keys, rate, .. } = self.weights;
        let Scratch { normed, activations, query, key, gate, up, .. } = scratch;
        let matrices = [value, gates, keys, rate];
        for (matrix, out) in matrices.into_iter().zip([&mut *query, key, gate, up]) {
            out.resize(tokens * matrix.rows, 0.0);
        }
        activations.load(self.compute, normed, normed.len() / tokens, wanted_by(&matrices));
        matmuls(self.compute, matrices.map(Matrix::view), activations, [&mut *query, &mut *key, &mut *gate, &mut *up]);
        for (matrix, out) in matrices.into_iter().zip([query, key, gate, up]) {
            matrix.scale(out);
        }
    }

    /// Passes the tokens of a sequence through the state of each head; `out` is `[head, token, head_length]`.
    fn scan(&self, values: &[f32], keys: &[f32], gates: &[f32], states: &mut [f32], out: &mut [f32]) {
        let Self { compute, spec, weights, cut, .. } = self;
        let (heads, groups) = (weights.rate.rows, spec.groups_of(cut.heads.len()));
        let (length, key_length) = (spec.head_length, spec.key_length);
        through_states(&compute.pool, states, out, heads, |head, state, out| {
            let group = head / (heads / groups);
            let run = ScanRun {
                values,
                value_place: [weights.value.rows, head * length],
                length,
                keys,
                key_place: [weights.key.rows, group * key_length, (groups + group) * key_length],
                key_length,
                gates,
                heads,
                head,
                skip: weights.skip[head],
            };
            (compute.kernels.scan)(state, run, out);
        });
    }

    /// The gates and the norm of the results.
    fn norm(&self, scratch: &mut Scratch) {
        let Self { compute, spec, weights, cut, .. } = self;
        let Scratch { key, attended, squares, .. } = scratch;
        let (values, groups) = (weights.value.rows, spec.groups_of(cut.heads.len()));
        (compute.kernels.silu_multiply)(key, attended);
        if spec.spans_ranks() && cut.ranks > 1 {
            squares.clear();
            for (own, out) in key.chunks_exact(values).zip(attended.chunks_exact_mut(values)) {
                squares.push(sum_of_squares(own));
                out.iter_mut().zip(own).zip(&weights.norm).for_each(|((out, own), weight)| *out = own * weight);
            }
            return;
        }
        let length = values / groups;
        for (part, (own, out)) in key.chunks_exact(length).zip(attended.chunks_exact_mut(length)).enumerate() {
            let weight = &weights.norm[part % groups * length..][..length];
            (compute.kernels.rms_norm)(own, weight, weights.epsilon, out);
        }
    }
}

/// In several sums that do not wait for each other.
fn sum_of_squares(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum += value * value);
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>()
}
