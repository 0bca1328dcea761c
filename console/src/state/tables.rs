//! The table of each page: the only place that maps pages to tables, their selection and their arrangement.
use telemetry::{RequestReport, Severity};

use crate::state::{
    Page, State,
    clean::clean_line,
    events, models, nodes, plan, requests,
    row::TableRow,
    sync::Metric,
    table::{Arrangement, Table},
};

/// How the tables are arranged.
#[derive(Clone, Debug, PartialEq)]
pub struct TableState {
    /// Sorting, filter and selection of each page's table.
    pub arrangements: [Arrangement; Page::ALL.len()],
    /// Less severe events are hidden.
    pub severity_min: Severity,
    /// The figure shown in the heat map of the Sync page.
    pub sync_metric: Metric,
}

impl Default for TableState {
    fn default() -> Self {
        Self { arrangements: Default::default(), severity_min: Severity::Note, sync_metric: Metric::P95 }
    }
}

/// The table of a page; `None` for pages without one.
pub fn table(state: &State, page: Page) -> Option<Table> {
    match page {
        Page::Cluster => Some(nodes::table(state)),
        Page::Events => Some(events::table(state)),
        Page::Requests => Some(requests::table(state)),
        Page::Topology => Some(plan::table(state)),
        Page::Models => Some(models::table(state)),
        Page::Sync | Page::Generate | Page::Node | Page::Chat => None,
    }
}

/// Sorting, filter and selection of a page's table.
pub fn arrangement(state: &State, page: Page) -> &Arrangement {
    &state.tables.arrangements[page.index()]
}

/// The key of the selected row, which is always visible: the selected node or the row selected there, if the filter
/// shows it, otherwise the first row. Empty if no row is visible, so that no key can act on a hidden one.
pub fn selected(state: &State, page: Page) -> String {
    let Some(table) = table(state, page) else { return String::new() };
    let (rows, place) = shown(state, page, &table);
    rows.get(place).map_or_else(String::new, |row| row.key.clone())
}

/// The visible rows of a page's table, and the index of the selected one among them.
pub fn shown<'a>(state: &State, page: Page, table: &'a Table) -> (Vec<&'a TableRow>, usize) {
    let arrangement = arrangement(state, page);
    let rows = arrangement.rows(table);
    let place = match page {
        Page::Cluster => {
            let node = state.cluster.nodes.get(state.screen.selected).map(|node| node.address.as_str());
            rows.iter().position(|row| Some(row.key.as_str()) == node).unwrap_or(0)
        }
        _ => arrangement.place(&rows),
    };
    (rows, place)
}

/// The request of the selected row: the list index of its head, and its report.
pub fn selected_trace(state: &State) -> Option<(usize, &RequestReport)> {
    let table = requests::table(state);
    let (rows, place) = shown(state, Page::Requests, &table);
    let wanted = &rows.get(place)?.key;
    state.cluster.nodes.iter().enumerate().find_map(|(place, node)| {
        let report = node.report.as_ref()?;
        let trace = report.traces.iter().find(|trace| requests::key(node, report.epoch, trace) == *wanted)?;
        Some((place, trace))
    })
}

/// The selected request, if it is open on a head: the head's list index, its number there, and a description.
pub fn selected_request(state: &State) -> Option<(usize, u64, String)> {
    let (place, trace) = selected_trace(state)?;
    let (by, stage, tokens) = (clean_line(&trace.by), trace.stage.name(), trace.tokens);
    let so_far = format!("request {} of {by}, {stage}, {tokens} tokens so far", trace.number);
    (!trace.stage.is_over()).then_some((place, trace.number, so_far))
}
