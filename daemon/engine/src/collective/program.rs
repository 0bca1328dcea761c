//! Schedules compiled once per assignment: everything about a step that is known before any token.
use std::ops::Range;

use collectives::{Algorithm, Combine, RankSet, Sent, Step, schedule};
use common::ids::Rank;

/// Where a rank's own values of some columns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartSource {
    /// In the model's output: nothing has been added yet.
    Part,
    /// In the sum.
    Sum,
}

/// A step of a schedule with its consequences. Ranks are numbered within the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Send this rank's values of the columns; `encodes`: they must be encoded first.
    SendSum { to: Rank, columns: Range<usize>, own: PartSource, encodes: bool },
    /// Send the encoded result.
    SendResult { to: Rank, columns: Range<usize> },
    /// Sum the parts of these ranks and this rank's values in rank order.
    Sum { from: RankSet, columns: Range<usize>, own: PartSource, encodes: bool },
    /// Store the part of this rank as the result; `keeps`: it is forwarded.
    Store { from: Rank, columns: Range<usize>, keeps: bool },
    /// The sum becomes the result; `keeps`: it is sent.
    Finish { columns: Range<usize>, keeps: bool },
}

/// The operations of a rank in an all-reduce.
pub(super) fn compile(algorithm: Algorithm, rank: Rank, world: usize, columns: usize) -> Box<[Operation]> {
    let steps = schedule(algorithm, rank, world, columns);
    // Ranges of one schedule are equal or disjoint, both those that are summed and those that were encoded since.
    let mut summed: Vec<Range<usize>> = Vec::new();
    let mut encoded: Vec<Range<usize>> = Vec::new();
    let is_sent = |range: &Range<usize>, later: &[Step]| {
        later.iter().any(|step| matches!(step, Step::Send { what: Sent::Result, columns, .. } if columns == range))
    };
    let mut operations = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let later = &steps[index + 1..];
        let (Step::Send { columns, .. } | Step::Receive { columns, .. } | Step::Finish { columns }) = step;
        let columns = columns.clone();
        let own = if summed.contains(&columns) { PartSource::Sum } else { PartSource::Part };
        let encodes = !encoded.contains(&columns);
        operations.push(match step {
            Step::Send { to, what: Sent::Sum, .. } => {
                encoded.push(columns.clone());
                Operation::SendSum { to: *to, columns, own, encodes }
            }
            Step::Send { to, what: Sent::Result, .. } => Operation::SendResult { to: *to, columns },
            Step::Receive { from, how: Combine::Sum, .. } => {
                summed.push(columns.clone());
                encoded.retain(|range| *range != columns);
                Operation::Sum { from: *from, columns, own, encodes }
            }
            Step::Receive { from, how: Combine::Store, .. } => {
                let from = from.iter().next().expect("a result comes from one rank");
                Operation::Store { from, keeps: is_sent(&columns, later), columns }
            }
            Step::Finish { .. } => Operation::Finish { keeps: is_sent(&columns, later), columns },
        });
    }
    operations.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_is_rounded_once_for_any_number_of_receivers() {
        for algorithm in Algorithm::ALL {
            let operations = compile(algorithm, Rank(1), 5, 320);
            let mut open: Vec<(Range<usize>, PartSource)> = Vec::new();
            for operation in &operations {
                let (Operation::SendSum { columns, own, encodes, .. } | Operation::Sum { columns, own, encodes, .. }) =
                    operation
                else {
                    continue;
                };
                let place = (columns.clone(), *own);
                assert!(*encodes != open.contains(&place) || *own == PartSource::Sum, "{algorithm}: {operation:?}");
                open.push(place);
            }
        }
    }

    #[test]
    fn encoded_result_is_kept_if_forwarded() {
        let keeps = |algorithm: Algorithm, rank: u16| {
            let program = compile(algorithm, Rank(rank), 4, 320);
            let kept = program.iter().filter(|operation| {
                matches!(operation, Operation::Finish { keeps: true, .. } | Operation::Store { keeps: true, .. })
            });
            kept.count()
        };
        assert_eq!(keeps(Algorithm::Direct, 0), 0);
        assert_eq!(keeps(Algorithm::ReduceScatter, 0), 1);
        assert_eq!((keeps(Algorithm::Star, 0), keeps(Algorithm::Star, 1)), (1, 0));
        assert_eq!(keeps(Algorithm::Ring, 2), 3);
    }
}
