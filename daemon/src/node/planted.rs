//! Faults of release 0.1 that a test can put back one at a time, so that the simulation shows that it finds them. A release build has
//! no such switch.
#[cfg(any(test, debug_assertions))]
use std::cell::Cell;

/// A fault of release 0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A rank does not tell its peers that its topology broke, and one that has not noticed is not assigned again.
    UntoldFault,
    /// A serving member is named as the leader of a recovery.
    ServingLeader,
    /// A voter takes a ballot twice, and votes though its state folder was wiped.
    BallotTwice,
    /// A recovery that failed on one member waits for all others.
    PatientAbort,
}

#[cfg(any(test, debug_assertions))]
thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Puts a fault back on this thread, or takes it away.
#[cfg(any(test, debug_assertions))]
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Whether the fault was put back.
#[cfg(any(test, debug_assertions))]
pub(super) fn is_planted(fault: Planted) -> bool {
    PLANTED.get() == Some(fault)
}

/// Never.
#[cfg(not(any(test, debug_assertions)))]
pub(super) const fn is_planted(_: Planted) -> bool {
    false
}
