//! Every schedule of 1 to 16 ranks on symbolic values: the order of sums, and freedom from deadlocks.
use std::collections::VecDeque;

use common::precision::Exchange;

use super::*;

/// A message in flight: its content, its columns, and one expression per block.
type Message = (Sent, Range<usize>, Vec<String>);

/// A rank in the middle of its steps. Values are one expression per block of 32 columns.
struct Symbolic {
    steps: VecDeque<Step>,
    sum: Vec<String>,
    result: Vec<Option<String>>,
    /// Ranges that were finished or stored: results are sent in the same ranges.
    ranges: Vec<Range<usize>>,
    sent: Cost,
}

/// All ranks and, for each ordered pair, the unsent and the arrived message: at most one of each may be buffered.
struct World {
    ranks: Vec<Symbolic>,
    unsent: Vec<Vec<Option<Message>>>,
    arrived: Vec<Vec<Option<Message>>>,
    columns: usize,
}

fn blocks(columns: &Range<usize>) -> Range<usize> {
    assert!(columns.start.is_multiple_of(EXCHANGE_BLOCK), "{columns:?} begins inside of a block");
    columns.start / EXCHANGE_BLOCK..columns.end.div_ceil(EXCHANGE_BLOCK)
}

impl World {
    fn new(algorithm: Algorithm, world: usize, columns: usize) -> Self {
        let count = columns.div_ceil(EXCHANGE_BLOCK);
        let none = || (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
        Self {
            ranks: (0..world)
                .map(|rank| Symbolic {
                    steps: schedule(algorithm, Rank(rank as u16), world, columns).into(),
                    sum: vec![rank.to_string(); count],
                    result: vec![None; count],
                    ranges: Vec::new(),
                    sent: Cost::default(),
                })
                .collect(),
            unsent: none(),
            arrived: none(),
            columns,
        }
    }

    /// Executes one step of a rank if possible, and moves messages in flight.
    fn advance(&mut self, own: usize) -> bool {
        let mut has_moved = false;
        for to in 0..self.ranks.len() {
            if self.arrived[own][to].is_none() && self.unsent[own][to].is_some() {
                self.arrived[own][to] = self.unsent[own][to].take();
                has_moved = true;
            }
        }
        let Some(step) = self.ranks[own].steps.front().cloned() else { return has_moved };
        let can = match &step {
            Step::Send { to, .. } => self.unsent[own][to.index()].is_none(),
            Step::Receive { from, .. } => from.iter().all(|from| self.arrived[from.index()][own].is_some()),
            Step::Finish { .. } => true,
        };
        if can {
            self.take(own, step);
            self.ranks[own].steps.pop_front();
        }
        has_moved || can
    }

    fn take(&mut self, own: usize, step: Step) {
        match step {
            Step::Send { to, what, columns } => {
                assert!(to.index() != own && !columns.is_empty(), "{own} sends {columns:?} to {to}");
                let values = match what {
                    Sent::Sum => self.ranks[own].sum[blocks(&columns)].to_vec(),
                    Sent::Result => {
                        assert!(self.ranks[own].ranges.contains(&columns), "{own} has no result of just {columns:?}");
                        let values = self.ranks[own].result[blocks(&columns)].iter().cloned();
                        values.map(|value| value.expect("a result that is there is sent")).collect()
                    }
                };
                let sent = &mut self.ranks[own].sent;
                sent.bytes += payload_bytes(Exchange::Q80, 3, columns.len()) as u64;
                sent.messages += 1;
                self.unsent[own][to.index()] = Some((what, columns, values));
            }
            Step::Receive { from, how, columns } => self.receive(own, from, how, &columns),
            Step::Finish { columns } => {
                for block in blocks(&columns) {
                    let rank = &mut self.ranks[own];
                    assert_eq!(rank.result[block], None, "a block is finished once");
                    rank.result[block] = Some(rank.sum[block].clone());
                }
                self.ranks[own].ranges.push(columns);
            }
        }
    }

    fn receive(&mut self, own: usize, from: RankSet, how: Combine, columns: &Range<usize>) {
        assert!(!from.is_empty() && !from.contains(Rank(own as u16)), "{own} receives from {from:?}");
        let mut got = Vec::new();
        for from in from.iter() {
            let (what, sent, values) = self.arrived[from.index()][own].take().expect("it was looked at before");
            assert_eq!(what == Sent::Sum, how == Combine::Sum, "{own} gets from {from} what it expects");
            assert_eq!(&sent, columns, "{own} gets from {from} the columns that it expects");
            got.push((from.index(), values));
        }
        let rank = &mut self.ranks[own];
        match how {
            Combine::Sum => {
                got.push((own, rank.sum[blocks(columns)].to_vec()));
                got.sort();
                for (index, block) in blocks(columns).enumerate() {
                    let terms: Vec<&str> = got.iter().map(|(_, values)| values[index].as_str()).collect();
                    rank.sum[block] = format!("({})", terms.join("+"));
                }
            }
            Combine::Store => {
                assert_eq!(got.len(), 1, "one rank has the result");
                for (index, block) in blocks(columns).enumerate() {
                    assert_eq!(rank.result[block], None, "a block is stored once");
                    rank.result[block] = Some(got[0].1[index].clone());
                }
                rank.ranges.push(columns.clone());
            }
        }
    }
}

/// Runs all ranks to the end; returns their result, one expression per block.
#[track_caller]
fn run(algorithm: Algorithm, world: usize, columns: usize) -> Vec<String> {
    let mut all = World::new(algorithm, world, columns);
    while (0..world).fold(false, |has_moved, rank| all.advance(rank) | has_moved) {}
    for (rank, symbolic) in all.ranks.iter().enumerate() {
        assert!(symbolic.steps.is_empty(), "{algorithm} of {world}: rank {rank} waits at {:?}", symbolic.steps);
        let formula = cost(algorithm, Exchange::Q80, Rank(rank as u16), world, 3, all.columns);
        assert_eq!(symbolic.sent, formula, "{algorithm} of {world}, rank {rank}, {columns} columns");
        assert_eq!(symbolic.result, all.ranks[0].result, "{algorithm} of {world}: rank {rank} holds the same sums");
    }
    assert!(
        all.unsent.iter().chain(&all.arrived).all(|channel| channel.iter().all(Option::is_none)),
        "{algorithm} of {world}: a message is not received"
    );
    all.ranks[0].result.iter().map(|value| value.clone().unwrap_or_default()).collect()
}

#[test]
fn every_algorithm_sums_all_parts_at_the_cost_of_its_formula() {
    for algorithm in Algorithm::ALL {
        for world in 2..=16 {
            for columns in [1, 32, 96, 160, 1000, 2048] {
                for value in run(algorithm, world, columns) {
                    let mut parts: Vec<usize> = value
                        .split(|character: char| !character.is_ascii_digit())
                        .filter_map(|number| number.parse().ok())
                        .collect();
                    parts.sort_unstable();
                    assert_eq!(parts, (0..world).collect::<Vec<_>>(), "{algorithm} of {world}: {value}");
                }
            }
        }
    }
}

#[test]
fn a_lone_rank_has_nothing_to_do() {
    for algorithm in Algorithm::ALL {
        assert_eq!(schedule(algorithm, Rank(0), 1, 64), []);
        assert_eq!(cost(algorithm, Exchange::F32, Rank(0), 1, 1, 64), Cost::default());
    }
}

#[test]
fn algorithms_sum_in_equal_order_only_within_a_class() {
    for world in 2..=16 {
        let in_rank_order = format!("({})", (0..world).map(|rank| rank.to_string()).collect::<Vec<_>>().join("+"));
        for algorithm in Algorithm::candidates() {
            assert!(run(algorithm, world, 700).iter().all(|value| *value == in_rank_order), "{algorithm} of {world}");
        }
    }
    assert!(run(Algorithm::Doubling, 4, 96).iter().all(|value| value == "((0+1)+(2+3))"));
    assert!(run(Algorithm::Doubling, 7, 96).iter().all(|value| value == "(((0+1)+(2+3))+((4+5)+6))"));
    assert!(run(Algorithm::TwoLevel, 7, 96).iter().all(|value| value == "((0+1+2)+(3+4+5+6))"));
    // The rank after the owner begins; of two, the lower rank is written first.
    assert_eq!(run(Algorithm::Ring, 3, 96), ["(0+(1+2))", "((0+2)+1)", "((0+1)+2)"]);
}

#[test]
fn the_formulas_are_those_that_are_known() {
    let of = |algorithm, rank, world| cost(algorithm, Exchange::F32, Rank(rank), world, 1, 4096);
    let cost = |bytes, messages| Cost { bytes, messages };
    assert_eq!(of(Algorithm::Direct, 3, 8), cost(7 * 16384, 7));
    assert_eq!(of(Algorithm::ReduceScatter, 3, 8), cost(14 * 2048, 14));
    assert_eq!(of(Algorithm::Ring, 3, 8), cost(14 * 2048, 14));
    assert_eq!(of(Algorithm::Doubling, 3, 8), cost(3 * 16384, 3));
    assert_eq!(of(Algorithm::Star, 0, 8), cost(7 * 16384, 7));
    assert_eq!(of(Algorithm::Star, 3, 8), cost(16384, 1));
    assert_eq!(of(Algorithm::TwoLevel, 3, 8), cost(4 * 16384, 4));
    assert_eq!(of(Algorithm::TwoLevel, 3, 16), cost(6 * 16384, 6));
}

#[test]
fn slices_are_whole_blocks_and_hold_every_column_once() {
    for world in 1..=16 {
        for columns in [1, 31, 32, 33, 256, 2048, 5120] {
            let mut end = 0;
            for rank in 0..world {
                let slice = slice(rank, world, columns);
                assert_eq!(slice.start, end);
                assert!(slice.start.is_multiple_of(EXCHANGE_BLOCK) || slice.start == columns);
                end = slice.end;
            }
            assert_eq!(end, columns);
        }
    }
}

#[test]
fn names_are_written_as_they_are_read() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        assert_eq!(algorithm.to_string().parse(), Ok(Choice::Forced(algorithm)));
        assert_eq!(Algorithm::from_number(algorithm.number()), Some(algorithm));
    }
    assert_eq!("auto".parse(), Ok(Choice::Auto));
    assert!("tree".parse::<Choice>().is_err_and(|error| error.contains("rs-ag") && error.contains("auto")));
    assert_eq!(Algorithm::from_number(0), None);
}
