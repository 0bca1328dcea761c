//! Two runs of a matrix against each other: what became worse by more than chance. Many figures are judged at once, each from few
//! repeats: so figures of a kind learn from each other how far repeats lie apart, and the bound grows with their number. Pure.
use super::{
    cell::Cell,
    run::{Measured, Metric, Run},
    stats::{deviation, median, middle_mean, spread},
};

/// Cells of one figure that are enough to judge all of them together.
const CELLS_MIN: usize = 4;
/// Chance that two runs of the same build are taken for different, if repeats deviate as they would by chance.
const FALSE_ALARMS: f64 = 0.05;
/// A cell whose own repeats lie further apart than those of others is judged by them; of so few they say little, hence the factor.
const OWN: f64 = 1.3;
/// The mean of all cells is surer than one of them: it counts from this share of the floor on.
const TOGETHER: f64 = 0.5;

/// A figure of a cell in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The cell; `None`: all cells together (mean of their changes, without the outer fifths).
    pub cell: Option<Cell>,
    /// The figure.
    pub metric: Metric,
    /// Its medians over the repeats; of all cells together 1 and the mean ratio.
    pub before: f64,
    /// See `before`.
    pub after: f64,
    /// Share by which it became worse; below 0: better.
    pub worse_by: f64,
    /// What chance may do, at least the floor.
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

/// A figure of a cell before it is judged. Logarithms: of ratios, the same up and down.
#[derive(Debug)]
struct Figure {
    change: Change,
    /// Logarithm of how much worse it became.
    log: f64,
    /// Variance of the repeats' logarithms within the runs; `None` with single repeats.
    variance: Option<f64>,
    /// What a change of medians deviates by, in deviations of a repeat.
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
        // The variance of a median of few is at most pi / 2 of that of their mean.
        let share = (0.5 * std::f64::consts::PI * (1.0 / before.len() as f64 + 1.0 / after.len() as f64)).sqrt();
        Some(Self { change, log, variance, share })
    }
}

/// Compares what both runs measured; `floor` is the share that counts as noise in any case.
pub fn compare(before: &Run, after: &Run, floor: f64) -> Comparison {
    let mut comparison = Comparison::default();
    let mut figures = Vec::new();
    for one in before.cells.iter().filter(|measured| measured.skipped.is_none()) {
        let other = after.of(&one.cell).filter(|measured| measured.skipped.is_none());
        let fails = |other: &Measured| other.failed() > 0 && one.failed() == 0;
        let Some(other) = other.filter(|other| !fails(other)) else {
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

/// How many deviations a normal variable exceeds in one of `count` with no more than the chance of a false alarm: Chernoff's bound,
/// a little more than the quantile, as deviations are estimated.
fn deviations(count: usize) -> f64 {
    (2.0 * (count.max(1) as f64 / FALSE_ALARMS).ln()).sqrt()
}

/// What changes of one metric deviate by: by their repeats, or by each other where runs differ more than the repeats within them.
/// Medians: a few cells that really changed, or were disturbed, do not widen it.
fn common_deviation(figures: &[&mut Figure]) -> f64 {
    let within = |figure: &&mut Figure| figure.variance.map(|variance| figure.share * figure.share * variance);
    let variances: Vec<f64> = figures.iter().filter_map(within).collect();
    // The median of a variance from four degrees of freedom is 0.84 of its mean.
    let within = median(&variances).map_or(0.0, |variance| (variance / 0.84).sqrt());
    if figures.len() < CELLS_MIN {
        return within;
    }
    within.max(deviation(&figures.iter().map(|figure| figure.log).collect::<Vec<_>>()))
}

/// Judges values of repeats against each other.
pub fn judge(before: &[f64], after: &[f64], metric: Metric, floor: f64) -> Option<Change> {
    let noise = spread(before).max(spread(after)).max(floor);
    let (before, after) = (median(before)?, median(after)?);
    let ratio = if metric.is_more_better() { before / after } else { after / before };
    Some(Change { cell: None, metric, before, after, worse_by: ratio - 1.0, noise })
}

/// All cells together: single ones may hide a small loss in their noise, of which the mean of many has less.
fn all_together(figures: &[&mut Figure], metric: Metric, common: f64, floor: f64) -> Option<Change> {
    if figures.len() < CELLS_MIN {
        return None;
    }
    let after = middle_mean(&figures.iter().map(|figure| figure.log).collect::<Vec<_>>())?.exp();
    // Three means are judged; one without the outer fifths deviates by a tenth more than one of all.
    let noise = deviations(3) * 1.1 * common / (figures.len() as f64).sqrt();
    let noise = noise.exp_m1().max(TOGETHER * floor);
    Some(Change { cell: None, metric, before: 1.0, after, worse_by: after - 1.0, noise })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        cell::Phase,
        run::tests::{run, run_of},
        stats::Random,
    };

    const FLOOR: f64 = 0.05;

    /// Repeats that lie so far apart.
    fn noisy(apart: f64, slower: impl Fn(&Cell) -> f64) -> Run {
        run(|cell, repeat| 10.0 * slower(cell) * (1.0 + apart * (f64::from(repeat) - 1.0) / 2.0))
    }

    /// How repeats deviate by chance.
    #[derive(Clone, Copy, Debug)]
    enum Noise {
        /// All alike, normally, by so much.
        Even(f64),
        /// Some cells by more than others: from a half to twice as much.
        Uneven(f64),
        /// Alike, and one repeat in ten takes up to a half longer.
        Disturbed(f64),
        /// Alike, and all repeats of a cell in a run by as much again: what runs beside differs from run to run.
        Shifted(f64),
    }

    /// A matrix of 64 figures and three means. `slower` is by how much each cell is.
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
        let next = || values.borrow_mut().next().expect("a value for each repeat");
        run_of(vec![64, 256], |cell, _| 10.0 * slower(cell) * next().exp())
    }

    /// The share of 1000 seeded pairs of matrices, of which the second is slower by so much, that are taken for a regression.
    fn found(noise: Noise, slower: impl Fn(&Cell) -> f64) -> f64 {
        let is_found = |seed: &u64| {
            let mut random = Random::new(*seed);
            let (before, after) = (measured(noise, &mut random, |_| 1.0), measured(noise, &mut random, &slower));
            let found = compare(&before, &after, FLOOR);
            assert_eq!(found.changes.len(), 67);
            found.is_regression()
        };
        (1..=1000).filter(is_found).count() as f64 / 1000.0
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
    fn of_a_thousand_runs_of_the_same_build_at_most_fifty_are_taken_for_slower() {
        for noise in ALL {
            let share = found(noise, |_| 1.0);
            assert!(share <= 0.05, "{noise:?}: {share}");
        }
    }

    #[test]
    fn a_build_that_is_a_tenth_slower_is_found_out() {
        for noise in ALL {
            let share = found(noise, |_| 1.1);
            assert!(share >= 0.95, "{noise:?}: {share}");
        }
        assert!(found(Noise::Even(0.02), |_| 1.04) >= 0.95, "a few percent of all");
    }

    #[test]
    fn a_single_cell_that_takes_half_longer_is_found_out() {
        let is_slow = |cell: &Cell| {
            cell.layout == "tp2" && cell.phase == Phase::Prefill && (cell.input, cell.concurrency) == (256, 4)
        };
        for noise in [Noise::Even(0.01), Noise::Even(0.03), Noise::Uneven(0.02), Noise::Shifted(0.02)] {
            let share = found(noise, |cell| if is_slow(cell) { 1.5 } else { 1.0 });
            assert!(share >= 0.95, "{noise:?}: {share}");
        }
    }

    #[test]
    fn the_same_is_no_regression_and_a_slower_cell_is_one_that_is_named() {
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
    fn within_the_noise_of_its_repeats_a_cell_is_no_regression_but_all_together_are() {
        let before = noisy(0.1, |_| 1.0);
        let slower = compare(&before, &noisy(0.1, |_| 1.12), FLOOR);
        let worse: Vec<_> = slower.changes.iter().filter(|change| change.is_regression()).collect();
        assert!(!worse.is_empty() && worse.iter().all(|change| change.cell.is_none()), "{worse:?}");
        assert!(!compare(&before, &noisy(0.1, |_| 1.02), FLOOR).is_regression());
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
        skipped.cells[0].skipped = crate::bench::run::ContextShort::of(&skipped.cells[0].cell, 1);
        assert!(!compare(&skipped, &skipped, FLOOR).is_regression());
    }
}
