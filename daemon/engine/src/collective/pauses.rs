//! Detects that this process itself did not run during a wait: it was stopped, swapped out or starved of CPU. Without
//! this, such a rank would take its own pauses for delays of its peers.
use std::time::{Duration, Instant};

use common::units::Nanoseconds;

/// Longest of the first sleeps of a wait: a longer pause can be told from a sleep.
const SHORT_SLEEP: Duration = Duration::from_millis(10);
/// Number of short sleeps. Later ones are longer, because an idle rank should rarely wake.
const SHORT_SLEEPS: u32 = 20;
/// Longest sleep between two checks of the abort flag.
const LONG_SLEEP: Duration = Duration::from_millis(200);
/// How late a sleep may end without being a pause.
const LATENESS_MAX: Duration = Duration::from_millis(10);

/// Pauses of this process during the waits of one collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    total: Duration,
    /// When this process was last known to run.
    seen: Instant,
    /// Sleeps of the current wait.
    sleeps: u32,
}

impl Pauses {
    /// Begins a collective at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { total: Duration::ZERO, seen: now, sleeps: 0 }
    }

    /// Begins a wait: what was before it is compute time.
    pub(super) fn begin_wait(&mut self, now: Instant) {
        (self.seen, self.sleeps) = (now, 0);
    }

    /// The longest time to sleep next.
    pub(super) fn sleep(&mut self) -> Duration {
        self.sleeps += 1;
        if self.sleeps <= SHORT_SLEEPS { SHORT_SLEEP } else { LONG_SLEEP }
    }

    /// Reports that this process runs at `now`, after a sleep of at most `slept`.
    pub(super) fn runs(&mut self, now: Instant, slept: Duration) {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.seen, now));
        if passed > slept + LATENESS_MAX {
            self.total += passed - slept;
        }
    }

    /// The part of a wait in which this process ran or slept.
    pub(super) fn without(&self, wait: Nanoseconds) -> Nanoseconds {
        Nanoseconds(wait.0.saturating_sub(self.total.as_nanos() as u64))
    }

    /// The time of an arrival as if this process had not paused before it.
    pub(super) fn earlier(&self, arrival: Instant) -> Instant {
        arrival.checked_sub(self.total).unwrap_or(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn time_beyond_a_sleep_is_a_pause() {
        let (begun, wait) = (Instant::now(), Nanoseconds(100_000_000));
        let at = |milliseconds: u32| begun + milliseconds * MILLISECOND;
        let mut pauses = Pauses::new(begun);
        // It computed for 50 ms, then slept four times and was somewhat late.
        pauses.begin_wait(at(50));
        (1..=4).for_each(|number| pauses.runs(at(50 + 15 * number), 10 * MILLISECOND));
        assert_eq!(pauses.without(wait), wait);
        // It was stopped during a sleep, then between two looks.
        pauses.runs(at(110 + 95), 10 * MILLISECOND);
        assert_eq!(pauses.without(wait), Nanoseconds(15_000_000));
        pauses.runs(at(205 + 12), Duration::ZERO);
        assert_eq!((pauses.without(wait), pauses.earlier(at(300))), (Nanoseconds(3_000_000), at(203)));
        pauses.begin_wait(at(900));
        pauses.runs(at(901), Duration::ZERO);
        assert_eq!(pauses.without(wait), Nanoseconds(3_000_000));
        assert_eq!(pauses.without(Nanoseconds(1)), Nanoseconds(0));
    }

    #[test]
    fn waits_begin_with_short_sleeps() {
        let mut pauses = Pauses::new(Instant::now());
        let sleeps: Vec<Duration> = (0..SHORT_SLEEPS + 2).map(|_| pauses.sleep()).collect();
        assert_eq!((sleeps[0], sleeps[19], sleeps[20]), (SHORT_SLEEP, SHORT_SLEEP, LONG_SLEEP));
        pauses.begin_wait(Instant::now());
        assert_eq!(pauses.sleep(), SHORT_SLEEP);
    }
}
