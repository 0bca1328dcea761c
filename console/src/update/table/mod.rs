//! Keys in tables: select, sort, filter, open.

use crate::{
    keymap::Action,
    state::{
        Focus, Page, Spot, State,
        events::severity_after,
        filter::Filter,
        requests,
        table::Arrangement,
        tables::{self, shown},
    },
};

fn arrangement(state: &mut State) -> &mut Arrangement {
    &mut state.arrangements[state.spot.page.index()]
}

/// Handles a key on the current page's table.
pub(super) fn act(state: &mut State, action: Action) {
    let page = state.spot.page;
    let Some(table) = tables::table(state, page) else { return };
    match action {
        Action::Filter => state.spot.focus = Focus::Filter,
        Action::KeepFilter => {
            settle(state);
            state.spot = Spot::first_of(page);
        }
        Action::SortNext => arrangement(state).sort_further(&table, false),
        Action::SortPrevious => arrangement(state).sort_further(&table, true),
        Action::SortReverse => arrangement(state).reverse(),
        Action::Severity => state.severity_min = severity_after(state.severity_min),
        _ => {}
    }
}

/// Moves the selection by a scrolling key.
pub(super) fn scroll(state: &mut State, action: Action) {
    let page = state.spot.page;
    let Some(table) = tables::table(state, page) else { return };
    let (rows, place) = shown(state, page, &table);
    let to = scrolled(place, action, state.extent.table_height, rows.len().saturating_sub(1));
    let key = rows.get(to).map(|row| row.key.clone());
    select(state, key);
}

/// Selects the row with this key, and scrolls no more than needed to show it.
pub(super) fn select(state: &mut State, key: Option<String>) {
    let page = state.spot.page;
    let Some(table) = tables::table(state, page) else { return };
    if page == Page::Cluster
        && let Some(place) = state.nodes.iter().position(|node| Some(&node.address) == key.as_ref())
    {
        state.selected = place;
    }
    arrangement(state).selected = key;
    let (rows, place) = shown(state, page, &table);
    let (count, height) = (rows.len(), state.extent.table_height);
    let first = arrangement(state).first_shown(place, count, height);
    arrangement(state).first = first;
}

/// Moves the selection to a row that the filter shows.
fn settle(state: &mut State) {
    let key = tables::selected(state, state.spot.page);
    if !key.is_empty() {
        select(state, Some(key));
    }
}

/// The node of the selected row; on pages without such rows, the selected node.
pub(super) fn node_of_selected(state: &State) -> Option<usize> {
    let page = state.spot.page;
    let key = tables::selected(state, page);
    match page {
        Page::Cluster => state.nodes.iter().position(|node| node.address == key),
        Page::Events => state.events.entry(&key)?.node,
        Page::Requests => requests::head(state, &key),
        Page::Sync | Page::Generate | Page::Node | Page::Topology => {
            Some(state.selected).filter(|place| *place < state.nodes.len())
        }
    }
}

/// Shows only the rows that match a filter.
pub(super) fn filter(state: &mut State, text: &str) {
    if state.spot.page.has_table() {
        arrangement(state).filter = Filter::new(text);
        settle(state);
    } else {
        state.notice = Some(format!("the page {} has no table to filter", state.spot.page.title()));
    }
}

/// Sorts by the column whose title starts with this text; `None`: the natural order.
pub(super) fn sort(state: &mut State, by: Option<(String, bool)>) {
    let Some(table) = tables::table(state, state.spot.page) else {
        state.notice = Some(format!("the page {} has no table to sort", state.spot.page.title()));
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
            state.notice = Some(format!("no column {title:?}; one of {titles}"));
        }
    }
}

/// Selects the row under the mouse, or opens it if it is already selected. Returns whether it was.
pub(super) fn click(state: &mut State, x: u16, y: u16) -> bool {
    let area = state.extent.table;
    let page = state.spot.page;
    let Some(table) = tables::table(state, page).filter(|_| area.contains(x, y)) else { return false };
    let (rows, place) = shown(state, page, &table);
    let at = state.extent.table_first + usize::from(y - area.y);
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
pub(super) fn edit(state: &mut State, action: Action) {
    let filter = &mut arrangement(state).filter;
    let mut typed = filter.typed().to_owned();
    match action {
        Action::EraseBefore => drop(typed.pop()),
        Action::EraseToStart => typed.clear(),
        Action::EraseWord => {
            let kept = typed.trim_end().rfind(' ').map_or(0, |space| space + 1);
            typed.truncate(kept);
        }
        _ => return,
    }
    *filter = Filter::new(&typed);
    settle(state);
}

/// Esc in the filter: removes it. Returns whether there was a filter to remove.
pub(super) fn escape(state: &mut State) -> bool {
    let is_filtered = !arrangement(state).filter.typed().is_empty();
    let is_typing = state.spot.focus == Focus::Filter;
    if is_filtered {
        arrangement(state).filter = Filter::default();
    }
    if is_typing {
        state.spot = Spot::first_of(state.spot.page);
    }
    is_filtered || is_typing
}

/// The position that a scrolling key leads to from `at`, with `page` lines per page and `last` as the maximum.
pub(super) fn scrolled(at: usize, action: Action, page: usize, last: usize) -> usize {
    // Keep one line of the old page on the new one.
    let page = page.saturating_sub(1).max(1);
    let at = match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => at + 1,
        Action::PageUp => at.saturating_sub(page),
        Action::PageDown => at + page,
        Action::Top => 0,
        _ => last,
    };
    at.min(last)
}

#[cfg(test)]
mod tests;
