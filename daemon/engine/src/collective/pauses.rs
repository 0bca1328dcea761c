//! Detects when this process itself did not run during a wait because it was stopped, swapped out or starved of CPU.
//! Otherwise, such a rank would blame its peers for its own pauses.
use std::time::{Duration, Instant};

use common::units::Nanoseconds;

/// Limit of the first sleeps of a wait, so that even a short pause is longer than a sleep.
pub(super) const SHORT_SLEEP: Duration = Duration::from_millis(10);
/// Number of short sleeps in a wait. Later ones may be longer, so that an idle rank rarely wakes up.
const SHORT_SLEEPS: u32 = 20;
/// Longest sleep between two checks of the abort flag.
const LONG_SLEEP: Duration = Duration::from_millis(200);
/// A sleep that ends later than this is a pause.
const LATENESS_MAX: Duration = Duration::from_millis(10);

/// Pauses of this process during the waits of one collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// Sum of the pauses.
    total: Duration,
    /// When this process was last known to run.
    seen: Instant,
    /// Sleeps of the current wait.
    sleeps: u32,
}

impl Pauses {
    /// Creates an empty sum.
    pub(super) fn new() -> Self {
        Self { total: Duration::ZERO, seen: Instant::now(), sleeps: 0 }
    }

    /// Discards the pauses so far, at the beginning of a collective.
    pub(super) fn reset(&mut self) {
        self.total = Duration::ZERO;
    }

    /// Begins a wait. Time before it does not count, because this process was computing.
    pub(super) fn begin_wait(&mut self, now: Instant) {
        (self.seen, self.sleeps) = (now, 0);
    }

    /// Counts a sleep and returns its limit.
    pub(super) fn next_sleep(&mut self) -> Duration {
        self.sleeps += 1;
        if self.sleeps <= SHORT_SLEEPS { SHORT_SLEEP } else { LONG_SLEEP }
    }

    /// Notes that this process runs at `now`, after a sleep limited to `slept`.
    pub(super) fn note_running(&mut self, now: Instant, slept: Duration) {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.seen, now));
        if passed > slept + LATENESS_MAX {
            self.total += passed - slept;
        }
    }

    /// A wait of this collective without the pauses.
    pub(super) fn without(&self, wait: Nanoseconds) -> Nanoseconds {
        Nanoseconds(wait.0.saturating_sub(self.total.as_nanos() as u64))
    }

    /// The time of an arrival, moved back by all pauses of this collective, even those after it. An arrival may
    /// therefore seem too early, but never too late.
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
        let mut pauses = Pauses::new();
        // Computes for 50 ms, then sleeps four times and wakes up slightly late.
        pauses.begin_wait(at(50));
        (1..=4).for_each(|number| pauses.note_running(at(50 + 15 * number), 10 * MILLISECOND));
        assert_eq!(pauses.without(wait), wait);
        // Is stopped during a sleep, then while spinning.
        pauses.note_running(at(110 + 95), 10 * MILLISECOND);
        assert_eq!(pauses.without(wait), Nanoseconds(15_000_000));
        pauses.note_running(at(205 + 12), Duration::ZERO);
        assert_eq!((pauses.without(wait), pauses.earlier(at(300))), (Nanoseconds(3_000_000), at(203)));
        pauses.begin_wait(at(900));
        pauses.note_running(at(901), Duration::ZERO);
        assert_eq!(pauses.without(wait), Nanoseconds(3_000_000));
        assert_eq!(pauses.without(Nanoseconds(1)), Nanoseconds(0));
        pauses.reset();
        assert_eq!(pauses.without(wait), wait);
    }

    #[test]
    fn waits_begin_with_short_sleeps() {
        let mut pauses = Pauses::new();
        let sleeps: Vec<Duration> = (0..SHORT_SLEEPS + 2).map(|_| pauses.next_sleep()).collect();
        assert_eq!((sleeps[0], sleeps[19], sleeps[20]), (SHORT_SLEEP, SHORT_SLEEP, LONG_SLEEP));
        pauses.begin_wait(Instant::now());
        assert_eq!(pauses.next_sleep(), SHORT_SLEEP);
    }
}
