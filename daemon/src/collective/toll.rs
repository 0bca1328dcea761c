//! For benchmarks with paced nodes: an all-reduce takes at least what its messages cost a core of a machine of a profile.
use std::time::{Duration, Instant};

use nix::{
    errno::Errno,
    sys::time::TimeSpec,
    time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep},
};

/// Most that one wait may make up for. A machine that stood still for longer shows in what is measured, and no later wait is nothing for it.
const LATE_MAX: TimeSpec = TimeSpec::new(0, 1_000_000);

/// A wait by the clock. What ended too late, as the system wakes threads up, shortens the next one.
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
    /// Waits of this thread end when they should from now on, not up to 50 us later.
    pub fn be_exact() {
        // A wish: where it is not granted, the next wait makes up for it.
        let _ = nix::sys::prctl::set_timerslack(1);
    }

    /// Until a point in time, not for a time: an interrupted wait is not longer than one that is not. Never spins.
    pub fn wait(&mut self, ns: f64) {
        let clock = ClockId::CLOCK_MONOTONIC;
        let Ok(now) = clock_gettime(clock) else { return };
        let until = now + TimeSpec::from_duration(Duration::from_nanos(ns as u64)) - self.late;
        while clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &until) == Err(Errno::EINTR) {}
        self.late = clock_gettime(clock).map_or(TimeSpec::new(0, 0), |now| (now - until).min(LATE_MAX));
    }
}

/// What messages cost a core.
#[derive(Clone, Copy, Debug)]
pub struct Toll {
    /// Nanoseconds of a message that is sent and one that is received.
    message_ns: f64,
    waits: Waits,
    begun: Instant,
}

impl Toll {
    /// `message_ns`: of a message that is sent and one that is received.
    pub fn new(message_ns: f64) -> Self {
        Self { message_ns, waits: Waits::default(), begun: Instant::now() }
    }

    /// An all-reduce begins.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// It is over and sent so many messages; in every schedule a rank receives as many. A core sends and receives while the wire is
    /// busy and while others are waited for: what they took is not added.
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
    fn waits_are_right_on_average_and_messages_cost_what_they_should() {
        Waits::be_exact();
        let (mut waits, begin) = (Waits::default(), Instant::now());
        (0..50).for_each(|_| waits.wait(1e6));
        let took = begin.elapsed().as_secs_f64();
        assert!(took >= 0.0495, "{took} s for 50 ms");
        let (mut toll, begin) = (Toll::new(1e6), Instant::now());
        toll.begin();
        waits.wait(5e6);
        toll.pay(20);
        let took = begin.elapsed().as_millis();
        assert!(took >= 19, "{took} ms");
    }
}
