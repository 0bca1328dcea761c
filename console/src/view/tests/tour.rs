//! The box of the guided tour below a page.
use super::snapshot::check_all;
use crate::{
    fixtures::Story,
    state::{
        Focus, Page,
        tour::{STEPS, Tour},
    },
    view::{paint, theme::Theme},
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

#[test]
fn every_page_renders_above_every_step_on_small_screens() {
    let mut story = Story::busy();
    for step in 0..STEPS.len() {
        story.state.screen.tour = Some(Tour { step, is_done: false });
        for page in Page::ALL {
            story.state.screen.focus = Focus::first_of(page);
            for size in [(60, 16), (80, 16), (80, 17), (80, 18)] {
                paint(&story.state, &Theme::colour(), size);
            }
        }
    }
}
