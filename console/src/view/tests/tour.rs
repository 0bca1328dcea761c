//! The box of the guided tour below a page.
use super::snapshot::check_all;
use crate::{
    fixtures::Story,
    state::{Focus, Page, tour::Tour},
};

#[test]
fn tour_names_the_key_to_press_and_then_how_to_continue() {
    for (name, is_done) in [("tour", false), ("tour-done", true)] {
        let mut story = Story::busy();
        story.state.screen.focus = Focus::first_of(Page::Sync);
        story.state.screen.tour = Some(Tour { step: 4 + usize::from(!is_done), is_done });
        check_all(name, story);
    }
}
