//! Splits a model's layers among the stages of a pipeline so that the slowest stage is as fast as possible. Pure.
use std::ops::Range;

use models::ModelSpec;

/// The layers of each stage, for layers of cost `layers`, an output of cost `output` on the last stage, and stages of
/// speed `speeds`. Costs are in any common unit (bytes read), speeds are relative. `None`: more stages than layers.
///
/// Minimises the longest time of a stage; of equal splits, it prefers more layers on later stages, because the first
/// stage also computes the embedding.
pub fn split_layers(layers: &[u64], output: u64, speeds: &[u64]) -> Option<Vec<Range<u32>>> {
    split_layers_where(layers, output, speeds, |_, _| true)
}

/// As [`split_layers`] for the layers of a model: a layer that reads the keys of another one is in the same stage.
pub fn split_model(spec: &ModelSpec, layers: &[u64], output: u64, speeds: &[u64]) -> Option<Vec<Range<u32>>> {
    split_layers_where(layers, output, speeds, |_, layers| spec.can_begin_stage(layers.start))
}

/// As [`split_layers`], only for splits in which each stage fits: `fits(stage, layers)`. `None`: there is none.
pub fn split_layers_where(
    layers: &[u64],
    output: u64,
    speeds: &[u64],
    fits: impl Fn(usize, Range<usize>) -> bool,
) -> Option<Vec<Range<u32>>> {
    let (count, stages) = (layers.len(), speeds.len());
    if stages == 0 || stages > count {
        return None;
    }
    let sums: Vec<u64> = std::iter::once(0)
        .chain(layers.iter().scan(0_u64, |sum, cost| {
            *sum = sum.saturating_add(*cost);
            Some(*sum)
        }))
        .collect();
    let time = |stage: usize, begin: usize, end: usize| {
        let extra = if stage + 1 == stages { output } else { 0 };
        if !fits(stage, begin..end) {
            return f64::INFINITY;
        }
        (sums[end] - sums[begin]).saturating_add(extra) as f64 / speeds[stage].max(1) as f64
    };
    // longest[stage][end]: the longest time if the stages up to this one hold the layers before `end`, and the start of
    // the stage.
    let mut longest = vec![vec![(f64::INFINITY, 0); count + 1]; stages];
    for (end, place) in longest[0].iter_mut().enumerate().skip(1) {
        *place = (time(0, 0, end), 0);
    }
    for stage in 1..stages {
        for end in stage + 1..=count {
            let candidates =
                (stage..end).map(|begin| (longest[stage - 1][begin].0.max(time(stage, begin, end)), begin));
            longest[stage][end] =
                candidates.fold((f64::INFINITY, 0), |best, one| if one.0 < best.0 { one } else { best });
        }
    }
    if longest[stages - 1][count].0.is_infinite() {
        return None;
    }
    let mut end = count;
    let mut split = Vec::with_capacity(stages);
    for stage in (0..stages).rev() {
        let begin = longest[stage][end].1;
        split.push(begin as u32..end as u32);
        end = begin;
    }
    split.reverse();
    Some(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(layers: &[u64], output: u64, speeds: &[u64]) -> Vec<u32> {
        let split = split_layers(layers, output, speeds).expect("there are layers for all stages");
        let mut end = 0;
        for stage in &split {
            assert!(stage.start == end && stage.end > stage.start, "{split:?}");
            end = stage.end;
        }
        assert_eq!((split.len(), end as usize), (speeds.len(), layers.len()));
        split.iter().map(|stage| stage.end - stage.start).collect()
    }

    #[test]
    fn equal_layers_are_split_evenly_counting_the_output() {
        assert_eq!(check(&[1; 8], 0, &[1; 4]), [2, 2, 2, 2]);
        assert_eq!(check(&[10; 22], 80, &[1; 2]), [15, 7]);
        assert_eq!(check(&[10; 7], 0, &[1; 7]), [1; 7]);
        assert_eq!(check(&[5, 1, 1, 1, 1, 1], 0, &[1; 2]), [1, 5]);
    }

    #[test]
    fn a_faster_stage_holds_more_layers() {
        assert_eq!(check(&[1; 12], 0, &[3, 2, 1]), [6, 4, 2]);
        assert_eq!(check(&[1; 12], 0, &[1, 5]), [2, 10]);
    }

    #[test]
    fn a_stage_that_is_full_leaves_layers_to_the_others() {
        let within =
            |most: [usize; 2]| split_layers_where(&[1; 8], 0, &[3, 1], |stage, layers| layers.len() <= most[stage]);
        assert_eq!(within([8, 8]), Some(vec![0..6, 6..8]));
        assert_eq!(within([3, 8]), Some(vec![0..3, 3..8]));
        assert_eq!(within([3, 4]), None);
    }

    #[test]
    fn more_stages_than_layers_are_refused() {
        assert_eq!(split_layers(&[1; 3], 0, &[1; 4]), None);
        assert_eq!(split_layers(&[1; 3], 0, &[]), None);
    }
}
