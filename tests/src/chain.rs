//! Pairs of files whose agreement is known: the target model continues a text along a chain of all its tokens, and the draft
//! model leaves that chain after a part of them.
use crate::random::Random;

/// A chain of tokens: the order in which a model continues any text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Seed of the order.
    pub seed: u64,
    /// Share of the tokens after which the model continues along the chain.
    pub agreement: f32,
}

impl Chain {
    /// For each token of a vocabulary, the token after which it follows. Those before `first`, special tokens and bytes,
    /// follow themselves.
    pub fn before(&self, vocabulary: usize, first: usize) -> Vec<usize> {
        let mut random = Random::named(self.seed, "chain");
        let mut order: Vec<usize> = (first.min(vocabulary)..vocabulary).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, random.below(index + 1));
        }
        let mut before: Vec<usize> = (0..vocabulary).collect();
        for (index, token) in order.iter().enumerate() {
            before[order[(index + 1) % order.len()]] = *token;
        }
        // Exchange the successors of the tokens that leave the chain in a circle.
        let left = (order.len() as f32 * (1.0 - self.agreement)).round() as usize;
        let mut places: Vec<usize> = (0..order.len()).collect();
        for index in 0..left.min(places.len()) {
            places.swap(index, index + random.below(order.len() - index));
        }
        let leaving = &places[..left.min(places.len())];
        for (one, next) in leaving.iter().zip(leaving.iter().cycle().skip(1)) {
            before[order[(next + 1) % order.len()]] = order[*one];
        }
        before
    }
}
