//! The algorithm that an assignment uses by number of tokens: forced, by formula, or as measured on the links.
use common::{ids::Rank, precision::Exchange, units::Nanoseconds};
use serde::{Deserialize, Serialize};

use super::{Algorithm, Choice, cost};

/// Token counts that `auto` times; other counts use the row of the next larger one, or the last row.
pub const TOKENS_TIMED: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// One-way latency of the assumed link in nanoseconds: Ethernet between two small boards.
const LATENCY_NS: f64 = 60_000.0;
/// Nanoseconds per byte on the assumed link: 1 Gb/s.
const BYTE_NS: f64 = 8.0;
/// Processor time of a message at one end, in nanoseconds.
const MESSAGE_NS: f64 = 10_000.0;

/// The choice for up to `tokens` tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRow {
    /// Tokens of a step.
    pub tokens: u32,
    /// The algorithm to use.
    pub algorithm: Algorithm,
    /// Median time of each candidate on the links; empty if nothing was timed.
    pub timed: Vec<(Algorithm, Nanoseconds)>,
}

/// The choices, ascending in tokens. Equal on all ranks of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// At least one row; all algorithms of a table belong to one class.
    pub rows: Vec<TableRow>,
}

impl Table {
    /// The table before anything is timed: the forced algorithm, or the candidate chosen by formula.
    pub fn new(choice: Choice, exchange: Exchange, world: usize, columns: usize) -> Self {
        let row = |tokens: u32, algorithm| TableRow { tokens, algorithm, timed: Vec::new() };
        let rows = match choice {
            Choice::Forced(algorithm) => vec![row(1, algorithm)],
            Choice::Auto => TOKENS_TIMED
                .iter()
                .map(|tokens| row(*tokens, by_formula(exchange, world, *tokens as usize, columns)))
                .collect(),
        };
        Self { rows }
    }

    /// The algorithm for a step of `tokens` tokens.
    pub fn algorithm(&self, tokens: usize) -> Algorithm {
        let row = self.rows.iter().find(|row| row.tokens as usize >= tokens).or(self.rows.last());
        row.map_or(Algorithm::Direct, |row| row.algorithm)
    }

    /// Whether another rank's table is valid: ascending rows that contain only candidates of `auto`.
    pub fn is_sound(&self) -> bool {
        (1..=TOKENS_TIMED.len()).contains(&self.rows.len())
            && self.rows.iter().all(|row| Algorithm::candidates().any(|candidate| candidate == row.algorithm))
            && self.rows.is_sorted_by(|before, after| before.tokens < after.tokens)
            && self.rows.iter().all(|row| row.timed.len() <= Algorithm::ALL.len())
    }
}

/// The fastest candidate by formula on Ethernet between small boards, for a tensor `[tokens, columns]`.
pub fn by_formula(exchange: Exchange, world: usize, tokens: usize, columns: usize) -> Algorithm {
    let time = |algorithm: Algorithm| predicted_ns(algorithm, exchange, world, tokens, columns);
    Algorithm::candidates().min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(Algorithm::Direct)
}

/// Sum of latencies in sequence, bytes of the busiest rank's link in its busier direction, and its messages. In a star
/// rank 0 sends the most; in the other two candidates all ranks send the same.
fn predicted_ns(algorithm: Algorithm, exchange: Exchange, world: usize, tokens: usize, columns: usize) -> f64 {
    let busiest = cost(algorithm, exchange, Rank(0), world, tokens, columns);
    let (latencies, directions) = match algorithm {
        Algorithm::Direct => (1.0, 1.0),
        // Rank 0 must receive all parts before it sends as much.
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
    fn formula_picks_direct_for_a_token_and_rs_ag_for_a_batch() {
        assert_eq!(by_formula(Exchange::F32, 2, 1, 2048), Algorithm::Direct);
        assert_eq!(by_formula(Exchange::F32, 4, 128, 4096), Algorithm::ReduceScatter);
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
        assert!(!table.is_sound(), "auto never chooses another class");
    }
}
