//! Keys that change only the view: pages, panels, selection and scrolling.
use super::{generate, plan, table};
use crate::update::table::scrolled;
use crate::{
    keymap::Action,
    state::{Focus, Page, Spot, State, TextScroll, lateness::ranks},
};

/// Handles a key that changes only the view.
pub(super) fn show(state: &mut State, action: Action) {
    match action {
        Action::FocusNext => state.spot = state.spot.further(1),
        Action::FocusPrevious => state.spot = state.spot.further(state.spot.page.panels().len() - 1),
        Action::FocusPrompt => state.spot = Spot::first_of(Page::Generate),
        Action::Help => state.help = Some(0),
        Action::Show(page) => state.spot = Spot::first_of(page),
        Action::PageNext => leaf(state, 1),
        Action::PagePrevious => leaf(state, Page::ALL.len() - 1),
        Action::Open => open(state),
        Action::Terms => generate::open_form(state),
        Action::Pin => generate::pin(state),
        Action::SyncMetric => state.sync_metric = state.sync_metric.next(),
        Action::Older => state.sync.turn(-1),
        Action::Newer => state.sync.turn(1),
        Action::MuchOlder => state.sync.turn(-10),
        Action::MuchNewer => state.sync.turn(10),
        Action::Live => state.sync.live(),
        Action::Up | Action::Down | Action::PageUp | Action::PageDown | Action::Top | Action::Bottom => {
            scroll(state, action);
        }
        Action::Filter
        | Action::KeepFilter
        | Action::SortNext
        | Action::SortPrevious
        | Action::SortReverse
        | Action::Severity => table::act(state, action),
        Action::RankPrevious => select(state, state.selected.saturating_sub(1)),
        Action::RankNext => select(state, state.selected + 1),
        _ => {}
    }
}

/// Opens a neighbouring page, but never its prompt box: there the next press of the same key would be typed.
fn leaf(state: &mut State, distance: usize) {
    state.spot = Spot::first_of(state.spot.page.further(distance));
    if state.spot.is_typing() {
        state.spot = state.spot.further(1);
    }
}

/// Handles Enter on the selected item.
fn open(state: &mut State) {
    match state.spot.page {
        Page::Generate => state.spot = Spot::first_of(Page::Generate),
        Page::Topology => plan::ask_assign(state),
        Page::Requests => {}
        _ => {
            if let Some(place) = table::node_of_selected(state) {
                select(state, place);
                state.spot = Spot::first_of(Page::Node);
            }
        }
    }
}

fn select(state: &mut State, node: usize) {
    let node = node.min(state.nodes.len().saturating_sub(1));
    if node != state.selected {
        state.details_scroll = 0;
    }
    state.selected = node;
}

fn scroll(state: &mut State, action: Action) {
    let extent = state.extent;
    match state.spot.focus {
        Focus::Layers if state.spot.page == Page::Sync => {
            let last = extent.sync_rows.saturating_sub(extent.sync_height);
            state.sync_scroll = scrolled(state.sync_scroll.min(last), action, extent.sync_height, last);
        }
        Focus::Nodes if state.spot.page == Page::Sync => {
            let places: Vec<usize> = ranks(state).iter().filter_map(|row| row.node).collect();
            let at = places.iter().position(|place| *place == state.selected).unwrap_or(0);
            let last = places.len().saturating_sub(1);
            if let Some(place) = places.get(scrolled(at, action, last, last)) {
                select(state, *place);
            }
        }
        Focus::Prompt | Focus::Text => {
            let last = extent.text_lines.saturating_sub(extent.text_height);
            let at = match state.text_scroll {
                TextScroll::Follow => last,
                TextScroll::At(line) => line.min(last),
            };
            let at = scrolled(at, action, extent.text_height, last);
            state.text_scroll = if at >= last { TextScroll::Follow } else { TextScroll::At(at) };
        }
        Focus::Layers => {
            let last = state.layer_count().saturating_sub(extent.layers_height);
            state.layers_scroll = scrolled(state.layers_scroll.min(last), action, extent.layers_height, last);
        }
        Focus::Nodes | Focus::Candidates | Focus::Requests | Focus::Events | Focus::Filter => {
            table::scroll(state, action)
        }
        Focus::Details => {
            let last = extent.details_lines.saturating_sub(extent.details_height);
            state.details_scroll = scrolled(state.details_scroll.min(last), action, extent.details_height, last);
        }
        Focus::Picture => {
            let last = extent.picture_lines.saturating_sub(extent.picture_height);
            state.picture_scroll = scrolled(state.picture_scroll.min(last), action, extent.picture_height, last);
        }
    }
}
