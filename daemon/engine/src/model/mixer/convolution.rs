//! A short convolution over positions (LFM2). Each channel has a filter of its own, so that ranks divide the channels.
use kernels::{Compute, matmul};

use super::{
    runs,
    state::{Followed, Passed, StateCache},
};
use crate::model::{
    batch::{BatchToken, Scratch},
    matrix::Matrix,
};

/// The weights of this rank's channels.
#[derive(Debug)]
pub struct ConvolutionWeights {
    /// `[3 * channels, embedding_length]`: `b`, `c` and `x`.
    pub input: Matrix,
    /// `[taps, channels]`
    pub filters: Vec<f32>,
}

/// Filters as a file has them, `[channels, taps]`, in the order of [`convolve`].
pub(in crate::model) fn by_tap(filters: &[f32], taps: usize) -> Vec<f32> {
    (0..taps).flat_map(|tap| filters.iter().copied().skip(tap).step_by(taps)).collect()
}

/// `normed -> attended`: `c * convolution(b * x)` of a step's tokens.
pub(in crate::model) fn mix(
    compute: &Compute,
    weights: &ConvolutionWeights,
    layer: usize,
    tokens: &[BatchToken],
    states: &mut StateCache,
    scratch: &mut Scratch,
) {
    let Scratch { normed, activations, query, key, attended, .. } = scratch;
    let (length, rows) = (normed.len() / tokens.len(), weights.input.rows);
    let channels = rows / 3;
    query.resize(tokens.len() * rows, 0.0);
    activations.load(compute, normed, length, weights.input.wanted());
    matmul(compute, weights.input.view(), activations, query);
    weights.input.scale(query);
    attended.resize(tokens.len() * channels, 0.0);
    key.resize(channels, 0.0);
    for index in 0..states.followed() {
        let Followed { state: tail, log, accepted, .. } = states.follow(layer, index);
        log.chunks_exact(channels).take(accepted).for_each(|input| shift(tail, input));
    }
    for (begin, run) in runs(tokens) {
        let Passed { state: tail, log } = states.before(layer, run);
        let mut logged = log.chunks_exact_mut(channels);
        for token in begin..begin + run.len() {
            let (b, rest) = query[token * rows..][..rows].split_at(channels);
            let (c, x) = rest.split_at(channels);
            key.iter_mut().zip(b).zip(x).for_each(|((out, b), x)| *out = b * x);
            if let Some(logged) = logged.next() {
                logged.copy_from_slice(key);
            }
            let out = &mut attended[token * channels..][..channels];
            convolve(&weights.filters, tail, key, out);
            out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
        }
    }
}

/// `out[channel] = sum over taps of filter * input`, where `tail` `[taps - 1, channels]` are the inputs of the positions
/// before, and afterwards those before the next position. `filters` is `[taps, channels]`.
pub(super) fn convolve(filters: &[f32], tail: &mut [f32], input: &[f32], out: &mut [f32]) {
    let channels = input.len();
    let (before, last) = filters.split_at(tail.len());
    out.iter_mut().zip(input).zip(last).for_each(|((out, input), filter)| *out = input * filter);
    for (filter, input) in before.chunks_exact(channels).zip(tail.chunks_exact(channels)) {
        out.iter_mut().zip(input).zip(filter).for_each(|((out, input), filter)| *out += input * filter);
    }
    shift(tail, input);
}

/// Appends the input of a position to the latest ones, of which the first is forgotten.
fn shift(tail: &mut [f32], input: &[f32]) {
    let kept = tail.len() - input.len();
    tail.copy_within(input.len().., 0);
    tail[kept..].copy_from_slice(input);
}
