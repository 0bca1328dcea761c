//! A node's last minutes, a sample a second: what graphs and trends are made of.
use std::{collections::VecDeque, time::Duration};

use shared::{latency::ratio, telemetry::NodeReport};

/// Most samples that are kept: five minutes.
pub const SAMPLES_MAX: usize = 300;
/// Between two samples.
const STEP: Duration = Duration::from_secs(1);
/// A temperature is compared with that of so long ago.
const TREND: Duration = Duration::from_secs(30);
/// A temperature that moved less than this stays.
const TREND_CELSIUS: f32 = 1.0;

/// One second of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, since the start of the dashboard.
    pub at: Duration,
    /// Of the processor.
    pub celsius: Option<f32>,
    /// Of the fastest cores.
    pub megahertz: Option<u32>,
    /// Tokens a second that it counted (heads only).
    pub tokens_per_second: f64,
    /// Bytes a second over its network interface, both directions.
    pub bytes_per_second: Option<f64>,
    /// Share of the time of its all-reduces in which it waited for others; `None` where there were none.
    pub waiting: Option<f64>,
}

/// The last minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    samples: VecDeque<Sample>,
    /// Tokens counted at the last sample, by which run of the daemon.
    tokens: Option<(u64, u64)>,
    /// Bytes counted at the last sample.
    bytes: Option<u64>,
    waited: f64,
    all: f64,
}

impl History {
    /// Takes a report in.
    pub fn record(&mut self, now: Duration, report: &NodeReport) {
        for sync in &report.layers {
            let count = f64::from(sync.count);
            self.waited += sync.wait.0 as f64 * count;
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
        let sample = Sample {
            at: now,
            celsius: report.health.temperature.map(|celsius| celsius.0),
            megahertz: report.health.clock.as_ref().map(|clock| clock.current.0),
            tokens_per_second: ratio(new as f64, passed),
            bytes_per_second: moved.map(|moved| ratio(moved as f64, passed)),
            waiting: (self.all > 0.0).then(|| ratio(self.waited, self.all)),
        };
        self.bytes = bytes;
        self.tokens = Some((report.instance, report.tokens));
        (self.waited, self.all) = (0.0, 0.0);
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> &VecDeque<Sample> {
        &self.samples
    }

    /// The last sample, if it is not old.
    pub fn latest(&self, now: Duration) -> Option<&Sample> {
        self.samples.back().filter(|sample| now.saturating_sub(sample.at) <= 3 * STEP)
    }

    /// Where the temperature goes: `↑`, `↓`, or a space where it stays or nothing is known.
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
    use shared::{telemetry::NodeState, units::Celsius};

    use super::*;
    use crate::fixtures::running;

    fn report(celsius: f32, tokens: u64) -> NodeReport {
        let mut report = running(0, NodeState::Serving, true);
        report.health.temperature = Some(Celsius(celsius));
        report.tokens = tokens;
        report
    }

    #[test]
    fn a_sample_a_second_is_kept_for_five_minutes_with_rates_and_the_trend() {
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
        assert_eq!(history.latest(Duration::from_secs(410)), None, "what is old is not shown as now");
    }

    #[test]
    fn a_daemon_that_was_started_again_counts_anew() {
        let mut history = History::default();
        history.record(Duration::ZERO, &report(50.0, 1000));
        let again = NodeReport { instance: 2, ..report(50.2, 10) };
        history.record(Duration::from_secs(1), &again);
        assert_eq!(history.samples()[1].tokens_per_second, 0.0);
        history.record(Duration::from_secs(3), &NodeReport { tokens: 30, ..again });
        assert_eq!((history.samples()[2].tokens_per_second, history.trend()), (10.0, ' '));
    }
}
