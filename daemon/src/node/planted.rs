//! Bugs of release 0.1 that a test can reintroduce one at a time, to prove that the simulation finds them. Release
//! builds have no such switch.
#[cfg(any(test, debug_assertions))]
use std::cell::Cell;

/// A bug of release 0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A rank does not report to its peers that its topology broke, and a rank that has not noticed is not assigned
    /// again.
    UntoldFault,
    /// A serving member is chosen as the leader of a recovery.
    ServingLeader,
    /// A voter promises a ballot twice, and votes although its state folder was wiped.
    BallotTwice,
    /// A recovery that failed on one member waits for all others.
    PatientAbort,
}

#[cfg(any(test, debug_assertions))]
thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Reintroduces a bug on this thread; `None` removes it.
#[cfg(any(test, debug_assertions))]
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Whether the bug was reintroduced.
#[cfg(any(test, debug_assertions))]
pub(super) fn is_planted(fault: Planted) -> bool {
    PLANTED.get() == Some(fault)
}

/// Always false.
#[cfg(not(any(test, debug_assertions)))]
pub(super) const fn is_planted(_: Planted) -> bool {
    false
}
