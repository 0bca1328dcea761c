//! A node's last minutes, sampled once per second, for graphs and trends.
use std::{collections::VecDeque, time::Duration};

use common::latency::ratio;
use telemetry::NodeReport;

/// Maximum number of samples: five minutes.
pub const SAMPLES_MAX: usize = 300;
/// Interval between two samples.
const STEP: Duration = Duration::from_secs(1);
/// A temperature is compared with the one this long ago.
const TREND: Duration = Duration::from_secs(30);
/// A smaller change counts as no change.
const TREND_CELSIUS: f32 = 1.0;

/// One sample of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time since the start of the dashboard.
    pub at: Duration,
    /// Temperature of the processor.
    pub celsius: Option<f32>,
    /// Clock of the fastest cores.
    pub megahertz: Option<u32>,
    /// Share of its memory in use, by all programs.
    pub memory: Option<f64>,
    /// Cores that other programs kept busy.
    pub others: Option<f64>,
    /// Generated tokens per second (heads only).
    pub tokens_per_second: f64,
    /// Bytes per second over its network interface, in both directions.
    pub bytes_per_second: Option<f64>,
    /// Share of its all-reduce time spent waiting for peers; `None` without all-reduces.
    pub waiting: Option<f64>,
    /// Share of its all-reduce time spent waiting for peers and transferring; `None` without all-reduces.
    pub network: Option<f64>,
    /// Running and waiting requests (heads only).
    pub requests: u32,
    /// Whether its machine was throttled, too hot, or had too low a voltage.
    pub is_ill: bool,
}

/// The samples of the last minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    samples: VecDeque<Sample>,
    /// The daemon's instance and its token count at the last sample.
    tokens: Option<(u64, u64)>,
    /// Bytes counted at the last sample.
    bytes: Option<u64>,
    waited: f64,
    transferred: f64,
    all: f64,
}

impl History {
    /// Adds a report.
    pub fn record(&mut self, now: Duration, report: &NodeReport) {
        for sync in &report.layers {
            let count = f64::from(sync.count);
            self.waited += sync.wait.0 as f64 * count;
            self.transferred += sync.wire.0 as f64 * count;
            self.all += (sync.wait.0 as f64 + sync.wire.0 as f64 + sync.compute.0 as f64) * count;
        }
        let passed = self.samples.back().map(|last| now.saturating_sub(last.at));
        if passed.is_some_and(|passed| passed < STEP) {
            return;
        }
        let counted = self.tokens.filter(|(instance, _)| *instance == report.instance);
        let new = counted.map_or(0, |(_, before)| report.tokens.saturating_sub(before));
        let bytes = report.health.link.as_ref().and_then(|link| link.bytes);
        let moved = self.bytes.zip(bytes).and_then(|(before, now)| now.checked_sub(before));
        let passed = passed.unwrap_or(STEP).as_secs_f64();
        let sample =
            Sample {
                at: now,
                celsius: report.health.temperature.map(|celsius| celsius.0),
                megahertz: report.health.clock.as_ref().map(|clock| clock.current.0),
                memory: report.health.memory.filter(|memory| memory.total.0 > 0).map(|memory| {
                    ratio(memory.total.0.saturating_sub(memory.available.0) as f64, memory.total.0 as f64)
                }),
                others: report.health.load.map(|load| f64::from(load.others)),
                tokens_per_second: ratio(new as f64, passed),
                bytes_per_second: moved.map(|moved| ratio(moved as f64, passed)),
                waiting: (self.all > 0.0).then(|| ratio(self.waited, self.all)),
                network: (self.all > 0.0).then(|| ratio(self.waited + self.transferred, self.all)),
                requests: report.requests,
                is_ill: report.health.warnings().iter().any(telemetry::Warning::is_acute),
            };
        self.bytes = bytes;
        self.tokens = Some((report.instance, report.tokens));
        (self.waited, self.transferred, self.all) = (0.0, 0.0, 0.0);
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> &VecDeque<Sample> {
        &self.samples
    }

    /// The last sample, if it is recent.
    pub fn latest(&self, now: Duration) -> Option<&Sample> {
        self.samples.back().filter(|sample| now.saturating_sub(sample.at) <= 3 * STEP)
    }

    /// The temperature's trend: `↑`, `↓`, or a space if it is steady or unknown.
    pub fn trend(&self) -> char {
        let Some(last) = self.samples.back() else { return ' ' };
        let before = self.samples.iter().rev().find(|sample| last.at.saturating_sub(sample.at) >= TREND);
        let before = before.or(self.samples.front());
        match (last.celsius, before.and_then(|before| before.celsius)) {
            (Some(now), Some(before)) if now - before >= TREND_CELSIUS => '↑',
            (Some(now), Some(before)) if before - now >= TREND_CELSIUS => '↓',
            _ => ' ',
        }
    }
}

#[cfg(test)]
mod tests {
    use common::units::Celsius;
    use telemetry::NodeState;

    use super::*;
    use crate::fixtures::running;

    fn report(celsius: f32, tokens: u64) -> NodeReport {
        let mut report = running(0, NodeState::Serving, true);
        report.health.temperature = Some(Celsius(celsius));
        report.tokens = tokens;
        report
    }

    #[test]
    fn one_sample_per_second_is_kept_for_five_minutes() {
        let mut history = History::default();
        for quarter in 0..4 * 400_u64 {
            let celsius = 50.0 + quarter as f32 / 40.0;
            history.record(Duration::from_millis(250 * quarter), &report(celsius, 5 * quarter));
        }
        assert_eq!(history.samples().len(), SAMPLES_MAX);
        let last = history.samples()[SAMPLES_MAX - 1];
        assert_eq!((last.at, last.tokens_per_second), (Duration::from_secs(399), 20.0));
        assert!(last.waiting.is_some_and(|share| (0.0..1.0).contains(&share)));
        assert_eq!(history.trend(), '↑');
        assert_eq!(history.latest(Duration::from_secs(410)), None, "an old sample is not current");
    }

    #[test]
    fn restarted_daemon_resets_the_counters() {
        let mut history = History::default();
        history.record(Duration::ZERO, &report(50.0, 1000));
        let again = NodeReport { instance: 2, ..report(50.2, 10) };
        history.record(Duration::from_secs(1), &again);
        assert_eq!(history.samples()[1].tokens_per_second, 0.0);
        history.record(Duration::from_secs(3), &NodeReport { tokens: 30, ..again });
        assert_eq!((history.samples()[2].tokens_per_second, history.trend()), (10.0, ' '));
    }
}
