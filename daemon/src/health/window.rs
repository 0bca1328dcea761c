//! Counts of the last minute from counters since boot, so that old events expire.
use std::time::{Duration, Instant};

use telemetry::health::Traffic;

/// A count covers at least this time, and at most twice as much.
const HALF: Duration = Duration::from_secs(30);

/// Two earlier readings; before the first minute is over, the time since boot counts.
#[derive(Debug, Default)]
pub(super) struct Window {
    older: Traffic,
    newer: Traffic,
    turned: Option<Instant>,
}

impl Window {
    /// The increase since the older reading; counters that decreased restart at zero.
    pub(super) fn since(&mut self, now: Instant, counters: Traffic) -> Traffic {
        let turned = *self.turned.get_or_insert(now);
        if counters.count < self.older.count || counters.failed < self.older.failed {
            (self.older, self.newer) = (counters, counters);
        }
        let minus = |now: u64, before: u64| now.saturating_sub(before);
        let traffic = Traffic {
            count: minus(counters.count, self.older.count),
            failed: minus(counters.failed, self.older.failed),
        };
        if now.saturating_duration_since(turned) >= HALF {
            (self.older, self.newer, self.turned) = (self.newer, counters, Some(now));
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_before_the_last_minute_expire() {
        let mut window = Window::default();
        let start = Instant::now();
        let mut at = |second, count, failed| {
            let traffic = window.since(start + Duration::from_secs(second), Traffic { count, failed });
            (traffic.count, traffic.failed)
        };
        assert_eq!(at(0, 1000, 5), (1000, 5), "since boot");
        assert_eq!(at(29, 1100, 5), (1100, 5));
        assert_eq!(at(30, 1200, 5), (1200, 5));
        assert_eq!(at(59, 1300, 5), (1300, 5));
        assert_eq!(at(60, 1400, 5), (1400, 5));
        assert_eq!(at(61, 1500, 6), (300, 1), "since the reading at 30 s");
        assert_eq!(at(90, 1600, 6), (400, 1));
        assert_eq!(at(91, 1700, 6), (300, 1), "since the reading at 60 s");
        assert_eq!(at(92, 10, 0), (0, 0), "the counters were reset");
        assert_eq!(at(93, 20, 1), (10, 1));
    }
}
