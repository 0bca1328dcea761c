//! Clicks and the wheel on what a frame shows: column heads, keys in the last line, panels.
use ratatui::buffer::Buffer;

use super::snapshot::picture;
use crate::{
    fixtures::Story,
    keymap::KeyCode,
    state::{Focus, Page, Panel, tables},
    update::effect::Effect,
    update::event::{Event, Mouse, MouseKind},
};

/// The cell where a text begins.
fn find(buffer: &Buffer, text: &str) -> (u16, u16) {
    let wanted: Vec<String> = text.chars().map(|letter| letter.to_string()).collect();
    let mut cells = (0..buffer.area.height).flat_map(|y| (0..buffer.area.width).map(move |x| (x, y)));
    let found = cells.find(|(x, y)| {
        let mut letters = wanted.iter().enumerate();
        letters.all(|(step, letter)| buffer.cell((*x + step as u16, *y)).is_some_and(|cell| cell.symbol() == letter))
    });
    found.unwrap_or_else(|| panic!("{text:?} is not on the screen"))
}

fn story(page: Page) -> Story {
    let mut story = Story::busy();
    story.key(KeyCode::Esc);
    story.state.operations.dialog = None;
    story.state.screen.focus = Focus::first_of(page);
    story.effects.clear();
    story
}

fn mouse(story: &mut Story, kind: MouseKind, text: &str) {
    let buffer = picture(story, 120, 40);
    let (x, y) = find(&buffer, text);
    story.on(Event::Mouse(Mouse { kind, x, y }));
}

#[test]
fn click_on_a_column_head_sorts_and_again_reverses() {
    let mut story = story(Page::Cluster);
    let sorted = |story: &Story| {
        let table = tables::table(&story.state, Page::Cluster).expect("page has a table");
        let sort = tables::arrangement(&story.state, Page::Cluster).sort;
        sort.map(|(column, descending)| (table.columns[column].title, descending))
    };
    mouse(&mut story, MouseKind::Click, "state ");
    assert_eq!(sorted(&story), Some(("state", false)));
    mouse(&mut story, MouseKind::Click, "state↑");
    assert_eq!(sorted(&story), Some(("state", true)));
    mouse(&mut story, MouseKind::Click, "temp");
    assert_eq!(sorted(&story), Some(("temp", true)), "figures start with the largest");
}

#[test]
fn click_on_a_key_in_the_last_line_does_what_the_key_does() {
    let mut story = story(Page::Events);
    mouse(&mut story, MouseKind::Click, "? help");
    assert_eq!(story.state.screen.help, Some(0));
    story.key(KeyCode::Esc);
    mouse(&mut story, MouseKind::Click, "filter");
    assert_eq!(story.state.screen.focus.panel, Panel::Filter);
    story.key(KeyCode::Esc);
    mouse(&mut story, MouseKind::Click, "quit");
    assert_eq!(story.effects.last(), Some(&Effect::Quit(0)));
}

#[test]
fn wheel_scrolls_the_panel_under_the_pointer_and_keeps_the_focus() {
    let mut story = story(Page::Sync);
    story.state.screen.scroll.sync = 0;
    let buffer = picture(&mut story, 120, 24);
    let (_, layers) = find(&buffer, "layer");
    let before = story.state.screen.focus;
    story.on(Event::Mouse(Mouse { kind: MouseKind::WheelDown, x: 4, y: layers + 1 }));
    let extent = story.state.screen.extent;
    assert!(extent.panels[1].contains(4, layers + 1), "{:?}", extent.panels);
    assert_eq!(story.state.screen.scroll.sync, 3.min(extent.sync_rows.saturating_sub(extent.sync_height)));
    assert_eq!((story.state.screen.focus, story.state.screen.selected), (before, 0));
}
