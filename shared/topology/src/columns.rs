//! How ranks divide feed-forward columns: by weight at multiples of a block, or by blocks of experts.
use std::ops::Range;

use models::ExpertsSpec;

/// Columns are cut at multiples of this: the shortest block of the weight formats and of quantised activations.
pub const COLUMN_UNIT: usize = 32;

/// Fewest blocks of experts for each rank: with fewer, one more or less makes too much of a difference.
const PARTS_MIN: usize = 2;

/// A rank's part of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertPart {
    /// The expert.
    pub expert: usize,
    /// The first of its feed-forward columns that belong to the part.
    pub first: usize,
}

/// Each rank's blocks of columns, if experts have fewer of them than there are ranks: a rank would hold a block whole
/// for a few of its columns. The blocks of an expert go to the ranks that have the fewest for their weights, to each
/// at most one. With their length.
pub(crate) fn expert_parts(experts: &ExpertsSpec, weights: &[u32]) -> Option<(usize, Vec<Vec<ExpertPart>>)> {
    let ExpertsSpec { block, columns, count, has_biases, .. } = *experts;
    let total: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
    if block <= COLUMN_UNIT || !columns.is_multiple_of(block) || has_biases {
        return None;
    }
    let of_expert = columns / block;
    let most = weights.iter().max().map_or(0, |weight| i64::from(*weight) * of_expert as i64);
    if of_expert >= weights.len() || most > total || count * of_expert < PARTS_MIN * weights.len() {
        return None;
    }
    let mut parts = vec![Vec::new(); weights.len()];
    let mut due = vec![0; weights.len()];
    for expert in 0..count {
        due.iter_mut().zip(weights).for_each(|(due, weight)| *due += i64::from(*weight) * of_expert as i64);
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|rank| std::cmp::Reverse(due[*rank]));
        for (index, rank) in order[..of_expert].iter().enumerate() {
            due[*rank] -= total;
            parts[*rank].push(ExpertPart { expert, first: index * block });
        }
    }
    Some((block, parts))
}

/// Cuts `length` at multiples of `unit` so that each part is as close to its weight as the unit allows.
pub(crate) fn split(length: usize, unit: usize, weights: &[u32]) -> Vec<Range<usize>> {
    let units = length.div_ceil(unit) as u128;
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>().max(1);
    let mut sum = 0;
    let mut begin = 0;
    weights
        .iter()
        .map(|weight| {
            sum += u128::from(*weight);
            let end = ((units * sum * 2 + total) / (2 * total)) as usize * unit;
            let range = begin..end.min(length);
            begin = range.end;
            range
        })
        .collect()
}
