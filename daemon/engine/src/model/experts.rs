//! A mixture of experts (Shazeer 2017; Qwen3-MoE): a router chooses some of a layer's feed-forward networks for each
//! token. Every rank holds its columns of every expert and routes on its own, so that no routing decision crosses the
//! network.
use kernels::{Activations, Choice, Compute, Kernels, RowsOf, gated, matmul, weighted_sums};

use super::{
    batch::Scratch,
    weights::{Layer, Router, wanted_by},
};
use crate::model::batch::Routing;

/// `hidden -> scratch.partial`: this rank's columns of the chosen experts, both `[token, embedding_length]`.
pub fn experts(compute: &Compute, layer: &Layer, router: &Router, hidden: &[f32], epsilon: f32, scratch: &mut Scratch) {
    let Scratch { normed, activations, routing, partial, .. } = scratch;
    partial.fill(0.0);
    let columns = layer.gate.rows;
    if columns == 0 {
        return;
    }
    let weight = &layer.feed_forward_norm;
    normed.resize(hidden.len(), 0.0);
    // Not the kernel table's norm: ranks with other kernels must choose the same experts (see `route`).
    compute.pool.chunks(normed, weight.len(), |token, out| {
        (Kernels::SCALAR.rms_norm)(&hidden[token * weight.len()..][..weight.len()], weight, epsilon, out);
    });
    route(compute, router, normed, activations, routing);
    let Routing { groups, activations, inner, .. } = routing;
    activations.load(compute, groups, normed, weight.len(), RowsOf::Tokens, wanted_by(&[&layer.gate, &layer.up]));
    inner.resize(groups.rows() * columns, 0.0);
    gated(compute, [layer.gate.stack(), layer.up.stack()], groups, activations, inner);
    activations.load(compute, groups, inner, columns, RowsOf::Groups, layer.down.wanted());
    weighted_sums(compute, layer.down.stack(), groups, activations, partial);
}

/// `normed -> routing.groups`: chooses the experts of each token, identically on every rank: the norm and the products
/// of floats have the same bits in every kernel table, and raw logits are compared.
fn route(compute: &Compute, router: &Router, normed: &[f32], activations: &mut Activations, routing: &mut Routing) {
    let Routing { logits, choices, groups, .. } = routing;
    let Router { matrix, used_count } = router;
    activations.load(compute, normed, matrix.columns, matrix.wanted());
    let tokens = activations.tokens();
    logits.resize(tokens * matrix.rows, 0.0);
    matmul(compute, matrix.view(), activations, logits);
    choices.resize(tokens * used_count, Choice::default());
    compute.pool.chunks(choices, *used_count, |token, choices| {
        choose(&logits[token * matrix.rows..][..matrix.rows], choices);
    });
    groups.load(choices, *used_count, matrix.rows);
}

/// Chooses the experts with the largest logits, the lower index first among equal ones, weighted by the softmax over
/// the chosen ones (the softmax over all, renormalised to a sum of 1). If a logit is NaN, so are all weights: the
/// token's logits become NaN, which the sampler reports.
fn choose(logits: &[f32], choices: &mut [Choice]) {
    if !logits.iter().all(|logit| logit.is_finite()) {
        let any = choices.iter_mut().enumerate();
        return any.for_each(|(matrix, choice)| *choice = Choice { matrix, weight: f32::NAN });
    }
    choices.fill(Choice { matrix: 0, weight: f32::NEG_INFINITY });
    for (matrix, logit) in logits.iter().enumerate() {
        let place = choices.partition_point(|choice| choice.weight >= *logit);
        if place < choices.len() {
            choices[place..].rotate_right(1);
            choices[place] = Choice { matrix, weight: *logit };
        }
    }
    let largest = choices.first().map_or(0.0, |choice| choice.weight);
    choices.iter_mut().for_each(|choice| choice.weight = (choice.weight - largest).exp());
    let total: f32 = choices.iter().map(|choice| choice.weight).sum();
    choices.iter_mut().for_each(|choice| choice.weight /= total);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(logits: &[f32], expected: &[(usize, f32)]) {
        let mut choices = vec![Choice::default(); expected.len()];
        choose(logits, &mut choices);
        for (choice, (matrix, weight)) in choices.iter().zip(expected) {
            let is_near = (choice.weight - weight).abs() < 1e-6 || weight.is_nan() && choice.weight.is_nan();
            assert!(choice.matrix == *matrix && is_near, "{choices:?} instead of {expected:?}");
        }
    }

    #[test]
    fn largest_logits_are_chosen_with_weights_that_sum_to_1() {
        let two = 2.0_f32.ln();
        check(&[0.0, two, -two, two + two], &[(3, 4.0 / 6.0), (1, 2.0 / 6.0)]);
        check(&[0.0, two, -two, two + two], &[(3, 4.0 / 7.5), (1, 2.0 / 7.5), (0, 1.0 / 7.5), (2, 0.5 / 7.5)]);
        check(&[-300.0, 300.0], &[(1, 1.0)]);
        check(&[f32::MAX, f32::MIN], &[(0, 1.0), (1, 0.0)]);
    }

    #[test]
    fn equal_logits_are_taken_from_the_lower_index() {
        check(&[1.0; 5], &[(0, 1.0 / 3.0), (1, 1.0 / 3.0), (2, 1.0 / 3.0)]);
        check(&[0.0, 1.0, -0.0, 1.0, 0.0], &[(1, 0.365_529_3), (3, 0.365_529_3), (0, 0.134_470_7), (2, 0.134_470_7)]);
    }

    #[test]
    fn nan_logits_make_nan_weights() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            check(&[1.0, 2.0, bad, 0.0], &[(0, f32::NAN), (1, f32::NAN)]);
        }
    }
}
