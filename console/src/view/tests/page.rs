//! Snapshot tests of every page in four states at three sizes, stored as text below `snapshots/pages`.
use protocol::inspect::{LogLevel, LogLine, LogLines};

use super::snapshot::check_at;
use crate::{
    fixtures::{Story, defaults, sizes},
    operator::planner_query::PlannerAnswer,
    state::{Focus, Page, State, plan::query},
    update::event::ClientEvent,
    view::theme::Theme,
};

/// The smallest terminal over ssh, a window, a full screen.
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// Fills the log of the selected node, if there is one.
fn read_log(story: &mut Story) {
    let (node, now) = (story.state.screen.selected, story.state.now);
    if story.state.cluster.nodes.is_empty() || story.state.journal.log.ask(node, now).is_none() {
        return;
    }
    let said = [
        (1, LogLevel::Info, "brambled 0.1.0 name=pi0 listen=10.0.0.1:9999 epoch=2 kernels=avx2"),
        (2, LogLevel::Info, "idle -> loading epoch=3"),
        (3, LogLevel::Warn, "the processor is hot: 84.2 degrees"),
        (4, LogLevel::Error, "the disk takes no writes \u{1b}[2J"),
    ];
    let lines = said.map(|(number, level, text)| LogLine {
        number,
        unix_ms: 1_795_339_400_000 + 1500 * number,
        level,
        text: text.into(),
    });
    let lines = LogLines { lines: lines.into(), next: 4, ..LogLines::default() };
    story.arrives(ClientEvent::Log { node, answer: Ok(lines) });
}

/// Compares every page of a story with its snapshots.
#[track_caller]
fn check(state: &str, make: impl Fn() -> Story) {
    for page in Page::ALL {
        let mut story = make();
        story.state.screen.focus = Focus::first_of(page);
        if page == Page::Node {
            read_log(&mut story);
        }
        if page == Page::Models && !story.state.cluster.nodes.is_empty() {
            super::models::fill(&mut story);
        }
        check_at(&format!("pages/{}-{state}", page.title().to_lowercase()), story, &SIZES);
    }
}

#[test]
fn pages_of_a_busy_cluster() {
    check("normal", || {
        let mut story = Story::busy();
        let query = query(&story.state).expect("a topology runs");
        story.arrives(ClientEvent::Planned(Ok(Box::new(PlannerAnswer::new(query, sizes())))));
        story
    });
}

/// At this size the pages of a serving cluster are filled.
const FILLED_AT: (u16, u16) = (120, 40);

#[test]
fn serving_cluster_leaves_a_third_of_its_page_blank_at_most() {
    let mut story = Story::busy();
    story.state.screen.focus = Focus::first_of(Page::Cluster);
    let buffer = crate::view::paint(&story.state, &Theme::colour(), FILLED_AT);
    let blank = buffer.content.iter().filter(|cell| cell.symbol() == " ").count();
    assert!(3 * blank <= buffer.content.len(), "{blank} of {} cells are blank", buffer.content.len());
}

#[test]
fn pages_without_nodes() {
    check("empty", || Story::with(State::new(&[], None, "", defaults())));
}

#[test]
fn pages_of_a_degraded_cluster() {
    check("degraded", Story::degraded);
}

#[test]
fn pages_after_a_node_was_lost() {
    check("error", Story::lost);
}
