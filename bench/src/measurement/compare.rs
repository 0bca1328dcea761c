//! Compares two runs of a matrix and finds the figures that became worse by more than chance. Many figures are tested
//! at once, each from few repeats, so the deviation of repeats is estimated from all figures of a metric, and the bound
//! grows with the number of figures. Pure.
use super::{
    cell::Cell,
    run::{Measured, Metric, Run},
    stats::{deviation, median, middle_mean, spread},
};

/// Least number of cells with a metric to judge them together.
const CELLS_MIN: usize = 4;
/// Probability that two runs of the same build are reported as different, if repeats deviate only by chance.
const FALSE_ALARMS: f64 = 0.05;
/// A cell whose own repeats deviate more than those of other cells is judged by its own deviation times this factor,
/// because the estimate from few repeats is uncertain.
const OWN: f64 = 1.3;
/// The floor for the mean of all cells, relative to the floor for one cell: the mean is more certain.
const TOGETHER: f64 = 0.5;

/// The change of a metric of a cell between two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The cell; `None` for all cells (mean of their changes without the outer fifths).
    pub cell: Option<Cell>,
    /// The metric.
    pub metric: Metric,
    /// Median of the repeats in the first run. For all cells: 1.
    pub before: f64,
    /// Median of the repeats in the second run. For all cells: the mean ratio.
    pub after: f64,
    /// Relative deterioration; negative if it improved.
    pub worse_by: f64,
    /// Largest relative change that chance explains, at least the floor.
    pub noise: f64,
}

impl Change {
    /// Whether the metric became worse by more than the noise.
    pub fn is_regression(&self) -> bool {
        self.worse_by > self.noise
    }

    /// Whether the metric improved by more than the noise.
    pub fn is_improvement(&self) -> bool {
        -self.worse_by > self.noise
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// All metrics of cells that both runs measured.
    pub changes: Vec<Change>,
    /// Cells that only the first run measured, or that have failed requests only in the second run.
    pub lost: Vec<Cell>,
}

impl Comparison {
    /// Whether a cell was lost or a metric became worse.
    pub fn is_regression(&self) -> bool {
        !self.lost.is_empty() || self.changes.iter().any(Change::is_regression)
    }
}

/// A metric of a cell before it is judged. Uses logarithms, which treat a ratio and its inverse alike.
#[derive(Debug)]
struct Figure {
    change: Change,
    /// Logarithm of the deterioration.
    log: f64,
    /// Variance of the logarithms of the repeats within the runs; `None` with single repeats.
    variance: Option<f64>,
    /// Standard deviation of a change of medians, in standard deviations of a repeat.
    share: f64,
}

impl Figure {
    fn new(one: &Measured, other: &Measured, metric: Metric) -> Option<Self> {
        let (before, after) = (one.values(metric), other.values(metric));
        let mut change = judge(&before, &after, metric, 0.0)?;
        change.cell = Some(one.cell.clone());
        let log = (1.0 + change.worse_by).ln();
        let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
        let squares = |logs: Vec<f64>| {
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
        };
        let degrees = before.len() + after.len() - 2;
        let variance = (degrees > 0).then(|| (squares(logs(&before)) + squares(logs(&after))) / degrees as f64);
        // The variance of a median of few values is at most pi / 2 times that of their mean.
        let share = (0.5 * std::f64::consts::PI * (1.0 / before.len() as f64 + 1.0 / after.len() as f64)).sqrt();
        Some(Self { change, log, variance, share })
    }
}

/// Compares two runs. `floor` is the relative change that always counts as noise.
pub fn compare(before: &Run, after: &Run, floor: f64) -> Comparison {
    let mut comparison = Comparison::default();
    let mut figures = Vec::new();
    for one in before.cells.iter().filter(|measured| measured.skipped.is_none()) {
        let other = after.of(&one.cell).filter(|measured| measured.skipped.is_none());
        let Some(other) = other.filter(|other| other.failed() == 0 || one.failed() > 0) else {
            comparison.lost.push(one.cell.clone());
            continue;
        };
        figures.extend(Metric::of(one.cell.phase).iter().filter_map(|metric| Figure::new(one, other, *metric)));
    }
    let bound = deviations(figures.len());
    let mut together = Vec::new();
    for metric in [Metric::Ttft, Metric::Tpot, Metric::Throughput] {
        let mut of: Vec<&mut Figure> = figures.iter_mut().filter(|figure| figure.change.metric == metric).collect();
        let common = common_deviation(&of);
        for figure in &mut of {
            let own = figure.variance.map_or(0.0, |variance| OWN * figure.share * variance.sqrt());
            figure.change.noise = (bound * common.max(own)).exp_m1().max(floor);
        }
        together.extend(all_together(&of, metric, common, floor));
    }
    comparison.changes.extend(figures.into_iter().map(|figure| figure.change));
    comparison.changes.extend(together);
    comparison
}

/// The number of standard deviations that any of `count` normal variables exceeds with at most the probability
/// [`FALSE_ALARMS`]: Chernoff's bound, which is slightly above the quantile because deviations are estimated.
fn deviations(count: usize) -> f64 {
    (2.0 * (count.max(1) as f64 / FALSE_ALARMS).ln()).sqrt()
}

/// The standard deviation of the changes of one metric: that of the repeats, or that between the cells if runs differ
/// more than the repeats within them. Medians, so that a few cells that changed or were disturbed do not widen it.
fn common_deviation(figures: &[&mut Figure]) -> f64 {
    let within = |figure: &&mut Figure| figure.variance.map(|variance| figure.share * figure.share * variance);
    let variances: Vec<f64> = figures.iter().filter_map(within).collect();
    // The median of a variance with four degrees of freedom is 0.84 of its mean.
    let within = median(&variances).map_or(0.0, |variance| (variance / 0.84).sqrt());
    if figures.len() < CELLS_MIN {
        return within;
    }
    within.max(deviation(&figures.iter().map(|figure| figure.log).collect::<Vec<_>>()))
}

/// Compares the repeats of two measurements; `None` if either has no values.
pub fn judge(before: &[f64], after: &[f64], metric: Metric, floor: f64) -> Option<Change> {
    let noise = spread(before).max(spread(after)).max(floor);
    let (before, after) = (median(before)?, median(after)?);
    let ratio = if metric.is_more_better() { before / after } else { after / before };
    Some(Change { cell: None, metric, before, after, worse_by: ratio - 1.0, noise })
}

/// The change of all cells together: the mean has less noise, so it shows small losses that single cells hide.
fn all_together(figures: &[&mut Figure], metric: Metric, common: f64, floor: f64) -> Option<Change> {
    if figures.len() < CELLS_MIN {
        return None;
    }
    let after = middle_mean(&figures.iter().map(|figure| figure.log).collect::<Vec<_>>())?.exp();
    // Three means are judged. Without the outer fifths, a mean deviates by a tenth more.
    let noise = deviations(3) * 1.1 * common / (figures.len() as f64).sqrt();
    let noise = noise.exp_m1().max(TOGETHER * floor);
    Some(Change { cell: None, metric, before: 1.0, after, worse_by: after - 1.0, noise })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::{
        cell::Phase,
        run::tests::{run, run_of},
        stats::Random,
    };

    const FLOOR: f64 = 0.05;

    /// A run whose repeats have the spread `apart`.
    fn noisy(apart: f64, slower: impl Fn(&Cell) -> f64) -> Run {
        run(|cell, repeat| 10.0 * slower(cell) * (1.0 + apart * (f64::from(repeat) - 1.0) / 2.0))
    }

    /// Random deviation of repeats.
    #[derive(Clone, Copy, Debug)]
    enum Noise {
        /// Normal with this standard deviation in all cells.
        Even(f64),
        /// Normal, with half to twice this standard deviation, depending on the cell.
        Uneven(f64),
        /// Normal, and one repeat in ten takes up to a half longer.
        Disturbed(f64),
        /// Normal, with a second deviation of the same size that all repeats of a cell in a run share, as from other
        /// load on the machine.
        Shifted(f64),
    }

    /// A matrix of 64 figures and three means. `slower`: factor of each cell.
    fn measured(noise: Noise, random: &mut Random, slower: impl Fn(&Cell) -> f64) -> Run {
        let mut values: Vec<f64> = Vec::new();
        let normal =
            |random: &mut Random| (-2.0 * random.share().ln()).sqrt() * (std::f64::consts::TAU * random.share()).cos();
        for cell in 0..32 {
            let shift = normal(random);
            for _ in 0..3 {
                let each = normal(random);
                values.push(match noise {
                    Noise::Even(by) => by * each,
                    Noise::Uneven(by) => by * each * 2.0_f64.powf(f64::from(cell % 3) - 1.0),
                    Noise::Disturbed(by) if random.share() < 0.1 => by * each + 0.4 * random.share(),
                    Noise::Disturbed(by) => by * each,
                    Noise::Shifted(by) => by * (each + shift),
                });
            }
        }
        let values = std::cell::RefCell::new(values.into_iter());
        run_of(vec![64, 256], |cell, _| {
            let value = values.borrow_mut().next().expect("a value for each repeat");
            10.0 * slower(cell) * value.exp()
        })
    }

    /// The share of 1000 seeded pairs of matrices that are reported as a regression if the second is slower by
    /// `slower`.
    fn found(noise: Noise, slower: impl Fn(&Cell) -> f64) -> f64 {
        let regressions = (1..=1000).filter(|seed| {
            let mut random = Random::new(*seed);
            let (before, after) = (measured(noise, &mut random, |_| 1.0), measured(noise, &mut random, &slower));
            let found = compare(&before, &after, FLOOR);
            assert_eq!(found.changes.len(), 67);
            found.is_regression()
        });
        regressions.count() as f64 / 1000.0
    }

    const ALL: [Noise; 8] = [
        Noise::Even(0.01),
        Noise::Even(0.03),
        Noise::Even(0.08),
        Noise::Uneven(0.03),
        Noise::Disturbed(0.02),
        Noise::Disturbed(0.04),
        Noise::Shifted(0.02),
        Noise::Shifted(0.04),
    ];

    #[test]
    fn at_most_five_percent_of_equal_builds_are_reported_as_slower() {
        for noise in ALL {
            let share = found(noise, |_| 1.0);
            assert!(share <= 0.05, "{noise:?}: {share}");
        }
    }

    #[test]
    fn build_that_is_a_tenth_slower_is_detected() {
        for noise in ALL {
            let share = found(noise, |_| 1.1);
            assert!(share >= 0.95, "{noise:?}: {share}");
        }
        assert!(found(Noise::Even(0.02), |_| 1.04) >= 0.95, "a few percent of all");
    }

    #[test]
    fn single_cell_that_is_a_half_slower_is_detected() {
        for noise in [Noise::Even(0.01), Noise::Even(0.03), Noise::Uneven(0.02), Noise::Shifted(0.02)] {
            let share = found(noise, |cell| {
                let is_prefill = cell.layout == "tp2" && cell.phase == Phase::Prefill;
                if is_prefill && (cell.input, cell.concurrency) == (256, 4) { 1.5 } else { 1.0 }
            });
            assert!(share >= 0.95, "{noise:?}: {share}");
        }
    }

    #[test]
    fn equal_run_is_no_regression_and_slower_cell_is_named() {
        let before = noisy(0.04, |_| 1.0);
        assert!(!compare(&before, &noisy(0.02, |_| 1.02), FLOOR).is_regression());
        let is_slow = |cell: &Cell| cell.layout == "tp2" && cell.phase == Phase::Prefill && cell.concurrency == 4;
        let found = compare(&before, &noisy(0.02, |cell| if is_slow(cell) { 1.2 } else { 1.0 }), FLOOR);
        let worse: Vec<_> = found.changes.iter().filter(|change| change.is_regression()).collect();
        assert_eq!(worse.len(), 2);
        assert!(worse.iter().all(|change| change.cell.as_ref().is_some_and(is_slow)), "{worse:?}");
        assert!((worse[0].worse_by - 0.2).abs() < 1e-9 && found.is_regression());
    }

    #[test]
    fn loss_within_noise_of_each_cell_is_a_regression_of_all() {
        let before = noisy(0.1, |_| 1.0);
        let slower = compare(&before, &noisy(0.1, |_| 1.12), FLOOR);
        let worse: Vec<_> = slower.changes.iter().filter(|change| change.is_regression()).collect();
        assert!(!worse.is_empty() && worse.iter().all(|change| change.cell.is_none()), "{worse:?}");
        assert!(!compare(&before, &noisy(0.1, |_| 1.02), FLOOR).is_regression());
        let faster = compare(&noisy(0.0, |_| 1.0), &noisy(0.0, |_| 0.8), FLOOR);
        assert!(!faster.is_regression() && faster.changes.iter().all(Change::is_improvement));
    }

    #[test]
    fn missing_or_failing_cell_is_a_regression() {
        let before = noisy(0.0, |_| 1.0);
        let mut after = before.clone();
        let missing = after.cells.pop().map(|measured| measured.cell);
        after.cells[0].repeats[1].completed = 3;
        let found = compare(&before, &after, FLOOR);
        assert_eq!(found.lost, [after.cells[0].cell.clone(), missing.expect("there are cells")]);
        assert!(found.is_regression());
        // Cells that both runs skipped are not compared.
        let mut skipped = before.clone();
        skipped.cells[0].skipped = crate::measurement::run::ContextShort::of(&skipped.cells[0].cell, 1);
        assert!(!compare(&skipped, &skipped, FLOOR).is_regression());
    }
}
