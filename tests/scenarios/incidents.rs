//! Incidents on one of two replicas while clients stream, and layout changes of a single replica. The program
//! `incidents` runs more of them.
use std::time::Duration;

use harness::incidents::{change_layout, strike};

#[test]
fn incidents_on_one_replica_leave_the_other_undisturbed() {
    let found = strike(2, 8, &mut |line| println!("{line}"));
    assert!(found.streams > 10, "{found:?}");
}

#[test]
fn streams_pause_for_a_moment_while_the_layout_changes() {
    // Other tests compete for the cores, which lengthens pauses and never shortens them.
    assert!((0..3).any(|_| median_pause() < Duration::from_secs(1)), "the median is too long in three runs");
}

fn median_pause() -> Duration {
    let mut pauses = change_layout(4, &mut |line| println!("{line}"));
    pauses.sort_unstable();
    pauses[2]
}
