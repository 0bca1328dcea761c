//! Greedy requests of token ids, and the answers that a fresh computation gives.
use std::{ops::Range, sync::Arc};

use common::{precision::KvFormat, sampling::SamplingParameters};
use gguf::GgufFile;
use protocol::message::{Generate, Prompt};

use crate::ranks::{Run, run};

/// The token that ends an answer, which is never chosen here.
pub const END: usize = 2;

/// `count` ids chosen by a seed.
pub fn ids(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| 3 + (index * (2 * seed + 7) + seed * 31 + index * index / 3) % 290).collect()
}

/// A request for `count` tokens.
pub fn request(prompt: Vec<u32>, count: usize) -> Generate {
    let logit_bias = vec![(END as u32, -1e9)];
    let sampling = SamplingParameters { temperature: 0.0, logit_bias, ..SamplingParameters::default() };
    Generate::new(Prompt::Tokens(prompt), count as u32, sampling, Vec::new())
}

/// A request for `count` of the tokens in `among`, of a vocabulary of `vocabulary` tokens.
pub fn request_among(prompt: Vec<u32>, count: usize, among: &Range<usize>, vocabulary: usize) -> Generate {
    let mut generate = request(prompt, count);
    let others = (0..vocabulary).filter(|id| !among.contains(id));
    generate.sampling.logit_bias = others.map(|id| (id as u32, -1e9)).collect();
    generate
}

/// The token with the largest logit after each of `tokens` from `first` on, computed in one step on one rank.
///
/// # Panics
/// The model cannot be run.
pub fn fresh(file: &Arc<GgufFile>, tokens: &[u32], first: usize) -> Vec<u32> {
    let logits = run(file, tokens, &Run { kv: KvFormat::F16, ..Run::exact(1) }).logits;
    logits[first..].iter().map(|logits| best_among(logits, |id| id != END)).collect()
}

/// The token with the largest of these logits among those that `is_allowed` selects; 0 if there are none.
pub fn best_among(logits: &[f32], is_allowed: impl Fn(usize) -> bool) -> u32 {
    let allowed = logits.iter().enumerate().filter(|(id, _)| is_allowed(*id));
    allowed.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as u32)
}

/// The natural logarithms of the probabilities that these logits give.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - f64::from(largest)).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - f64::from(largest) - sum.ln()).collect()
}
