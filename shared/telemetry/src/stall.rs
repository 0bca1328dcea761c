//! Distinguishes stalls from ordinary waits. A process that is stopped, swapped out or starved of CPU can delay its peers
//! at any point of a step. Ordinary delays (network latency, sampling on the head) would be the same with any other rank.
use common::units::Nanoseconds;

/// Minimum duration of a stall, for each [`STALL_TOKENS`] of the step: large prompts take long to transfer on any
/// network.
pub const STALL_MIN: Nanoseconds = Nanoseconds(20_000_000);
/// Tokens for which [`STALL_MIN`] is enough time.
pub const STALL_TOKENS: u32 = 32;
/// Minimum ratio of a stall to the usual wait.
pub const STALL_FACTOR: u64 = 8;
/// Smallest adjustment of the usual wait, in nanoseconds.
const STEP_MIN: u64 = 1000;

/// The usual duration of one kind of wait: an approximate median, adjusted after each wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsualWait(Nanoseconds);

impl UsualWait {
    /// The part of `wait` in a step of `tokens` beyond the usual, if it is a stall; 0 otherwise.
    pub fn stall(&mut self, wait: Nanoseconds, tokens: u32) -> Nanoseconds {
        let usual = self.0.0;
        let step = (usual / 16).max(STEP_MIN);
        self.0.0 = if wait.0 > usual { usual.saturating_add(step) } else { usual.saturating_sub(step) };
        let least = STALL_MIN.0.saturating_mul(u64::from(tokens.div_ceil(STALL_TOKENS).max(1)));
        let is_stall = wait.0 >= least && wait.0 >= usual.saturating_mul(STALL_FACTOR);
        Nanoseconds(if is_stall { wait.0 - usual } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn rare_long_wait_is_a_stall_and_a_usual_one_is_not() {
        let mut usual = UsualWait::default();
        let waits = (0..1000).map(|number| if number % 10 == 9 { 95 } else { 1 });
        let stalls: Vec<u64> = waits.map(|wait| usual.stall(Nanoseconds(wait * MILLISECOND), 1).0).collect();
        let found = stalls[100..].iter().filter(|stall| **stall > 93 * MILLISECOND).count();
        assert_eq!(found, 90, "each long one is a stall");
        assert_eq!(stalls.iter().filter(|stall| **stall > 0).count(), 100, "and nothing else");
        let mut slow = UsualWait::default();
        let stalls = (0..1000).filter(|_| slow.stall(Nanoseconds(95 * MILLISECOND), 32).0 > 0).count();
        assert!(stalls < 150, "a wait that is always long becomes the usual one, after {stalls}");
        let first =
            |milliseconds, tokens| UsualWait::default().stall(Nanoseconds(milliseconds * MILLISECOND), tokens).0;
        assert_eq!((first(19, 1), first(20, 0), first(39, 33)), (0, 20 * MILLISECOND, 0));
    }

    #[test]
    fn extreme_waits_do_not_overflow() {
        let mut usual = UsualWait(Nanoseconds(u64::MAX));
        assert_eq!(usual.stall(Nanoseconds(u64::MAX), u32::MAX).0, 0);
        let mut usual = UsualWait::default();
        assert_eq!(usual.stall(Nanoseconds(u64::MAX), u32::MAX).0, u64::MAX);
    }
}
