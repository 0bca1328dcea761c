//! Pictures of every page in four states at three sizes, stored as text below `snapshots/pages`.
use super::snapshot_tests::check_at;
use crate::{
    event::ClientEvent,
    fixtures::{Story, defaults, sizes},
    planned::Planned,
    state::{Page, Spot, State, plan::ask},
};

/// The smallest terminal over ssh, a window, a whole screen.
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// Every page of a story is drawn as stored.
#[track_caller]
fn check(state: &str, make: impl Fn() -> Story) {
    for page in Page::ALL {
        let mut story = make();
        story.state.spot = Spot::first_of(page);
        check_at(&format!("pages/{}-{state}", page.title().to_lowercase()), story, &SIZES);
    }
}

#[test]
fn every_page_of_a_busy_cluster() {
    check("normal", || {
        let mut story = Story::busy();
        let ask = ask(&story.state).expect("a topology runs");
        story.arrives(ClientEvent::Planned(Ok(Box::new(Planned::new(ask, sizes())))));
        story
    });
}

#[test]
fn every_page_without_a_node() {
    check("empty", || Story::with(State::new(&[], None, "", defaults())));
}

#[test]
fn every_page_of_a_cluster_with_a_throttled_a_late_an_excluded_and_a_silent_node() {
    check("degraded", Story::degraded);
}

#[test]
fn every_page_after_a_node_was_lost() {
    check("error", Story::lost);
}
