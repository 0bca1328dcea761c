//! Pauses of this rank within an all-reduce: its process was stopped, swapped out or starved of CPU. Peers that needed its
//! message could not send theirs meanwhile, so these arrive late through no fault of theirs.
use std::time::{Duration, Instant};

/// Time that is not spent waiting counts as a pause if it is longer than this; otherwise it may be computation.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The pauses so far. A pause begins when the messages that this rank was waiting for have arrived, even if it notices
/// that much later, and ends with its next wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    total: Duration,
    /// When this rank could have continued.
    ready: Instant,
}

impl Pauses {
    /// Begins an all-reduce.
    pub(super) fn new(now: Instant) -> Self {
        Self { total: Duration::ZERO, ready: now }
    }

    /// Begins a wait: this rank can do nothing more by itself.
    pub(super) fn begin_wait(&mut self, now: Instant) {
        let busy = now.saturating_duration_since(self.ready);
        if busy > PAUSE_MIN {
            self.total += busy;
        }
        self.ready = now;
    }

    /// Ends a wait. `arrived`: when the last of the awaited messages arrived, which may be before the wait.
    pub(super) fn end_wait(&mut self, arrived: Instant) {
        self.ready = self.ready.max(arrived);
    }

    /// Pauses before the latest wait.
    pub(super) fn total(&self) -> Duration {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_an_arrival_and_the_next_wait_is_a_pause_if_long() {
        let begun = Instant::now();
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        let total = |pauses: &Pauses| pauses.total().as_millis();
        let mut pauses = Pauses::new(at(0));
        pauses.begin_wait(at(2));
        pauses.end_wait(at(60));
        pauses.begin_wait(at(70));
        assert_eq!(total(&pauses), 0, "a long wait and short computations");
        // Stopped during a wait: the message arrived after 5 ms, and was noticed after 95.
        pauses.end_wait(at(75));
        pauses.begin_wait(at(165));
        assert_eq!(total(&pauses), 90);
        // Everything had arrived before.
        pauses.end_wait(at(100));
        pauses.begin_wait(at(166));
        assert_eq!(total(&pauses), 90);
        // Stopped while it computed.
        pauses.end_wait(at(167));
        pauses.begin_wait(at(187));
        assert_eq!(total(&pauses), 110);
        assert_eq!(total(&Pauses::new(at(200))), 0);
    }
}
