//! `auto`: the ranks of a stage benchmark the candidates on their own links before they serve; rank 0 decides and sends
//! the others the table. The benchmark is limited in time; sizes that it does not reach keep the cost formula's choice.
use std::time::{Duration, Instant};

use collectives::{Algorithm, Choice, TableRow, table::TOKENS_TIMED};
use common::{ids::Rank, units::Nanoseconds};

use super::{
    CollectiveError, Group,
    bench::{AlgorithmTimes, BenchOrder, Dummies, TimedRounds},
};

/// Longest benchmark of a stage, counted from the first collective that all ranks have finished.
const BUDGET: Duration = Duration::from_millis(600);
/// All-reduces of one candidate in a row. The first does not count: it waits for links that still carry messages of the
/// previous candidate.
const RUN: u32 = 4;
/// Fewest and most runs of each candidate for a number of tokens; the median of their counted all-reduces is used.
const RUNS: (u32, u32) = (1, 3);
/// A candidate replaces the formula's choice if its median is below this fraction of it: timings of busy machines vary.
const WORTH: f64 = 0.85;

impl Group {
    /// Fills the table by benchmarking if the choice is automatic. All ranks of the stage call it before their first
    /// step.
    ///
    /// # Errors
    /// A peer is lost or out of step, or the wait was aborted.
    pub fn tune(&mut self) -> Result<(), CollectiveError> {
        let Some(links) = self.links() else { return Ok(()) };
        let (own, first, world) = (links.own(), Rank(links.first()), links.stage().len());
        if world < 2 || self.settings().choice != Choice::Auto || self.omits_exchange() {
            return Ok(());
        }
        self.begin_step(0);
        let values = TOKENS_TIMED[TOKENS_TIMED.len() - 1] as usize * self.settings().columns;
        let mut dummies = Dummies::new(values);
        let result = if own == first { self.lead(&mut dummies) } else { self.follow(first, &mut dummies) };
        self.forget();
        result
    }

    fn lead(&mut self, dummies: &mut Dummies) -> Result<(), CollectiveError> {
        let mut table = self.table().clone();
        let candidates: Vec<Algorithm> = Algorithm::candidates().collect();
        // The first collective waits for ranks that are still loading.
        self.timed(1, 1, candidates[0], dummies)?;
        let began = Instant::now();
        for row in &mut table.rows {
            let mut times: AlgorithmTimes = candidates.iter().map(|candidate| (*candidate, Vec::new())).collect();
            let once = Instant::now();
            for candidate in &candidates {
                self.timed(row.tokens, 1, *candidate, dummies)?;
            }
            let left = BUDGET.saturating_sub(began.elapsed());
            let run = f64::from(RUN) * once.elapsed().as_secs_f64().max(1e-6);
            let runs = (left.as_secs_f64() / 2.0 / run) as u32;
            if runs < RUNS.0 {
                break;
            }
            for _ in 0..runs.min(RUNS.1) {
                for (candidate, times) in &mut times {
                    times.extend_from_slice(&self.timed(row.tokens, RUN, *candidate, dummies)?[1..]);
                }
            }
            row.timed = medians(times);
            decide(row);
        }
        self.order(&BenchOrder::Use(table.clone()))?;
        self.set_table(table);
        self.links().map_or(Ok(()), super::Links::flush_stage)
    }

    /// Orders some all-reduces with one algorithm, and takes part in them; returns how long each took.
    fn timed(
        &mut self,
        tokens: u32,
        repeats: u32,
        algorithm: Algorithm,
        dummies: &mut Dummies,
    ) -> Result<Vec<u64>, CollectiveError> {
        self.order(&BenchOrder::Time { tokens, repeats, algorithms: vec![algorithm] })?;
        Ok(self.time(TimedRounds { tokens, repeats, algorithms: &[algorithm] }, dummies)?.remove(0).1)
    }

    fn follow(&mut self, first: Rank, dummies: &mut Dummies) -> Result<(), CollectiveError> {
        loop {
            match self.take_order(first)? {
                BenchOrder::Time { tokens, repeats, algorithms } => {
                    self.time(TimedRounds { tokens, repeats, algorithms: &algorithms }, dummies)?;
                }
                BenchOrder::Use(table) => {
                    self.set_table(table);
                    return Ok(());
                }
            }
        }
    }
}

fn medians(times: AlgorithmTimes) -> Vec<(Algorithm, Nanoseconds)> {
    let medians = times.into_iter().map(|(algorithm, mut times)| {
        times.sort_unstable();
        (algorithm, Nanoseconds(times.get(times.len() / 2).copied().unwrap_or(0)))
    });
    medians.collect()
}

/// Chooses the fastest, unless the formula's choice is nearly as fast.
fn decide(row: &mut TableRow) {
    let Some((_, usual)) = row.timed.iter().find(|(algorithm, _)| *algorithm == row.algorithm) else { return };
    let Some((fastest, time)) = row.timed.iter().min_by_key(|(_, time)| time.0) else { return };
    if (time.0 as f64) < WORTH * usual.0 as f64 {
        row.algorithm = *fastest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(times: [u64; 3]) -> TableRow {
        let timed = Algorithm::candidates().zip(times.map(Nanoseconds)).collect();
        TableRow { tokens: 1, algorithm: Algorithm::Direct, timed }
    }

    #[test]
    fn default_stays_until_another_is_clearly_faster() {
        for (times, expected) in [
            ([100, 90, 200], Algorithm::Direct),
            ([100, 80, 200], Algorithm::ReduceScatter),
            ([100, 80, 70], Algorithm::Star),
        ] {
            let mut row = row(times);
            decide(&mut row);
            assert_eq!(row.algorithm, expected, "{times:?}");
        }
    }
}
