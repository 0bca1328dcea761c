//! Incidents on one of two replicas while clients stream, and layout changes of a single replica; the program `incidents` runs more of them.
use std::time::Duration;

use harness::incidents::{change_layout, strike};

#[test]
fn what_happens_to_one_replica_is_not_noticed_on_the_other_and_the_layout_that_was_asked_for_comes_back() {
    let found = strike(2, 8, &mut |line| println!("{line}"));
    assert!(found.streams > 10, "{found:?}");
}

#[test]
fn streams_pause_for_a_moment_while_the_layout_changes() {
    let mut pauses = change_layout(4, &mut |line| println!("{line}"));
    pauses.sort_unstable();
    // Only the median is checked: other tests compete for the cores.
    assert!(pauses[2] < Duration::from_secs(1), "{pauses:?}");
}
