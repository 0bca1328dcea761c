//! A mixture of experts (Shazeer 2017; Qwen3-MoE): a router chooses some of a layer's feed-forward networks for each
//! token. Every rank holds its columns of every expert and routes on its own, so that no routing decision crosses the
//! network.
use kernels::{
    Activations, Choice, Compute, Gating, Kernels, MatrixStack, RowsOf, gated, make_room, matmul, matmuls,
    weighted_sums,
};
use models::{ExpertGroups, Scores, limits::EXPERT_COUNT_MAX};

use super::{
    batch::Scratch,
    error::ExpertError,
    expert_cache::CachedExperts,
    feed_forward::combination,
    matrix::wanted_by,
    norm::same_norm,
    weights::{Layer, Router, SharedExpert},
};
use crate::model::batch::Routing;

/// `hidden -> scratch.partial`: this rank's columns of the chosen experts, both `[token, embedding_length]`. Behind them
/// in `partial` are those of a branch next to the experts, if there is one. `cached` are experts that stay on the disk.
///
/// # Errors
/// Experts that stay on the disk cannot be read.
pub(super) fn experts(
    compute: &Compute,
    layer: &Layer,
    router: &Router,
    cached: Option<CachedExperts<'_>>,
    hidden: &[f32],
    epsilon: f32,
    scratch: &mut Scratch,
) -> Result<(), ExpertError> {
    let branch = layer.shared.as_ref().and_then(|shared| shared.branch.as_ref());
    scratch.partial.clear();
    scratch.partial.resize(hidden.len() * if branch.is_some() { 2 } else { 1 }, 0.0);
    let Scratch { normed, activations, routing, partial, gate, up, summed, .. } = scratch;
    let columns = layer.up.rows;
    let shared = layer.shared.as_ref().filter(|shared| shared.up.rows > 0);
    if columns == 0 && layer.down_bias.is_empty() && shared.is_none() {
        return Ok(());
    }
    let weight = &layer.feed_forward_norm;
    let combine = combination(compute.kernels, layer.spec.feed_forward.activation());
    if let Some(shared) = shared {
        let before = branch.map_or(weight, |branch| &branch.before);
        same_norm(compute, hidden, before, epsilon, normed);
        shared_expert(compute, shared, combine, normed, activations, [gate, up, summed]);
        let begin = if branch.is_some() { hidden.len() } else { 0 };
        partial[begin..].iter_mut().zip(summed).for_each(|(sum, own)| *sum += *own);
    }
    if !router.norm.is_empty() {
        same_norm(compute, hidden, &router.norm, epsilon, normed);
        route(compute, router, normed, activations, routing);
    }
    same_norm(compute, hidden, weight, epsilon, normed);
    if router.norm.is_empty() {
        route(compute, router, normed, activations, routing);
    }
    let partial = &mut partial[..hidden.len()];
    add_biases(&layer.down_bias, weight.len(), &routing.choices, router.used_count, partial);
    own_choices(router, layer.down.scales(), &mut routing.choices);
    if columns == 0 {
        return Ok(());
    }
    let chosen = ChosenExperts { compute, layer, combine, normed, used_count: router.used_count };
    chosen.compute(cached, routing, partial)
}

/// The experts that tokens chose, and what they read.
struct ChosenExperts<'a> {
    compute: &'a Compute,
    layer: &'a Layer,
    combine: fn(&mut [f32], &[f32]),
    /// `[token, embedding_length]`
    normed: &'a [f32],
    used_count: usize,
}

impl ChosenExperts<'_> {
    /// Adds the results of this rank's experts to `sums`, `[token, embedding_length]`, in the order of their numbers. If a
    /// cache has no room for all at once, they are loaded and computed in several parts.
    fn compute(
        &self,
        mut cached: Option<CachedExperts<'_>>,
        routing: &mut Routing,
        sums: &mut [f32],
    ) -> Result<(), ExpertError> {
        let Layer { gate, up, down, .. } = self.layer;
        let at_once = cached.as_ref().map_or(down.count, CachedExperts::slot_count);
        let mut begin = 0;
        while begin < down.count {
            routing.groups.load(&routing.choices, self.used_count, begin..down.count);
            let end = routing.groups.matrices().get(at_once).copied();
            if let Some(end) = end {
                routing.groups.load(&routing.choices, self.used_count, begin..end);
            }
            begin = end.unwrap_or(down.count);
            if routing.groups.rows() == 0 {
                break;
            }
            if let Some(cached) = &mut cached {
                cached.load(routing.groups.matrices())?;
            }
            let slots = cached.as_ref().map(CachedExperts::slots);
            let stacks =
                [gate, up, down].map(|matrix| slots.map_or_else(|| matrix.stack(), |slots| matrix.stack_in(slots)));
            self.add_groups(stacks, routing, sums);
        }
        Ok(())
    }

    /// Adds what the experts of the loaded groups compute.
    fn add_groups(&self, [gate, up, down]: [MatrixStack<'_>; 3], routing: &mut Routing, sums: &mut [f32]) {
        let Self { compute, layer, combine, normed, .. } = self;
        let Routing { groups, activations, inner, .. } = routing;
        let wanted = wanted_by(&[&layer.gate, &layer.up]);
        activations.load(compute, groups, normed, layer.feed_forward_norm.len(), RowsOf::Tokens, wanted);
        make_room(inner, groups.most_rows() * up.rows);
        inner.resize(groups.rows() * up.rows, 0.0);
        let [gate_bias, up_bias] = &layer.inner_biases;
        let scales = [layer.gate.scales(), layer.up.scales()];
        let gating = Gating { combine: *combine, scales, biases: [gate_bias, up_bias] };
        gated(compute, [gate, up], gating, groups, activations, inner);
        activations.load(compute, groups, inner, up.rows, RowsOf::Groups, layer.down.wanted());
        weighted_sums(compute, down, groups, activations, sums);
    }
}

/// `normed -> out`: this rank's columns of the shared expert. `[gate, up, out]` are scratch and result.
fn shared_expert(
    compute: &Compute,
    shared: &SharedExpert,
    combine: fn(&mut [f32], &[f32]),
    normed: &[f32],
    activations: &mut Activations,
    [gate, up, out]: [&mut Vec<f32>; 3],
) {
    let (length, columns) = (shared.down.rows, shared.up.rows);
    let tokens = normed.len() / length;
    activations.load(compute, normed, length, wanted_by(&[&shared.gate, &shared.up]));
    gate.resize(tokens * columns, 0.0);
    up.resize(tokens * columns, 0.0);
    if shared.gate.rows > 0 {
        matmuls(compute, [shared.gate.view(), shared.up.view()], activations, [gate, up]);
        shared.gate.scale(gate);
    } else {
        matmul(compute, shared.up.view(), activations, up);
    }
    shared.up.scale(up);
    compute.pool.chunks(gate, columns, |token, gate| {
        combine(gate, &up[token * columns..][..columns]);
    });
    activations.load(compute, gate, columns, shared.down.wanted());
    out.resize(normed.len(), 0.0);
    matmul(compute, shared.down.view(), activations, out);
    shared.down.scale(out);
    if shared.router.is_empty() {
        return;
    }
    for (out, normed) in out.chunks_exact_mut(length).zip(normed.chunks_exact(length)) {
        let logit: f32 = normed.iter().zip(&shared.router).map(|(x, weight)| x * weight).sum();
        let weight = 1.0 / (1.0 + (-logit).exp());
        out.iter_mut().for_each(|value| *value *= weight);
    }
}

/// Numbers the chosen experts as this rank's matrices are, and multiplies their weights by the factors of these; behind
/// the biases, which the factors do not scale.
fn own_choices(router: &Router, scales: &[f32], choices: &mut [Choice]) {
    if !router.numbers.is_empty() {
        choices.iter_mut().for_each(|choice| choice.matrix = router.numbers[choice.matrix]);
    }
    for choice in choices.iter_mut() {
        if let Some(scale) = scales.get(choice.matrix) {
            choice.weight *= scale;
        }
    }
}

/// Adds the weighted biases `[expert, embedding_length]` of each token's experts; without biases nothing.
fn add_biases(biases: &[f32], length: usize, choices: &[Choice], per_token: usize, partial: &mut [f32]) {
    if biases.is_empty() {
        return;
    }
    for (out, choices) in partial.chunks_exact_mut(length).zip(choices.chunks_exact(per_token)) {
        for Choice { matrix, weight } in choices {
            let bias = &biases[matrix * length..][..length];
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += weight * bias);
        }
    }
}

/// `normed -> routing.choices`: chooses the experts of each token, identically on every rank: the norm and the products
/// of floats have the same bits in every kernel table, and raw logits are compared.
fn route(compute: &Compute, router: &Router, normed: &[f32], activations: &mut Activations, routing: &mut Routing) {
    let Routing { logits, choices, .. } = routing;
    let Router { matrix, bias, used_count, .. } = router;
    activations.load(compute, normed, matrix.columns, matrix.wanted());
    let tokens = activations.tokens();
    logits.resize(tokens * matrix.rows, 0.0);
    matmul(compute, matrix.view(), activations, logits);
    if !bias.is_empty() {
        logits.chunks_exact_mut(bias.len()).for_each(|row| (Kernels::SCALAR.add)(row, bias));
    }
    choices.resize(tokens * used_count, Choice::default());
    compute.pool.chunks(choices, *used_count, |token, choices| {
        let logits = &logits[token * matrix.rows..][..matrix.rows];
        if router.is_plain() { choose(logits, choices) } else { choose_by(router, logits, choices) }
    });
}

/// Chooses the experts with the largest scores plus biases, the lower index first among equal ones, weighted by their
/// scores. If a logit is NaN, so are all weights.
fn choose_by(router: &Router, logits: &[f32], choices: &mut [Choice]) {
    if !logits.iter().all(|logit| logit.is_finite()) {
        return choose(logits, choices);
    }
    let mut scores = [0.0; EXPERT_COUNT_MAX as usize];
    let scores = &mut scores[..logits.len()];
    match router.spec.scores {
        Scores::Softmax => {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().zip(logits).for_each(|(score, logit)| *score = exponential(logit - largest));
            let total: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= total);
        }
        Scores::Sigmoid => {
            scores.iter_mut().zip(logits).for_each(|(score, logit)| *score = 1.0 / (1.0 + exponential(-logit)));
        }
    }
    let mut ranked = [0.0; EXPERT_COUNT_MAX as usize];
    let ranked = &mut ranked[..logits.len()];
    ranked.copy_from_slice(scores);
    ranked.iter_mut().zip(&router.selection_bias).for_each(|(score, bias)| *score += bias);
    if let Some(groups) = router.spec.groups {
        keep_best_groups(groups, ranked);
    }
    take_largest(ranked, choices);
    choices.iter_mut().for_each(|choice| choice.weight = scores[choice.matrix]);
    if router.spec.is_normalised {
        let total: f32 = choices.iter().map(|choice| choice.weight).sum();
        choices.iter_mut().for_each(|choice| choice.weight /= total.max(WEIGHTS_MIN));
    }
    choices.iter_mut().for_each(|choice| choice.weight *= router.spec.scale);
}

/// Excludes the experts of all groups but the best: those with the largest sums of their two best scores.
fn keep_best_groups(groups: ExpertGroups, scores: &mut [f32]) {
    let (mut sums, mut kept) = ([0.0; EXPERT_COUNT_MAX as usize], [Choice::default(); EXPERT_COUNT_MAX as usize]);
    let (sums, kept) = (&mut sums[..groups.count], &mut kept[..groups.used_count]);
    let length = scores.len() / groups.count;
    for (sum, scores) in sums.iter_mut().zip(scores.chunks_exact(length)) {
        let mut best = [Choice::default(); 2];
        take_largest(scores, &mut best);
        *sum = best[0].weight + best[1].weight;
    }
    take_largest(sums, kept);
    for (group, scores) in scores.chunks_exact_mut(length).enumerate() {
        if kept.iter().all(|choice| choice.matrix != group) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

/// Smallest divisor of weights (llama.cpp: the smallest normal half).
const WEIGHTS_MIN: f32 = 6.103_515_6e-5;

/// `e^x` with the same bits on every machine: the standard library's depends on the platform (Cephes, expf).
fn exponential(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let rest = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4;
    for factor in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
        sum = sum * rest + factor;
    }
    sum * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// Chooses the experts with the largest logits, the lower index first among equal ones, weighted by the softmax over
/// the chosen ones (the softmax over all, renormalised to a sum of 1). If a logit is NaN, so are all weights: the
/// token's logits become NaN, which the sampler reports.
fn choose(logits: &[f32], choices: &mut [Choice]) {
    if !logits.iter().all(|logit| logit.is_finite()) {
        let any = choices.iter_mut().enumerate();
        return any.for_each(|(matrix, choice)| *choice = Choice { matrix, weight: f32::NAN });
    }
    take_largest(logits, choices);
    let largest = choices.first().map_or(0.0, |choice| choice.weight);
    choices.iter_mut().for_each(|choice| choice.weight = (choice.weight - largest).exp());
    let total: f32 = choices.iter().map(|choice| choice.weight).sum();
    choices.iter_mut().for_each(|choice| choice.weight /= total);
}

/// The largest values in descending order, with their indices.
fn take_largest(values: &[f32], choices: &mut [Choice]) {
    choices.fill(Choice { matrix: 0, weight: f32::NEG_INFINITY });
    for (matrix, value) in values.iter().enumerate() {
        let place = choices.partition_point(|choice| choice.weight >= *value);
        if place < choices.len() {
            choices[place..].rotate_right(1);
            choices[place] = Choice { matrix, weight: *value };
        }
    }
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
