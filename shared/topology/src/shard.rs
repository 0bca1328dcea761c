//! The heads, columns and vocabulary rows of each rank of a stage. Pure arithmetic on a model's spec.
use std::ops::Range;

use models::{Cut, LayerSpec, ModelSpec, Share, TensorSpec};

pub use crate::columns::COLUMN_UNIT;
use crate::columns::{ExpertPart, expert_parts, split};

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
    /// A stage begins between a layer and another one that reads its keys.
    #[error(
        "a stage begins with layer {first}, but a layer of that stage reads the keys of an earlier one; \
         begin it at or before layer {latest}"
    )]
    Keys {
        /// First layer of the stage.
        first: usize,
        /// The latest layer before it with which a stage can begin.
        latest: usize,
    },
}

/// The shard of one rank: its part of each layer of its stage, and of the output matrix on the last stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// Layers of its stage.
    pub layers: Range<usize>,
    /// Its part of each kind of layer ([`ModelSpec::kinds`]).
    pub cuts: Vec<LayerCut>,
    /// Rows of the output matrix; may be empty, and always is except on the last stage.
    pub vocabulary: Range<usize>,
}

/// A rank's part of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCut {
    /// Units of the mixer, as query heads ([`models::Mixer::units`]); may be empty.
    pub heads: Range<usize>,
    /// KV heads that these query heads read; neighbouring ranks may hold the same one.
    pub heads_kv: Range<usize>,
    /// Feed-forward columns, of every expert if there are experts, cut at multiples of 32; may be empty.
    pub columns: Range<usize>,
    /// The experts that it holds so many columns of, if their blocks are too long for a part of each.
    pub experts: Option<Vec<ExpertPart>>,
    /// Columns of the shared expert, cut likewise.
    pub shared: Range<usize>,
    /// The rank in its stage. The first one alone holds biases of sums.
    pub rank: usize,
    /// Ranks of the stage.
    pub ranks: usize,
}

/// Some of a tensor's matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// Consecutive ones.
    Consecutive(Range<usize>),
    /// Experts, each with the place of its rows or columns.
    Experts(Vec<ExpertPart>),
}

impl Matrices {
    /// Number of matrices.
    pub fn len(&self) -> usize {
        match self {
            Self::Consecutive(range) => range.len(),
            Self::Experts(parts) => parts.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The part of a tensor that a rank holds: as many rows and columns of each of some of its matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// Matrices.
    pub matrices: Matrices,
    /// Rows of each matrix.
    pub rows: Ranges,
    /// Columns of each matrix.
    pub columns: Ranges,
}

/// Ascending ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<usize>>);

impl FromIterator<Range<usize>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        let mut all: Vec<Range<usize>> = Vec::new();
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match all.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => all.push(range),
            }
        }
        Self(all)
    }
}

impl Ranges {
    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        self.0.iter().cloned()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same ranges further on.
    #[must_use]
    pub fn behind(&self, first: usize) -> Self {
        self.0.iter().map(|range| first + range.start..first + range.end).collect()
    }
}

impl ShardPlan {
    /// Whether its stage begins with the embedding.
    pub fn is_first_stage(&self) -> bool {
        self.layers.start == 0
    }

    /// Whether its stage ends with the output matrix.
    pub fn is_last_stage(&self, spec: &ModelSpec) -> bool {
        self.layers.end == spec.block_count()
    }

    /// Its part of a layer, numbered in the whole model.
    pub fn cut_of(&self, spec: &ModelSpec, layer: usize) -> &LayerCut {
        &self.cuts[usize::from(spec.layers[layer])]
    }

    /// Floats of a sequence's state in a layer, numbered in the whole model; 0 if it has none.
    pub fn state_length(&self, spec: &ModelSpec, layer: usize) -> usize {
        spec.layer(layer).mixer.state_length(self.cut_of(spec, layer).heads.len())
    }

    /// Floats with which a token changes a sequence's state in a layer; 0 if it has none.
    pub fn input_length(&self, spec: &ModelSpec, layer: usize) -> usize {
        spec.layer(layer).mixer.input_length(self.cut_of(spec, layer).heads.len())
    }

    /// Its part of a tensor outside the layers; `None` if it reads the rows from the file.
    pub fn part(&self, tensor: &TensorSpec) -> Option<TensorPart> {
        part(tensor, &LayerCut::default(), (&self.vocabulary, &self.layers))
    }
}

impl LayerCut {
    /// Its part of a layer's tensor; `None` if it reads the rows from the file.
    pub fn part(&self, tensor: &TensorSpec) -> Option<TensorPart> {
        part(tensor, self, (&(0..0), &(0..0)))
    }
}

fn part(tensor: &TensorSpec, cut: &LayerCut, outside: (&Range<usize>, &Range<usize>)) -> Option<TensorPart> {
    let [columns, rows, count] = tensor.dimensions;
    let [all_rows, all_columns] = [rows, columns].map(|length| std::iter::once(0..length).collect());
    let matrices = match &cut.experts {
        Some(parts) if tensor.role.is_per_expert() => Matrices::Experts(parts.clone()),
        _ => Matrices::Consecutive(0..count),
    };
    let whole = TensorPart { matrices, rows: all_rows, columns: all_columns };
    match tensor.cut {
        Cut::OnDisk => None,
        Cut::Once if cut.rank > 0 => None,
        Cut::Whole | Cut::Once => Some(whole),
        Cut::Rows(share) => Some(TensorPart { rows: shared(share, rows, cut, outside), ..whole }),
        Cut::Columns(share) => Some(TensorPart { columns: shared(share, columns, cut, outside), ..whole }),
        Cut::Matrices => Some(TensorPart { matrices: Matrices::Consecutive(cut.heads.clone()), ..whole }),
    }
}

/// A rank's part of `length` rows or columns.
fn shared(share: Share, length: usize, cut: &LayerCut, outside: (&Range<usize>, &Range<usize>)) -> Ranges {
    let (vocabulary, layers) = outside;
    let range = match share {
        Share::Units(segments) => return of_units(length, segments.lengths(), cut),
        Share::Alternating(length) => {
            return cut.heads.clone().map(|unit| 2 * unit * length..(2 * unit + 1) * length).collect();
        }
        Share::HeadsKv(length) => cut.heads_kv.start * length..cut.heads_kv.end * length,
        Share::FeedForward => cut.columns.clone(),
        Share::Shared => cut.shared.clone(),
        Share::Vocabulary => vocabulary.clone(),
        Share::Layers(length) => layers.start * length..layers.end * length,
    };
    std::iter::once(range).collect()
}

/// A rank's units in each segment of `length` rows or columns.
fn of_units(length: usize, segments: &[usize], cut: &LayerCut) -> Ranges {
    let units = length / segments.iter().sum::<usize>().max(1);
    let begins = segments.iter().scan(0, |begin, segment| {
        let own = *begin;
        *begin += units * segment;
        Some(own)
    });
    let ranges = begins.zip(segments);
    ranges.map(|(begin, segment)| begin + cut.heads.start * segment..begin + cut.heads.end * segment).collect()
}

/// Cuts a model for the ranks of one stage with the given relative weights.
///
/// # Errors
/// [`CutError::Nothing`] if a rank would hold nothing.
pub fn cut(spec: &ModelSpec, weights: &[u32]) -> Result<Vec<ShardPlan>, CutError> {
    cut_stage(spec, &(0..spec.block_count()), weights)
}

/// Cuts a model for all ranks of a replica: the layers of each stage and the relative weights of its ranks.
///
/// # Errors
/// [`CutError::Layers`] if the stages do not end with the model's last layer, [`CutError::Keys`] if a layer's keys are in
/// another stage, [`CutError::Nothing`] as [`cut`].
pub fn cut_stages(spec: &ModelSpec, stages: &[(Range<usize>, Vec<u32>)]) -> Result<Vec<ShardPlan>, CutError> {
    let end = stages.last().map_or(0, |(layers, _)| layers.end);
    if end != spec.block_count() {
        return Err(CutError::Layers { end, block_count: spec.block_count() });
    }
    if let Some((layers, _)) = stages.iter().find(|(layers, _)| !spec.can_begin_stage(layers.start)) {
        let first = layers.start;
        let latest = (0..first).rev().find(|first| spec.can_begin_stage(*first)).unwrap_or(0);
        return Err(CutError::Keys { first, latest });
    }
    let plans = stages.iter().map(|(layers, weights)| cut_stage(spec, layers, weights));
    Ok(plans.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Cuts a stage's layers for its ranks with the given relative weights.
///
/// # Errors
/// As [`cut`].
pub fn cut_stage(spec: &ModelSpec, layers: &Range<usize>, weights: &[u32]) -> Result<Vec<ShardPlan>, CutError> {
    let plans = cut_unchecked(spec, layers, weights);
    let Some(rank) = plans.iter().position(is_nothing) else { return Ok(plans) };
    let most = (1..weights.len())
        .rev()
        .find(|world| !cut_unchecked(spec, layers, &vec![1; *world]).iter().any(is_nothing))
        .unwrap_or(1);
    let LayerSpec { mixer, feed_forward, .. } = spec.layer(layers.start);
    let ((head_count, _), columns) = (mixer.units(), feed_forward.columns());
    Err(CutError::Nothing { rank, world: weights.len(), head_count, columns, most })
}

fn is_nothing(plan: &ShardPlan) -> bool {
    plan.cuts.iter().all(|cut| cut.heads.is_empty() && cut.columns.is_empty()) && plan.vocabulary.is_empty()
}

fn cut_unchecked(spec: &ModelSpec, layers: &Range<usize>, weights: &[u32]) -> Vec<ShardPlan> {
    let has_output = layers.end == spec.block_count();
    let vocabulary =
        split(if has_output && spec.generates() { spec.vocabulary_length } else { 0 }, COLUMN_UNIT, weights);
    let kinds: Vec<Vec<LayerCut>> = spec.kinds.iter().map(|kind| cut_layer(kind, weights)).collect();
    let plans = vocabulary.into_iter().enumerate().map(|(rank, vocabulary)| {
        let cuts = kinds.iter().map(|cuts| cuts[rank].clone()).collect();
        ShardPlan { layers: layers.clone(), cuts, vocabulary }
    });
    plans.collect()
}

/// Each rank's part of a layer.
fn cut_layer(layer: &LayerSpec, weights: &[u32]) -> Vec<LayerCut> {
    let (units, length) = layer.mixer.units();
    // The fewest heads whose columns end at a block of 32: one for head lengths of 32, 64, 128; two for 80.
    let together = (1..COLUMN_UNIT).find(|units| (units * length).is_multiple_of(COLUMN_UNIT));
    let heads = split(units, together.unwrap_or(COLUMN_UNIT), weights);
    let experts = layer.feed_forward.experts().and_then(|experts| expert_parts(experts, weights));
    let columns = match &experts {
        Some((block, parts)) => parts.iter().map(|parts| 0..if parts.is_empty() { 0 } else { *block }).collect(),
        None => split(layer.feed_forward.columns(), COLUMN_UNIT, weights),
    };
    let group = layer.mixer.kv_heads().map(|heads| heads.group);
    let shared = split(layer.feed_forward.shared_columns(), COLUMN_UNIT, weights);
    let parts = heads.into_iter().zip(columns).zip(shared).enumerate();
    let cuts = parts.map(|(rank, ((heads, columns), shared))| {
        let heads_kv = match group.filter(|_| !heads.is_empty()) {
            Some(group) => heads.start / group..heads.end.div_ceil(group),
            None => 0..0,
        };
        let experts = experts.as_ref().map(|(_, parts)| parts[rank].clone());
        LayerCut { heads, heads_kv, columns, experts, shared, rank, ranks: weights.len() }
    });
    cuts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use models::{Activation, AttentionSpec, DenseSpec, FeedForward, TensorRole};

    fn spec(head_count: usize, head_count_kv: usize, head_length: usize, columns: usize) -> ModelSpec {
        let attention = AttentionSpec { rope: None, ..AttentionSpec::new(head_count, head_count_kv, head_length) };
        let dense = DenseSpec { columns, activation: Activation::Silu, is_fused: false };
        let layer = LayerSpec::attending(attention, FeedForward::Dense(dense));
        let spec = ModelSpec {
            architecture: "llama".into(),
            name: String::new(),
            context_length: 128,
            embedding_length: head_count * head_length,
            vocabulary_length: 2048,
            norm: models::NormKind::Rms,
            norm_epsilon: 1e-5,
            embedding_scale: 1.0,
            tied_output: true,
            logit_scale: 1.0,
            logit_cap: None,
            pooling: None,
            pooled_columns: 0,
            output_norm: models::OutputNorm::Output,
            ropes: Vec::new(),
            kinds: Vec::new(),
            layers: Vec::new(),
            predictor: None,
        };
        spec.with_layers([layer.clone(), layer])
    }

    #[track_caller]
    fn check(spec: &ModelSpec, weights: &[u32]) {
        let LayerSpec { mixer, feed_forward, .. } = spec.layer(0);
        let attention = mixer.attention().expect("it has attention");
        let plans = cut(spec, weights).expect("the model can be cut");
        let covers = |length: usize, unit: usize, part: fn(&ShardPlan) -> &Range<usize>| {
            let mut end = 0;
            for plan in &plans {
                assert_eq!(part(plan).start, end);
                end = part(plan).end;
                assert!(end == length || end.is_multiple_of(unit), "{end} is cut inside a unit of {unit}");
            }
            assert_eq!(end, length);
        };
        covers(attention.head_count, 1, |plan| &plan.cuts[0].heads);
        covers(feed_forward.columns(), 32, |plan| &plan.cuts[0].columns);
        covers(spec.vocabulary_length, 32, |plan| &plan.vocabulary);
        for plan in plans.iter().map(|plan| &plan.cuts[0]) {
            assert!(
                (plan.heads.end * attention.head_length).is_multiple_of(32),
                "attention is cut inside a block of 32"
            );
            for head in plan.heads.clone() {
                assert!(plan.heads_kv.contains(&(head / attention.group())), "head {head} has no KV head in {plan:?}");
            }
        }
    }

    #[test]
    fn every_part_is_held_once_and_heads_find_their_kv_head() {
        for world in 1..=8 {
            check(&spec(8, 4, 32, 768), &vec![1; world]);
            check(&spec(28, 4, 128, 18944), &vec![1; world]);
            check(&spec(4, 4, 80, 96), &vec![1; world]);
            check(&spec(2, 1, 64, 1000), &vec![1; world]);
        }
        check(&spec(8, 4, 32, 768), &[3, 2, 1]);
    }

    #[test]
    fn only_the_last_stage_holds_the_output() {
        let spec = spec(8, 4, 32, 768);
        let plans = cut_stages(&spec, &[(0..1, vec![1, 1]), (1..2, vec![3, 2, 1])]).expect("two layers, two stages");
        let layers: Vec<Range<usize>> = plans.iter().map(|plan| plan.layers.clone()).collect();
        assert_eq!(layers, [0..1, 0..1, 1..2, 1..2, 1..2]);
        assert!(plans[..2].iter().all(|plan| plan.vocabulary.is_empty() && plan.is_first_stage()));
        assert_eq!((plans[2].vocabulary.start, plans[4].vocabulary.end), (0, 2048));
        assert!(plans[2..].iter().all(|plan| plan.is_last_stage(&spec) && !plan.is_first_stage()));
        let error = cut_stages(&spec, &[(0..1, vec![1])]).expect_err("a layer is missing");
        assert_eq!(error, CutError::Layers { end: 1, block_count: 2 });
    }

    #[test]
    fn empty_rank_is_rejected_with_the_maximum_of_ranks() {
        let mut small = spec(2, 1, 32, 64);
        small.vocabulary_length = 96;
        let error = cut(&small, &[1; 8]).expect_err("eight ranks are too many");
        let CutError::Nothing { world: 8, most, .. } = error else { panic!("{error}") };
        assert!(cut(&small, &vec![1; most]).is_ok());
    }

    #[test]
    fn ranks_divide_the_heads_that_read_one_latent() {
        let known = models::known::MODELS.iter().find(|model| model.name == "glm-4.7-flash").expect("it is known");
        let spec = known.spec();
        let tensors = spec.layer_tensors(1);
        let of_heads = tensors.iter().find(|tensor| tensor.role == TensorRole::LatentQuery).expect("it has heads");
        for world in 1..=8 {
            let plans = cut(&spec, &vec![1; world]).expect("each rank has columns");
            let cuts = plans.iter().map(|plan| plan.cut_of(&spec, 1));
            let parts = cuts.clone().map(|cut| cut.part(of_heads).expect("it is not on the disk").matrices);
            let wanted = cuts.clone().map(|cut| Matrices::Consecutive(cut.heads.clone()));
            assert!(parts.eq(wanted));
            assert_eq!(cuts.clone().flat_map(|cut| cut.heads.clone()).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
            assert!(cuts.clone().all(|cut| cut.heads_kv == (0..1)));
        }
    }

    #[test]
    fn layers_stay_in_the_stage_whose_keys_they_read() {
        let spec = models::known::MODELS.iter().find(|model| model.name == "gemma-4-e2b").expect("it is known").spec();
        // Layers 15 to 34 read the keys of layers 13 and 14.
        assert_eq!(spec.stages_max(), 14);
        let stages = |second: usize| [(0..second, vec![1; 2]), (second..35, vec![1; 2])];
        assert!(cut_stages(&spec, &stages(13)).is_ok());
        let error = cut_stages(&spec, &stages(20)).expect_err("layer 20 reads the keys of an earlier stage");
        assert_eq!(error, CutError::Keys { first: 20, latest: 13 });
        let split = |stages: usize| crate::split_model(&spec, &[1; 35], 0, &vec![1; stages]);
        assert_eq!(split(2), Some(vec![0..13, 13..35]));
        assert!(split(14).is_some() && split(15).is_none());
    }
}
