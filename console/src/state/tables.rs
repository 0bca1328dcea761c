//! The table of each page: the one place that says which page has which, what is selected on it, and how it is arranged.
use crate::state::{
    Page, State, cluster, events, plan, requests,
    table::{Arrangement, Row, Table},
};

/// The table of a page; `None` for pages without one.
pub fn table(state: &State, page: Page) -> Option<Table> {
    match page {
        Page::Cluster => Some(cluster::table(state)),
        Page::Events => Some(events::table(state)),
        Page::Requests => Some(requests::table(state)),
        Page::Topology => Some(plan::table(state)),
        Page::Sync | Page::Generate | Page::Node => None,
    }
}

/// How the table of a page is arranged.
pub fn arrangement(state: &State, page: Page) -> &Arrangement {
    &state.arrangements[page.index()]
}

/// The key of the row that is selected on a page, which is always a row that is shown: the node that is looked at, or what was selected
/// there, as long as the filter takes it, else the first row. Empty where no row is shown: there is nothing that a key could act on.
pub fn selected(state: &State, page: Page) -> String {
    let Some(table) = table(state, page) else { return String::new() };
    let (rows, place) = shown(state, page, &table);
    rows.get(place).map_or_else(String::new, |row| row.key.clone())
}

/// The rows of a page's table as they are shown, and the place of the selected one among them.
pub fn shown<'a>(state: &State, page: Page, table: &'a Table) -> (Vec<&'a Row>, usize) {
    let arrangement = arrangement(state, page);
    let rows = arrangement.rows(table);
    let place = match page {
        Page::Cluster => {
            let node = state.nodes.get(state.selected).map(|node| node.address.as_str());
            rows.iter().position(|row| Some(row.key.as_str()) == node).unwrap_or(0)
        }
        _ => arrangement.place(&rows),
    };
    (rows, place)
}
