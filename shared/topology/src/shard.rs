//! The heads, columns and vocabulary rows of each rank of a stage. Pure arithmetic on the shape of a model.
use std::ops::Range;

use gguf::Shape;

/// Columns are cut at multiples of this: the shortest block of the weight formats and of quantised activations.
pub const COLUMN_UNIT: usize = 32;

/// Why a model cannot be cut for the ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// A rank would hold no head, no column and no vocabulary row.
    #[error(
        "rank {rank} of {world} would hold nothing of this model \
         ({head_count} heads, {columns} feed-forward columns); use at most tp{most}"
    )]
    Nothing {
        /// The rank.
        rank: usize,
        /// Ranks requested.
        world: usize,
        /// Heads of the model.
        head_count: usize,
        /// Feed-forward columns of the model.
        columns: usize,
        /// Most ranks without an empty one.
        most: usize,
    },
    /// The last stage does not end with the last layer of the model.
    #[error(
        "the stages of the topology hold {end} layers, but the model has {block_count}; assign the topology again for this model"
    )]
    Layers {
        /// Layers of all stages.
        end: usize,
        /// Layers of the model.
        block_count: usize,
    },
}

/// The shard of one rank: its part of each layer of its stage, and of the output matrix on the last stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// Layers of its stage.
    pub layers: Range<usize>,
    /// Query heads; may be empty.
    pub heads: Range<usize>,
    /// KV heads that these query heads read; neighbouring ranks may hold the same one.
    pub heads_kv: Range<usize>,
    /// Feed-forward columns, of every expert if there are experts, cut at multiples of 32; may be empty.
    pub columns: Range<usize>,
    /// Rows of the output matrix; may be empty, and always is except on the last stage.
    pub vocabulary: Range<usize>,
}

impl ShardPlan {
    /// Whether its stage begins with the embedding.
    pub fn is_first_stage(&self) -> bool {
        self.layers.start == 0
    }

    /// Whether its stage ends with the output matrix.
    pub fn is_last_stage(&self, shape: &Shape) -> bool {
        self.layers.end == shape.block_count
    }
}

/// Cuts a model for the ranks of one stage with the given relative weights.
///
/// # Errors
/// [`CutError::Nothing`] if a rank would hold nothing.
pub fn cut(shape: &Shape, weights: &[u32]) -> Result<Vec<ShardPlan>, CutError> {
    cut_stage(shape, &(0..shape.block_count), weights)
}

/// Cuts a model for all ranks of a replica: the layers of each stage and the relative weights of its ranks.
///
/// # Errors
/// [`CutError::Layers`] if the stages do not end with the model's last layer, [`CutError::Nothing`] as [`cut`].
pub fn cut_stages(shape: &Shape, stages: &[(Range<usize>, Vec<u32>)]) -> Result<Vec<ShardPlan>, CutError> {
    let end = stages.last().map_or(0, |(layers, _)| layers.end);
    if end != shape.block_count {
        return Err(CutError::Layers { end, block_count: shape.block_count });
    }
    let plans = stages.iter().map(|(layers, weights)| cut_stage(shape, layers, weights));
    Ok(plans.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Cuts a stage's layers for its ranks with the given relative weights.
///
/// # Errors
/// As [`cut`].
pub fn cut_stage(shape: &Shape, layers: &Range<usize>, weights: &[u32]) -> Result<Vec<ShardPlan>, CutError> {
    let plans = cut_unchecked(shape, layers, weights);
    let Some(rank) = plans.iter().position(is_nothing) else { return Ok(plans) };
    let most = (1..weights.len())
        .rev()
        .find(|world| !cut_unchecked(shape, layers, &vec![1; *world]).iter().any(is_nothing))
        .unwrap_or(1);
    let (head_count, columns) = (shape.head_count, shape.feed_forward_length);
    Err(CutError::Nothing { rank, world: weights.len(), head_count, columns, most })
}

fn is_nothing(plan: &ShardPlan) -> bool {
    plan.heads.is_empty() && plan.columns.is_empty() && plan.vocabulary.is_empty()
}

fn cut_unchecked(shape: &Shape, layers: &Range<usize>, weights: &[u32]) -> Vec<ShardPlan> {
    // The fewest heads whose columns end at a block of 32: one for head lengths of 32, 64, 128; two for 80.
    let head_unit = (1..COLUMN_UNIT).find(|heads| (heads * shape.head_length).is_multiple_of(COLUMN_UNIT));
    let heads = split(shape.head_count, head_unit.unwrap_or(COLUMN_UNIT), weights);
    let columns = split(shape.feed_forward_length, COLUMN_UNIT, weights);
    let has_output = layers.end == shape.block_count;
    let vocabulary = split(if has_output { shape.vocabulary_length } else { 0 }, COLUMN_UNIT, weights);
    let group = shape.head_count / shape.head_count_kv;
    let parts = heads.into_iter().zip(columns).zip(vocabulary);
    parts
        .map(|((heads, columns), vocabulary)| {
            let heads_kv = if heads.is_empty() { 0..0 } else { heads.start / group..heads.end.div_ceil(group) };
            ShardPlan { layers: layers.clone(), heads, heads_kv, columns, vocabulary }
        })
        .collect()
}

/// Cuts `length` at multiples of `unit` so that each part is as close to its weight as the unit allows.
fn split(length: usize, unit: usize, weights: &[u32]) -> Vec<Range<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::Architecture;

    fn shape(head_count: usize, head_count_kv: usize, head_length: usize, feed_forward_length: usize) -> Shape {
        Shape {
            architecture: Architecture::Llama,
            name: String::new(),
            block_count: 2,
            context_length: 128,
            embedding_length: head_count * head_length,
            feed_forward_length,
            experts: None,
            head_count,
            head_count_kv,
            head_length,
            rope_dimension_count: head_length,
            rope_freq_base: 10_000.0,
            rope_scale_linear: 1.0,
            layer_norm_rms_epsilon: 1e-5,
            vocabulary_length: 2048,
            tied_output: true,
            has_rope_factors: false,
        }
    }

    #[track_caller]
    fn check(shape: &Shape, weights: &[u32]) {
        let plans = cut(shape, weights).expect("the model can be cut");
        let covers = |length: usize, unit: usize, part: fn(&ShardPlan) -> &Range<usize>| {
            let mut end = 0;
            for plan in &plans {
                assert_eq!(part(plan).start, end);
                end = part(plan).end;
                assert!(end == length || end.is_multiple_of(unit), "{end} is cut inside a unit of {unit}");
            }
            assert_eq!(end, length);
        };
        covers(shape.head_count, 1, |plan| &plan.heads);
        covers(shape.feed_forward_length, 32, |plan| &plan.columns);
        covers(shape.vocabulary_length, 32, |plan| &plan.vocabulary);
        let group = shape.head_count / shape.head_count_kv;
        for plan in &plans {
            assert!((plan.heads.end * shape.head_length).is_multiple_of(32), "attention is cut inside a block of 32");
            for head in plan.heads.clone() {
                assert!(plan.heads_kv.contains(&(head / group)), "head {head} has no KV head in {plan:?}");
            }
        }
    }

    #[test]
    fn every_part_is_held_once_and_heads_find_their_kv_head() {
        for world in 1..=8 {
            check(&shape(8, 4, 32, 768), &vec![1; world]);
            check(&shape(28, 4, 128, 18944), &vec![1; world]);
            check(&shape(4, 4, 80, 96), &vec![1; world]);
            check(&shape(2, 1, 64, 1000), &vec![1; world]);
        }
        check(&shape(8, 4, 32, 768), &[3, 2, 1]);
    }

    #[test]
    fn only_the_last_stage_holds_the_output() {
        let shape = shape(8, 4, 32, 768);
        let plans = cut_stages(&shape, &[(0..1, vec![1, 1]), (1..2, vec![3, 2, 1])]).expect("two layers, two stages");
        let layers: Vec<Range<usize>> = plans.iter().map(|plan| plan.layers.clone()).collect();
        assert_eq!(layers, [0..1, 0..1, 1..2, 1..2, 1..2]);
        assert!(plans[..2].iter().all(|plan| plan.vocabulary.is_empty() && plan.is_first_stage()));
        assert_eq!((plans[2].vocabulary.start, plans[4].vocabulary.end), (0, 2048));
        assert!(plans[2..].iter().all(|plan| plan.is_last_stage(&shape) && !plan.is_first_stage()));
        let error = cut_stages(&shape, &[(0..1, vec![1])]).expect_err("a layer is missing");
        assert_eq!(error, CutError::Layers { end: 1, block_count: 2 });
    }

    #[test]
    fn empty_rank_is_rejected_with_the_maximum_of_ranks() {
        let mut small = shape(2, 1, 32, 64);
        small.vocabulary_length = 96;
        let error = cut(&small, &[1; 8]).expect_err("eight ranks are too many");
        let CutError::Nothing { world: 8, most, .. } = error else { panic!("{error}") };
        assert!(cut(&small, &vec![1; most]).is_ok());
    }
}
