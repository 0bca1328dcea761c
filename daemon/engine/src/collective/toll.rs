//! For benchmarks with paced nodes: an all-reduce takes at least as long as its messages cost a core of the profiled
//! machine.
use std::time::{Duration, Instant};

use nix::{
    errno::Errno,
    sys::time::TimeSpec,
    time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep},
};

/// Most lateness that the next wait compensates. A longer stall of this machine stays visible in the results and
/// shortens no later wait.
const LATE_MAX: TimeSpec = TimeSpec::new(0, 1_000_000);

/// Waits that are exact on average: if the kernel wakes the thread too late, the next wait is shorter.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    late: TimeSpec,
}

impl Default for Waits {
    fn default() -> Self {
        Self { late: TimeSpec::new(0, 0) }
    }
}

impl Waits {
    /// Sets this thread's timer slack to 1 ns; by default waits end up to 50 us late.
    pub fn be_exact() {
        // Best effort: without it, the next wait compensates for the lateness.
        let _ = nix::sys::prctl::set_timerslack(1);
    }

    /// Waits for `ns` nanoseconds until an absolute time, so that a signal does not prolong it. Never spins.
    pub fn wait(&mut self, ns: f64) {
        let clock = ClockId::CLOCK_MONOTONIC;
        let Ok(now) = clock_gettime(clock) else { return };
        let until = self.until(now, ns);
        while clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &until) == Err(Errno::EINTR) {}
        self.ended(until, clock_gettime(clock).unwrap_or(until));
    }

    /// End of a wait that starts now.
    fn until(&self, now: TimeSpec, ns: f64) -> TimeSpec {
        now + TimeSpec::from_duration(Duration::from_nanos(ns as u64)) - self.late
    }

    fn ended(&mut self, until: TimeSpec, now: TimeSpec) {
        self.late = (now - until).clamp(TimeSpec::new(0, 0), LATE_MAX);
    }
}

/// Per-message cost of all-reduces on a core.
#[derive(Clone, Copy, Debug)]
pub struct Toll {
    /// Nanoseconds for sending one message and receiving one.
    message_ns: f64,
    waits: Waits,
    begun: Instant,
}

impl Toll {
    /// `message_ns`: nanoseconds for sending one message and receiving one.
    pub fn new(message_ns: f64) -> Self {
        Self { message_ns, waits: Waits::default(), begun: Instant::now() }
    }

    /// Begins an all-reduce.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Ends an all-reduce that sent `messages`; in every schedule a rank receives as many. Waits only for the part of
    /// their cost that exceeds the duration of the all-reduce: a core sends and receives while the wire is busy and
    /// while it waits for peers.
    pub(super) fn pay(&mut self, messages: u64) {
        let owed = messages as f64 * self.message_ns - self.begun.elapsed().as_nanos() as f64;
        if owed > 0.0 {
            self.waits.wait(owed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_make_up_for_lateness_of_up_to_a_millisecond() {
        let next = |late_ns: i64| {
            let mut waits = Waits::default();
            waits.ended(
                TimeSpec::new(5, 0),
                TimeSpec::new(5, 0) + TimeSpec::from_duration(Duration::from_nanos(late_ns as u64)),
            );
            waits.until(TimeSpec::new(10, 0), 3e6)
        };
        assert_eq!(next(0), TimeSpec::new(10, 3_000_000));
        assert_eq!(next(300_000), TimeSpec::new(10, 2_700_000));
        assert_eq!(next(5_000_000), TimeSpec::new(10, 2_000_000), "a longer stall stays visible");
        let mut early = Waits::default();
        early.ended(TimeSpec::new(5, 0), TimeSpec::new(4, 0));
        assert_eq!(early.until(TimeSpec::new(10, 0), 3e6), TimeSpec::new(10, 3_000_000));
    }

    #[test]
    fn toll_is_reduced_by_the_time_of_the_all_reduce() {
        let (mut toll, begin) = (Toll::new(1e6), Instant::now());
        toll.begin();
        Waits::default().wait(5e6);
        toll.pay(20);
        let took = begin.elapsed();
        assert!((Duration::from_millis(19)..Duration::from_millis(500)).contains(&took), "{took:?}");
    }
}
