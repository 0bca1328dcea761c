//! Keys in tables: select, sort, filter, open.

use super::scroll::scrolled;
use crate::{
    keymap::{EditAction, ScrollAction, TableAction},
    state::{
        Focus, Page, Panel, State,
        events::severity_after,
        filter::Filter,
        requests,
        table::{Align, Arrangement},
        tables::{self, shown},
    },
};

fn arrangement(state: &mut State) -> &mut Arrangement {
    &mut state.tables.arrangements[state.screen.focus.page.index()]
}

/// Handles a key on the current page's table.
pub(super) fn act(state: &mut State, action: TableAction) {
    let page = state.screen.focus.page;
    let Some(table) = tables::table(state, page) else { return };
    match action {
        TableAction::Filter => state.screen.focus.panel = Panel::Filter,
        TableAction::KeepFilter => {
            settle(state);
            state.screen.focus = Focus::first_of(page);
        }
        TableAction::SortNext => arrangement(state).sort_further(&table, false),
        TableAction::SortPrevious => arrangement(state).sort_further(&table, true),
        TableAction::SortReverse => arrangement(state).reverse(),
        TableAction::Severity => state.tables.severity_min = severity_after(state.tables.severity_min),
    }
}

/// Moves the selection by a scrolling key.
pub(super) fn scroll(state: &mut State, action: ScrollAction) {
    let page = state.screen.focus.page;
    let Some(table) = tables::table(state, page) else { return };
    let (rows, place) = shown(state, page, &table);
    let to = scrolled(place, action, state.screen.extent.table_height, rows.len().saturating_sub(1));
    let key = rows.get(to).map(|row| row.key.clone());
    select(state, key);
}

/// Selects the row with this key, and scrolls no more than needed to show it.
pub(super) fn select(state: &mut State, key: Option<String>) {
    let page = state.screen.focus.page;
    let Some(table) = tables::table(state, page) else { return };
    if page == Page::Cluster
        && let Some(place) = state.cluster.nodes.iter().position(|node| Some(&node.address) == key.as_ref())
    {
        state.screen.selected = place;
    }
    arrangement(state).selected = key;
    let (rows, place) = shown(state, page, &table);
    let (count, height) = (rows.len(), state.screen.extent.table_height);
    let first = arrangement(state).first_shown(place, count, height);
    arrangement(state).first = first;
}

/// Moves the selection to a row that the filter shows.
fn settle(state: &mut State) {
    let key = tables::selected(state, state.screen.focus.page);
    if !key.is_empty() {
        select(state, Some(key));
    }
}

/// The node of the selected row; on pages without such rows, the selected node.
pub(super) fn node_of_selected(state: &State) -> Option<usize> {
    let page = state.screen.focus.page;
    let key = tables::selected(state, page);
    match page {
        Page::Cluster => state.cluster.nodes.iter().position(|node| node.address == key),
        Page::Events => state.journal.events.entry(&key)?.node,
        Page::Requests => requests::head(state, &key),
        Page::Sync | Page::Generate | Page::Node | Page::Topology | Page::Models | Page::Chat => {
            Some(state.screen.selected).filter(|place| *place < state.cluster.nodes.len())
        }
    }
}

/// Shows only the rows that match a filter.
pub(super) fn filter(state: &mut State, text: &str) {
    if state.screen.focus.page.has_table() {
        arrangement(state).filter = Filter::new(text);
        settle(state);
    } else {
        state.screen.notice = Some(format!("the page {} has no table to filter", state.screen.focus.page.title()));
    }
}

/// Sorts by the column whose title starts with this text; `None`: the natural order.
pub(super) fn sort(state: &mut State, by: Option<(String, bool)>) {
    let Some(table) = tables::table(state, state.screen.focus.page) else {
        state.screen.notice = Some(format!("the page {} has no table to sort", state.screen.focus.page.title()));
        return;
    };
    let Some((title, descending)) = by else {
        arrangement(state).sort = None;
        return;
    };
    let wanted = title.to_lowercase();
    match table.columns.iter().position(|column| column.title.to_lowercase().starts_with(&wanted)) {
        Some(column) => arrangement(state).sort = Some((column, descending)),
        None => {
            let titles = table.columns.iter().map(|column| column.title).collect::<Vec<_>>().join(", ");
            state.screen.notice = Some(format!("no column {title:?}; one of {titles}"));
        }
    }
}

/// Sorts by the column whose head is under the mouse; a column that is sorted by already is reversed. Returns whether
/// there is one.
pub(super) fn click_head(state: &mut State, x: u16, y: u16) -> bool {
    let extent = state.screen.extent;
    if extent.table.width == 0 || extent.table.y.checked_sub(1) != Some(y) {
        return false;
    }
    let Some(table) = tables::table(state, state.screen.focus.page) else { return false };
    let at = extent.heads.iter().position(|(left, width)| x >= *left && x - left < *width);
    let Some((place, column)) = at.and_then(|place| Some((place, table.columns.get(place)?))) else { return false };
    match &mut arrangement(state).sort {
        Some((sorted, descending)) if *sorted == place => *descending = !*descending,
        sort => *sort = Some((place, column.align == Align::Right)),
    }
    true
}

/// Selects the row under the mouse, or opens it if it is already selected. Returns whether it was.
pub(super) fn click(state: &mut State, x: u16, y: u16) -> bool {
    let area = state.screen.extent.table;
    let page = state.screen.focus.page;
    let Some(table) = tables::table(state, page).filter(|_| area.contains(x, y)) else { return false };
    let (rows, place) = shown(state, page, &table);
    let at = state.screen.extent.table_first + usize::from(y - area.y);
    let Some(key) = rows.get(at).map(|row| row.key.clone()) else { return false };
    let is_selected = at == place;
    select(state, Some(key));
    is_selected
}

/// Inserts text into the filter.
pub(super) fn type_text(state: &mut State, text: &str) {
    let filter = &mut arrangement(state).filter;
    *filter = Filter::new(&(filter.typed().to_owned() + &text.replace(char::is_control, " ")));
    settle(state);
}

/// Handles editing keys in the filter.
pub(super) fn edit(state: &mut State, action: EditAction) {
    let filter = &mut arrangement(state).filter;
    let mut typed = filter.typed().to_owned();
    match action {
        EditAction::EraseBefore => drop(typed.pop()),
        EditAction::EraseToStart => typed.clear(),
        EditAction::EraseWord => {
            let kept = typed.trim_end().rfind(' ').map_or(0, |space| space + 1);
            typed.truncate(kept);
        }
        EditAction::NewLine
        | EditAction::CursorLeft
        | EditAction::CursorRight
        | EditAction::WordLeft
        | EditAction::WordRight
        | EditAction::LineStart
        | EditAction::LineEnd
        | EditAction::LineUp
        | EditAction::LineDown
        | EditAction::EraseAfter
        | EditAction::EraseToEnd => return,
    }
    *filter = Filter::new(&typed);
    settle(state);
}

/// Esc in the filter: removes it. Returns whether there was a filter to remove.
pub(super) fn escape(state: &mut State) -> bool {
    let is_filtered = !arrangement(state).filter.typed().is_empty();
    let is_typing = state.screen.focus.panel == Panel::Filter;
    if is_filtered {
        arrangement(state).filter = Filter::default();
    }
    if is_typing {
        state.screen.focus = Focus::first_of(state.screen.focus.page);
    }
    is_filtered || is_typing
}

#[cfg(test)]
mod tests;
