//! Keys that change only the view: pages, panels, selection and scrolling.
use super::{chat, plan, scroll::scrolled, table};
use crate::{
    keymap::{Focus, NavigateAction, Page, Panel, ScrollAction},
    state::{State, TextScroll, lateness::ranks},
};

/// Performs an action that changes only the view.
pub(super) fn act(state: &mut State, action: NavigateAction) {
    let focus = state.screen.focus;
    match action {
        NavigateAction::FocusNext => state.screen.focus = focus.further(1),
        NavigateAction::FocusPrevious => state.screen.focus = focus.further(focus.page.panels().len() - 1),
        NavigateAction::FocusPrompt => state.screen.focus = Focus::first_of(page_with_prompt(focus.page)),
        NavigateAction::Show(page) => state.screen.focus = Focus::first_of(page),
        NavigateAction::PageNext => turn_page(state, 1),
        NavigateAction::PagePrevious => turn_page(state, Page::ALL.len() - 1),
        NavigateAction::Open => open(state),
        NavigateAction::SyncMetric => state.tables.sync_metric = state.tables.sync_metric.next(),
        NavigateAction::Older => state.cluster.sync.turn(-1),
        NavigateAction::Newer => state.cluster.sync.turn(1),
        NavigateAction::MuchOlder => state.cluster.sync.turn(-10),
        NavigateAction::MuchNewer => state.cluster.sync.turn(10),
        NavigateAction::Live => state.cluster.sync.live(),
        NavigateAction::RankPrevious => select(state, state.screen.selected.saturating_sub(1)),
        NavigateAction::RankNext => select(state, state.screen.selected + 1),
    }
}

/// The page whose prompt box is meant: that of the current page, or of the page Generate.
fn page_with_prompt(page: Page) -> Page {
    if page == Page::Chat { page } else { Page::Generate }
}

/// Opens a neighbouring page, but never its prompt box: there the next press of the same key would be typed.
fn turn_page(state: &mut State, distance: usize) {
    state.screen.focus = Focus::first_of(state.screen.focus.page.further(distance));
    if state.screen.focus.is_typing() {
        state.screen.focus = state.screen.focus.further(1);
    }
}

/// Handles Enter on the selected item.
fn open(state: &mut State) {
    match state.screen.focus.page {
        page @ (Page::Generate | Page::Chat) => state.screen.focus = Focus::first_of(page),
        Page::Topology => plan::ask_assign(state),
        // Enter on the page Models issues effects: update/models.rs.
        Page::Requests | Page::Models => {}
        Page::Cluster | Page::Sync | Page::Events | Page::Node => {
            if let Some(place) = table::node_of_selected(state) {
                select(state, place);
                state.screen.focus = Focus::first_of(Page::Node);
            }
        }
    }
}

fn select(state: &mut State, node: usize) {
    let node = node.min(state.cluster.nodes.len().saturating_sub(1));
    if node != state.screen.selected {
        state.screen.scroll.details = 0;
    }
    state.screen.selected = node;
}

/// Scrolls the panel that has the focus, or moves its selection.
pub(super) fn scroll(state: &mut State, action: ScrollAction) {
    let (extent, focus) = (state.screen.extent, state.screen.focus);
    let scroll = &mut state.screen.scroll;
    match focus.panel {
        Panel::Layers if focus.page == Page::Sync => {
            let last = extent.sync_rows.saturating_sub(extent.sync_height);
            scroll.sync = scrolled(scroll.sync.min(last), action, extent.sync_height, last);
        }
        Panel::Nodes if focus.page == Page::Sync => {
            let places: Vec<usize> = ranks(state).iter().filter_map(|row| row.node).collect();
            let at = places.iter().position(|place| *place == state.screen.selected).unwrap_or(0);
            let last = places.len().saturating_sub(1);
            if let Some(place) = places.get(scrolled(at, action, last, last)) {
                select(state, *place);
            }
        }
        Panel::Prompt | Panel::Text => {
            let last = extent.text_lines.saturating_sub(extent.text_height);
            let at = match scroll.text {
                TextScroll::Follow => last,
                TextScroll::At(line) => line.min(last),
            };
            let at = scrolled(at, action, extent.text_height, last);
            scroll.text = if at >= last { TextScroll::Follow } else { TextScroll::At(at) };
        }
        Panel::Layers => {
            let last = state.layer_count().saturating_sub(extent.layers_height);
            let scroll = &mut state.screen.scroll;
            scroll.layers = scrolled(scroll.layers.min(last), action, extent.layers_height, last);
        }
        Panel::Nodes | Panel::Candidates | Panel::Requests | Panel::Events | Panel::Models | Panel::Filter => {
            table::scroll(state, action);
        }
        Panel::Conversations => chat::scroll(state, action),
        Panel::Details => {
            let last = extent.details_lines.saturating_sub(extent.details_height);
            scroll.details = scrolled(scroll.details.min(last), action, extent.details_height, last);
        }
        Panel::Picture => {
            let last = extent.picture_lines.saturating_sub(extent.picture_height);
            scroll.picture = scrolled(scroll.picture.min(last), action, extent.picture_height, last);
        }
    }
}
