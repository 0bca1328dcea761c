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
pub(super) fn read_log(story: &mut Story) {
    let (node, now) = (story.state.screen.selected, story.state.now);
    let Some(known) = story.state.cluster.nodes.get(node) else { return };
    let instance = known.report.as_ref().map_or(0, |report| report.instance);
    if story.state.journal.log.ask(node, instance, now).is_none() {
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

/// Asks the planner for candidates.
pub(super) fn planned(story: &mut Story) {
    let query = query(&story.state).expect("a topology runs");
    story.arrives(ClientEvent::Planned(Ok(Box::new(PlannerAnswer::new(query, sizes())))));
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
        planned(&mut story);
        story
    });
}

/// At this size the pages of a serving cluster are filled.
const FILLED_AT: (u16, u16) = (120, 40);

/// Pages that fill with figures; a chat holds an operator's text.
const FILLED: [Page; 8] =
    [Page::Cluster, Page::Topology, Page::Sync, Page::Generate, Page::Requests, Page::Events, Page::Node, Page::Models];

#[test]
fn serving_cluster_leaves_a_third_of_its_pages_blank_at_most() {
    let mut all = Vec::new();
    for page in FILLED {
        for is_planned in [false, true] {
            let mut story = Story::busy();
            if is_planned {
                planned(&mut story);
            }
            story.state.screen.focus = Focus::first_of(page);
            match page {
                Page::Node => read_log(&mut story),
                Page::Models => super::models::fill(&mut story),
                _ => {}
            }
            let buffer = crate::view::paint(&story.state, &Theme::colour(), FILLED_AT);
            let blank = buffer.content.iter().filter(|cell| cell.symbol() == " ").count();
            all.push((page.title(), is_planned, 100.0 * blank as f64 / buffer.content.len() as f64));
        }
    }
    assert!(all.iter().all(|(.., percent)| *percent <= 33.4), "percent of blank cells: {all:?}");
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
