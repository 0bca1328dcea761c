//! Tests of the screen itself: freezing, command line, mouse, which updates render a frame.
use std::time::Duration;

use telemetry::NodeState;

use crate::{
    fixtures::Story,
    keymap::KeyCode,
    operator::command::Removal,
    state::{Area, Focus, Page, operation::Question, preferences::ThemeName},
    update::effect::Effect,
    update::event::{Event, Mouse, MouseKind},
};

fn on(page: Page) -> Story {
    let mut story = Story::ready();
    story.state.screen.focus = Focus::first_of(page);
    story.effects.clear();
    story
}

fn command(story: &mut Story, text: &str) {
    story.key(KeyCode::Char(':'));
    text.chars().for_each(|letter| {
        story.key(KeyCode::Char(letter));
    });
    story.key(KeyCode::Enter);
}

#[test]
fn frozen_screen_stays_unchanged_until_it_is_unfrozen() {
    let mut story = on(Page::Cluster);
    story.key(KeyCode::Char('f'));
    let seen = story.state.shown().cluster.nodes.clone();
    story.all_report(NodeState::Serving, true);
    assert!(story.state.shown().cluster.nodes == seen && story.state.cluster.nodes != seen);
    assert_eq!(story.state.frozen.as_ref().map(|frozen| frozen.events), Some(4));
    story.key(KeyCode::Char('3'));
    assert_eq!((story.state.shown().screen.focus.page, story.state.screen.focus.page), (Page::Sync, Page::Cluster));
    story.key(KeyCode::Char('f'));
    assert!(story.state.frozen.is_none() && story.state.cluster.nodes != seen);
    assert_eq!(story.state.screen.focus.page, Page::Sync, "the page of the frozen screen is kept");
}

#[test]
fn frozen_screen_cannot_act_on_nodes() {
    let mut story = on(Page::Cluster);
    story.key(KeyCode::Char('f')).key(KeyCode::Char('R')).key(KeyCode::Enter);
    assert_eq!(story.effects.iter().filter(|effect| effect.acts()).count(), 0);
    assert!(story.state.shown().screen.notice.as_ref().is_some_and(|notice| notice.contains("frozen")));
    story.key(KeyCode::Char('q'));
    assert!(story.effects.contains(&Effect::Quit(0)), "quitting always works");
}

#[test]
fn command_line_executes_commands_and_keeps_history() {
    let mut story = on(Page::Cluster);
    command(&mut story, "theme light");
    assert_eq!(story.state.preferences.theme, ThemeName::Light);
    command(&mut story, "page events");
    assert_eq!(story.state.screen.focus.page, Page::Events);
    command(&mut story, "restrat");
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.contains("\"restart\"?")));
    story.key(KeyCode::Char(':')).key(KeyCode::Up).key(KeyCode::Up);
    assert_eq!(story.state.preferences.command.text(), "page events");
    story.key(KeyCode::Esc);
    assert!(!story.state.preferences.is_commanding);
    command(&mut story, "quit");
    assert_eq!(story.effects, [Effect::Quit(0)]);
}

#[test]
fn commands_filter_and_sort_rows_where_there_is_a_table() {
    let mut story = on(Page::Cluster);
    command(&mut story, "filter pi2");
    command(&mut story, "sort temp down");
    let arrangement = &story.state.tables.arrangements[Page::Cluster.index()];
    assert_eq!((arrangement.filter.typed(), arrangement.sort.map(|sort| sort.1)), ("pi2", Some(true)));
    command(&mut story, "sort colour");
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.contains("one of node")));
    let mut story = on(Page::Node);
    command(&mut story, "filter x");
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.contains("no table")));
}

#[test]
fn click_opens_a_page_and_selects_a_row() {
    let mut story = on(Page::Cluster);
    story.state.screen.extent.tabs[Page::Events.index()] = Area { x: 40, y: 2, width: 10, height: 1 };
    story.state.screen.extent.table = Area { x: 0, y: 5, width: 80, height: 4 };
    let click = |story: &mut Story, x, y| {
        story.on(Event::Mouse(Mouse { kind: MouseKind::Click, x, y }));
    };
    click(&mut story, 3, 7);
    assert_eq!(story.state.screen.selected, 2);
    click(&mut story, 41, 2);
    assert_eq!(story.state.screen.focus.page, Page::Events);
}

#[test]
fn unchanged_report_renders_no_frame() {
    let mut story = on(Page::Cluster);
    let report = |story: &mut Story, unix_ms| {
        let mut report = crate::fixtures::running(1, NodeState::Ready, false);
        report.unix_ms = unix_ms;
        let event = crate::update::event::ClientEvent::Report { node: 1, report: Box::new(report) };
        crate::update::update(&mut story.state, Event::Client(event))
    };
    report(&mut story, 1);
    assert_eq!(report(&mut story, 2), []);
    story.on(Event::Tick { now: Duration::from_secs(60) });
    assert_eq!(report(&mut story, 3), [Effect::Draw], "a silent node reports again");
}

#[test]
fn commands_act_on_the_node_that_they_name_and_never_do_the_opposite() {
    let mut story = on(Page::Cluster);
    let notice = |story: &Story| story.state.screen.notice.clone().unwrap_or_default();
    // A filter that hides the node does not turn the command to another one.
    command(&mut story, "filter pi1");
    command(&mut story, "exclude pi3");
    assert!(matches!(dialog(&story), Some(Question::Out { node: 3, how: Removal::Exclude })), "{:?}", dialog(&story));
    story.key(KeyCode::Esc);
    for (typed, part) in [
        ("include pi0", "pi0 is not excluded"),
        ("uncordon pi0", "pi0 is not excluded"),
        ("drain pi9", "no node \"pi9\"; the nodes are pi0, pi1"),
        ("cordon pi", "several nodes"),
    ] {
        command(&mut story, typed);
        assert!(dialog(&story).is_none() && notice(&story).contains(part), "{typed}: {}", notice(&story));
    }
    command(&mut story, "restart pi2");
    assert!(matches!(dialog(&story), Some(Question::Restart { which }) if which == [2]), "{:?}", dialog(&story));
    story.key(KeyCode::Esc);
    command(&mut story, "node pi1");
    assert_eq!((story.state.screen.focus.page, story.state.screen.selected), (Page::Node, 1));
    let mut story = Story::degraded();
    story.key(KeyCode::Esc).key(KeyCode::Esc);
    command(&mut story, "cordon pi3");
    assert!(dialog(&story).is_none() && notice(&story).contains("cordoned already"), "{}", notice(&story));
    command(&mut story, "uncordon pi3");
    assert!(matches!(dialog(&story), Some(Question::In { node: 3 })), "{:?}", dialog(&story));
}

fn dialog(story: &Story) -> Option<Question> {
    story.state.operations.dialog.as_ref().map(|dialog| dialog.question.clone())
}
