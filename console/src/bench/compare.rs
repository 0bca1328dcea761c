//! Two runs of a matrix against each other: what became worse by more than the noise that their repeats show. Pure.
use super::{
    cell::Cell,
    run::{Measured, Metric, Run},
    stats::{geometric_mean, median, spread},
};

/// Cells of one figure that are enough to judge all of them together.
const CELLS_MIN: usize = 4;

/// A figure of a cell in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The cell; `None`: all cells together (geometric mean of their changes).
    pub cell: Option<Cell>,
    /// The figure.
    pub metric: Metric,
    /// Its medians over the repeats; of all cells together 1 and the mean ratio.
    pub before: f64,
    /// See `before`.
    pub after: f64,
    /// Share by which it became worse; below 0: better.
    pub worse_by: f64,
    /// What the repeats of either run lie apart, at least the floor.
    pub noise: f64,
}

impl Change {
    /// Whether it became worse by more than the noise.
    pub fn is_regression(&self) -> bool {
        self.worse_by > self.noise
    }

    /// Whether it became better by more than the noise.
    pub fn is_improvement(&self) -> bool {
        -self.worse_by > self.noise
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// All figures that both have.
    pub changes: Vec<Change>,
    /// Cells that only the first has, or that failed in the second alone.
    pub lost: Vec<Cell>,
}

impl Comparison {
    /// Whether something became worse.
    pub fn is_regression(&self) -> bool {
        !self.lost.is_empty() || self.changes.iter().any(Change::is_regression)
    }
}

/// Compares what both runs measured; `floor` is the share that counts as noise in any case.
pub fn compare(before: &Run, after: &Run, floor: f64) -> Comparison {
    let mut comparison = Comparison::default();
    for one in before.cells.iter().filter(|measured| measured.skipped.is_none()) {
        let other = after.of(&one.cell).filter(|measured| measured.skipped.is_none());
        let fails = |other: &Measured| other.failed() > 0 && one.failed() == 0;
        let Some(other) = other.filter(|other| !fails(other)) else {
            comparison.lost.push(one.cell.clone());
            continue;
        };
        comparison
            .changes
            .extend(Metric::of(one.cell.phase).iter().filter_map(|metric| change(one, other, *metric, floor)));
    }
    for metric in [Metric::Ttft, Metric::Tpot, Metric::Throughput] {
        comparison.changes.extend(together(&comparison.changes, metric, floor));
    }
    comparison
}

fn change(one: &Measured, other: &Measured, metric: Metric, floor: f64) -> Option<Change> {
    let (before, after) = (one.values(metric), other.values(metric));
    Some(Change { cell: Some(one.cell.clone()), ..judge(&before, &after, metric, floor)? })
}

/// Judges values of repeats against each other.
pub fn judge(before: &[f64], after: &[f64], metric: Metric, floor: f64) -> Option<Change> {
    let noise = spread(before).max(spread(after)).max(floor);
    let (before, after) = (median(before)?, median(after)?);
    let ratio = if metric.is_more_better() { before / after } else { after / before };
    Some(Change { cell: None, metric, before, after, worse_by: ratio - 1.0, noise })
}

/// All cells together: single ones may hide a small loss in their noise, of which the mean of many has less.
fn together(changes: &[Change], metric: Metric, floor: f64) -> Option<Change> {
    let of: Vec<&Change> = changes.iter().filter(|change| change.metric == metric).collect();
    if of.len() < CELLS_MIN {
        return None;
    }
    let after = geometric_mean(&of.iter().map(|change| 1.0 + change.worse_by).collect::<Vec<_>>())?;
    let mean = of.iter().map(|change| change.noise).sum::<f64>() / of.len() as f64;
    let noise = (mean / (of.len() as f64).sqrt()).max(floor);
    Some(Change { cell: None, metric, before: 1.0, after, worse_by: after - 1.0, noise })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{cell::Phase, run::tests::run};

    const FLOOR: f64 = 0.05;

    /// Repeats that lie so far apart.
    fn noisy(apart: f64, slower: impl Fn(&Cell) -> f64) -> Run {
        run(|cell, repeat| 10.0 * slower(cell) * (1.0 + apart * (f64::from(repeat) - 1.0) / 2.0))
    }

    #[test]
    fn the_same_is_no_regression_and_a_slower_cell_is_one_that_is_named() {
        let before = noisy(0.04, |_| 1.0);
        assert!(!compare(&before, &noisy(0.02, |_| 1.04), FLOOR).is_regression());
        let is_slow = |cell: &Cell| cell.layout == "tp2" && cell.phase == Phase::Prefill && cell.concurrency == 4;
        let found = compare(&before, &noisy(0.02, |cell| if is_slow(cell) { 1.2 } else { 1.0 }), FLOOR);
        let worse: Vec<_> = found.changes.iter().filter(|change| change.is_regression()).collect();
        assert_eq!(worse.len(), 2);
        assert!(worse.iter().all(|change| change.cell.as_ref().is_some_and(is_slow)), "{worse:?}");
        assert!((worse[0].worse_by - 0.2).abs() < 1e-9 && found.is_regression());
    }

    #[test]
    fn within_the_noise_of_its_repeats_a_cell_is_no_regression_but_all_together_are() {
        let before = noisy(0.3, |_| 1.0);
        let slower = compare(&before, &noisy(0.3, |_| 1.15), FLOOR);
        let worse: Vec<_> = slower.changes.iter().filter(|change| change.is_regression()).collect();
        assert!(!worse.is_empty() && worse.iter().all(|change| change.cell.is_none()), "{worse:?}");
        assert!(!compare(&before, &noisy(0.3, |_| 1.04), FLOOR).is_regression());
        let faster = compare(&noisy(0.0, |_| 1.0), &noisy(0.0, |_| 0.8), FLOOR);
        assert!(!faster.is_regression() && faster.changes.iter().all(Change::is_improvement));
    }

    #[test]
    fn a_cell_that_is_missing_or_fails_is_a_regression() {
        let before = noisy(0.0, |_| 1.0);
        let mut after = before.clone();
        let missing = after.cells.pop().map(|measured| measured.cell);
        after.cells[0].repeats[1].completed = 3;
        let found = compare(&before, &after, FLOOR);
        assert_eq!(found.lost, [after.cells[0].cell.clone(), missing.expect("there are cells")]);
        assert!(found.is_regression());
        // What was left out for a reason in both is compared in neither.
        let mut skipped = before.clone();
        skipped.cells[0].skipped = Some("too long".into());
        assert!(!compare(&skipped, &skipped, FLOOR).is_regression());
    }
}
