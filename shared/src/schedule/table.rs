//! Which algorithm an assignment uses for how many tokens: forced, by formula, or as timed on the links.
use serde::{Deserialize, Serialize};

use super::{Algorithm, Choice, cost};
use crate::{ids::Rank, topology::Exchange, units::Nanoseconds};

/// Numbers of tokens that `auto` times; others use the row of the next larger one, or the last.
pub const TOKENS_TIMED: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// One-way latency, in nanoseconds, of the link that the formula assumes: Ethernet between two small boards.
const LATENCY_NS: f64 = 60_000.0;
/// Nanoseconds of a byte on it: 1 Gb/s.
const BYTE_NS: f64 = 8.0;
/// Processor time of a message at one end, in nanoseconds.
const MESSAGE_NS: f64 = 10_000.0;

/// The choice for up to `tokens` tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRow {
    /// Tokens of a step.
    pub tokens: u32,
    /// The algorithm that is used.
    pub algorithm: Algorithm,
    /// Median time of each candidate on the links; empty where nothing was timed.
    pub timed: Vec<(Algorithm, Nanoseconds)>,
}

/// The choices, ascending in tokens. All ranks of a stage hold the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// At least one row; those of one table are of one class.
    pub rows: Vec<TableRow>,
}

impl Table {
    /// The table before anything is timed: the forced algorithm, or the formula's choice of the candidates.
    pub fn new(choice: Choice, exchange: Exchange, world: usize, columns: usize) -> Self {
        let row = |tokens: u32, algorithm| TableRow { tokens, algorithm, timed: Vec::new() };
        let rows = match choice {
            Choice::Forced(algorithm) => vec![row(1, algorithm)],
            Choice::Auto => {
                let chosen = |tokens| by_formula(exchange, world, (tokens as usize, columns));
                TOKENS_TIMED.iter().map(|tokens| row(*tokens, chosen(*tokens))).collect()
            }
        };
        Self { rows }
    }

    /// The algorithm for a step of `tokens` tokens.
    pub fn algorithm(&self, tokens: usize) -> Algorithm {
        let row = self.rows.iter().find(|row| row.tokens as usize >= tokens).or(self.rows.last());
        row.map_or(Algorithm::Direct, |row| row.algorithm)
    }

    /// Whether another rank's table can be used here: rows ascending, of the candidates of `auto` alone.
    pub fn is_sound(&self) -> bool {
        let is_candidate = |row: &TableRow| Algorithm::candidates().any(|candidate| candidate == row.algorithm);
        (1..=TOKENS_TIMED.len()).contains(&self.rows.len())
            && self.rows.iter().all(is_candidate)
            && self.rows.is_sorted_by(|before, after| before.tokens < after.tokens)
            && self.rows.iter().all(|row| row.timed.len() <= Algorithm::ALL.len())
    }
}

/// The candidate that is fastest by formula on Ethernet between small boards; `tensor` is (tokens, columns).
pub fn by_formula(exchange: Exchange, world: usize, tensor: (usize, usize)) -> Algorithm {
    let time = |algorithm: Algorithm| predicted_ns(algorithm, exchange, world, tensor);
    Algorithm::candidates().min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(Algorithm::Direct)
}

/// Latencies one after the other, the bytes of the busiest rank's link in its busier direction, its messages. Of the
/// candidates: rank 0 has the most to send in a star, all have the same in the other two.
fn predicted_ns(algorithm: Algorithm, exchange: Exchange, world: usize, tensor: (usize, usize)) -> f64 {
    let busiest = cost(algorithm, exchange, Rank(0), world, tensor);
    let (latencies, directions) = match algorithm {
        Algorithm::Direct => (1.0, 1.0),
        // What rank 0 gets has to be there before it sends as much.
        Algorithm::Star => (2.0, 2.0),
        _ => (2.0, 1.0),
    };
    let messages = 2.0 * busiest.messages as f64 * MESSAGE_NS;
    latencies * LATENCY_NS + directions * busiest.bytes as f64 * BYTE_NS + messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_takes_direct_for_a_token_of_few_ranks_and_rs_ag_for_a_batch_of_many() {
        assert_eq!(by_formula(Exchange::F32, 2, (1, 2048)), Algorithm::Direct);
        assert_eq!(by_formula(Exchange::F32, 4, (128, 4096)), Algorithm::ReduceScatter);
        let table = Table::new(Choice::Auto, Exchange::F32, 8, 4096);
        assert_eq!(table.algorithm(128), Algorithm::ReduceScatter);
        assert_eq!(table.algorithm(5000), table.algorithm(128));
        assert_eq!(table.algorithm(3), table.algorithm(4));
        assert!(table.is_sound());
    }

    #[test]
    fn a_forced_algorithm_is_used_for_all() {
        let table = Table::new(Choice::Forced(Algorithm::Ring), Exchange::F32, 8, 4096);
        assert!([1, 7, 1000].iter().all(|tokens| table.algorithm(*tokens) == Algorithm::Ring));
        assert!(!table.is_sound(), "auto never takes another class");
    }
}
