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

/// The key of the row that is selected on a page: the node that is looked at, else what was selected there.
pub fn selected(state: &State, page: Page) -> String {
    match page {
        Page::Cluster => state.nodes.get(state.selected).map_or_else(String::new, |node| node.address.clone()),
        _ => {
            let arrangement = arrangement(state, page);
            let Some(table) = table(state, page) else { return String::new() };
            let rows = arrangement.rows(&table);
            rows.get(arrangement.place(&rows)).map_or_else(String::new, |row| row.key.clone())
        }
    }
}

/// The rows of a page's table as they are shown, and the place of the selected one among them.
pub fn shown<'a>(state: &State, page: Page, table: &'a Table) -> (Vec<&'a Row>, usize) {
    let rows = arrangement(state, page).rows(table);
    let key = selected(state, page);
    let place = rows.iter().position(|row| row.key == key).unwrap_or(0);
    (rows, place)
}
