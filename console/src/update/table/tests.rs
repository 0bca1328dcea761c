//! Tests that keys act only on visible rows: filters in every table, and the keys afterwards.
use telemetry::NodeState;

use crate::{
    fixtures::{Story, address, name},
    keymap::{Key, KeyCode},
    state::{Page, operation::Question, tables},
    update::event::Event,
};

/// Rows in the tables of nodes, requests and events, with the focus outside the prompt box.
fn story() -> Story {
    let mut story = Story::busy();
    story.key(KeyCode::Esc);
    story.state.operations.dialog = None;
    story
}

fn press(story: &mut Story, keys: &str) {
    for letter in keys.chars() {
        story.key(KeyCode::Char(letter));
    }
}

fn shown(story: &Story, page: Page) -> Vec<String> {
    let Some(table) = tables::table(&story.state, page) else { return Vec::new() };
    tables::shown(&story.state, page, &table).0.into_iter().map(|row| row.key.clone()).collect()
}

fn filter(story: &mut Story, text: &str) {
    press(story, "/");
    story.on(Event::Paste(text.to_owned())).key(KeyCode::Enter);
}

#[test]
fn selected_row_of_every_table_matches_the_filter() {
    for page in Page::ALL.into_iter().filter(|page| page.has_table()) {
        let mut story = story();
        press(&mut story, &(page.index() + 1).to_string());
        let rows = shown(&story, page);
        for wanted in &rows {
            // Place the cursor on each row, one after another, and filter that row out.
            super::select(&mut story.state, Some(wanted.clone()));
            assert_eq!(tables::selected(&story.state, page), *wanted);
            let table = tables::table(&story.state, page).expect("page has a table");
            for row in &table.rows {
                super::filter(&mut story.state, &row.cells[0].text);
                let (now, selected) = (shown(&story, page), tables::selected(&story.state, page));
                assert!(now.contains(&selected), "{page:?}: {selected} is not in {now:?}");
            }
            super::filter(&mut story.state, "no row has this text");
            assert_eq!(tables::selected(&story.state, page), "", "{page:?}: no row is selected");
            super::filter(&mut story.state, "");
        }
    }
}

#[test]
fn keys_after_a_filter_act_on_a_visible_row() {
    let hidden = name(0);
    for (key, place) in [('x', 2), ('c', 2), ('d', 2), ('x', 3)] {
        let mut story = Story::ready();
        story.key(KeyCode::Esc);
        press(&mut story, "1g");
        filter(&mut story, &name(place));
        assert_eq!(shown(&story, Page::Cluster), [address(place)]);
        press(&mut story, &key.to_string());
        let question = story.state.operations.dialog.as_ref().map(|dialog| dialog.question.clone());
        assert!(matches!(question, Some(Question::Out { node, .. }) if node == place), "{key}: {hidden}: {question:?}");
    }
    let mut story = Story::ready();
    story.key(KeyCode::Esc);
    press(&mut story, "1g");
    filter(&mut story, &name(2));
    story.key(KeyCode::Enter);
    assert_eq!((story.state.screen.focus.page, story.state.screen.selected), (Page::Node, 2));
}

#[test]
fn keys_do_nothing_if_the_filter_matches_no_row() {
    let mut story = Story::ready();
    story.key(KeyCode::Esc);
    press(&mut story, "1g");
    filter(&mut story, "no such node");
    for key in ["x", "c", "d"] {
        press(&mut story, key);
        assert!(
            story.state.operations.dialog.is_none() && story.state.screen.notice.is_some(),
            "{key}: {:?}",
            story.state.operations.dialog
        );
    }
    story.key(KeyCode::Enter);
    assert_eq!(story.state.screen.focus.page, Page::Cluster);
}

#[test]
fn keys_ignore_a_row_that_a_report_hides() {
    let mut story = Story::ready();
    story.key(KeyCode::Esc);
    press(&mut story, "1g");
    filter(&mut story, "ready");
    assert_eq!(tables::selected(&story.state, Page::Cluster), address(0));
    story.report(0, crate::fixtures::running(0, NodeState::Faulted, false));
    press(&mut story, "x");
    let question = story.state.operations.dialog.as_ref().map(|dialog| dialog.question.clone());
    assert!(matches!(question, Some(Question::Out { node: 1, .. })), "{question:?}");
}

#[test]
fn request_hidden_by_the_filter_is_not_cancelled() {
    let mut story = story();
    press(&mut story, "5");
    let rows = shown(&story, Page::Requests);
    assert!(rows.len() > 1, "{rows:?}");
    super::filter(&mut story.state, "no row has this text");
    assert_eq!(crate::state::tables::selected_request(&story.state), None);
    story.on(Event::Key(Key::plain(KeyCode::Char('X'))));
    assert!(story.state.operations.dialog.is_none());
}
