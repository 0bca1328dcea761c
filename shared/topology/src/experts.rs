//! The parts of experts whose blocks of weights are too long for a part of every expert on every rank.
use models::ExpertsSpec;

use crate::shard::COLUMN_UNIT;

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
