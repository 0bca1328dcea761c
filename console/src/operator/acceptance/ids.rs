//! Compares answers by their tokens. At temperature 0, answers of different sums (more ranks, another program) may differ
//! where two tokens are almost equally probable: a near tie.
use serde::{Deserialize, Serialize};

/// Tokens whose logarithms of probability differ by at most this are a near tie: rounding may decide.
pub const NEAR_TIE: f64 = 0.05;

/// The first difference of two answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdsDiffer {
    /// Number of equal tokens before it.
    pub at: usize,
    /// Difference between the logarithms of probability of the two tokens; `None` if it is unknown, or if one of them is
    /// not among the most probable tokens.
    pub margin: Option<f64>,
}

impl IdsDiffer {
    /// Whether rounding can explain it.
    pub fn is_near_tie(&self) -> bool {
        self.margin.is_some_and(|margin| margin <= NEAR_TIE)
    }
}

/// The index of the first difference in the part that both answers have; `None` if that is equal.
pub fn first_difference(expected: &[u32], found: &[u32]) -> Option<usize> {
    expected.iter().zip(found).position(|(one, other)| one != other)
}

/// The margin between two tokens at one place of an answer, given its most probable tokens as (id, logarithm of the
/// probability).
pub fn margin(probable: &[(u32, f32)], one: u32, other: u32) -> Option<f64> {
    let of = |wanted: u32| probable.iter().find(|(id, _)| *id == wanted).map(|(_, logprob)| f64::from(*logprob));
    Some((of(one)? - of(other)?).abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_as_far_as_both_go() {
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2]), None, "a shorter answer is not another one");
        assert_eq!(first_difference(&[1, 2, 3], &[1, 5, 3]), Some(1));
        assert_eq!(first_difference(&[], &[1]), None);
    }

    #[test]
    fn only_close_probabilities_are_a_near_tie() {
        let probable = [(7, -0.70), (9, -0.72), (4, -3.0)];
        let tie = |one, other| IdsDiffer { at: 3, margin: margin(&probable, one, other) }.is_near_tie();
        assert!(tie(7, 9) && tie(9, 7));
        assert!(!tie(7, 4), "4 is much less probable");
        assert!(!tie(7, 8), "8 is not probable at all");
    }
}
