//! The Models page: the models that nodes have above the catalogue, and the details of the selected row below.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
};

use crate::{
    catalogue::{CatalogueEntry, CatalogueFile, decimal, of_file},
    operator::transfer::{picture, share},
    state::{
        Extent, Page, Panel, State,
        clean::clean_line,
        models::{COLUMNS, ModelChoice, ModelRow, SPEED_FULL, is_known, row_of},
        row::TableRow,
        table::{Arrangement, Table},
        tables,
    },
    view::{
        format::{shorten, width},
        theme::Theme,
        widgets::{
            panel::{lines, panel},
            paragraph::paragraph,
            table,
        },
    },
};

/// Lines of the details, with their title.
const DETAILS: u16 = 5;
/// Minimum height of a page with details.
const DETAILS_FROM: u16 = 18;
/// Width from which dots lead from a name to its figures.
const LEADERS_FROM: u16 = 100;
/// Cells of the bar of a transfer.
const BAR: usize = 24;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let Some(content) = tables::table(state, Page::Models) else { return };
    let arrangement = tables::arrangement(state, Page::Models);
    let (rows, _) = tables::shown(state, Page::Models, &content);
    let selected = tables::selected(state, Page::Models);
    let details = if area.height >= DETAILS_FROM { DETAILS } else { 2 };
    let [area, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(details)]).areas(area);
    let focused = matches!(state.screen.focus.panel, Panel::Models | Panel::Filter);
    let words = arrangement.words(&content, rows.len());
    let part = ModelRows { state, theme, selected: &selected, focused, words: &words };
    if arrangement.sort.is_some() {
        // Sorted rows are one list.
        let all: Vec<TableRow> = rows.iter().map(|row| (*row).clone()).collect();
        part.draw(frame, area, "Models", remark(state), (all, 0), extent);
    } else {
        let (held, known): (Vec<TableRow>, Vec<TableRow>) =
            rows.iter().map(|row| (*row).clone()).partition(|row| !is_known(&row.key));
        let upper = (held.len() as u16 + 2).clamp(3, (area.height / 2).max(3));
        let [above, rest] = Layout::vertical([Constraint::Length(upper), Constraint::Fill(1)]).areas(area);
        let first = held.len();
        part.draw(frame, above, "On the nodes", remark(state), (held, 0), extent);
        part.draw(frame, rest, "Catalogue", predicted(state), (known, first), extent);
    }
    draw_details(state, theme, frame, below, row_of(state, &selected));
}

/// What the two tables have in common.
struct ModelRows<'a> {
    state: &'a State,
    theme: &'a Theme,
    selected: &'a str,
    focused: bool,
    words: &'a str,
}

impl ModelRows<'_> {
    /// Renders a table of rows, of which the first has this index on the page.
    fn draw(
        &self,
        frame: &mut Frame,
        area: Rect,
        title: &str,
        remark: String,
        rows: (Vec<TableRow>, usize),
        extent: &mut Extent,
    ) {
        let (rows, offset) = rows;
        let has_selected = rows.iter().any(|row| row.key == self.selected);
        let remark = if self.words.is_empty() || !has_selected {
            Span::styled(remark, self.theme.dim)
        } else {
            Span::styled(self.words.to_owned(), self.theme.accent)
        };
        let inner = panel(frame, self.theme, area, self.focused && has_selected, title, remark);
        if rows.is_empty() {
            let text = if offset > 0 || self.state.models.list.waiting.is_empty() {
                empty(self.state, offset)
            } else {
                String::new()
            };
            return lines(frame, inner, [Line::styled(format!(" {text}"), self.theme.dim)]);
        }
        let arrangement =
            Arrangement { sort: tables::arrangement(self.state, Page::Models).sort, ..Arrangement::default() };
        let rows = if inner.width >= LEADERS_FROM { with_leaders(rows) } else { rows };
        let content = Table { columns: COLUMNS, rows };
        let drawn = table::draw(frame, self.theme, inner, &content, &arrangement, self.selected, table::wish(&content));
        if has_selected {
            (extent.table, extent.heads) = (drawn.area, drawn.heads);
            extent.table_first = offset + drawn.first;
            extent.table_height = usize::from(drawn.area.height);
        }
    }
}

/// Dots that lead the eye from a name to the figures of its row.
fn with_leaders(mut rows: Vec<TableRow>) -> Vec<TableRow> {
    for cell in rows.iter_mut().filter_map(|row| row.cells.first_mut()) {
        let gap = COLUMNS[0].width.saturating_sub(width(&cell.text) + 1);
        if gap > 0 {
            cell.text = format!("{} {}", cell.text, "·".repeat(gap));
        }
    }
    rows
}

fn empty(state: &State, offset: usize) -> String {
    let arrangement = tables::arrangement(state, Page::Models);
    if !arrangement.filter.typed().is_empty() {
        return "Nothing matches the filter; Esc shows all again.".to_owned();
    }
    match (offset, &state.models.fresh) {
        (0, Some(fresh)) if !fresh.waiting.is_empty() => "Reading the nodes' model folders ..".to_owned(),
        _ => "No node has a model. Select one below; Enter downloads it to the nodes.".to_owned(),
    }
}

/// Faults of nodes, or the size of all models.
fn remark(state: &State) -> String {
    let list = state.models.shown();
    let fault = list.faults.first().map(|(place, reason)| {
        let node = state.cluster.nodes.get(*place).map_or("?", |node| node.name());
        format!("{node}: {reason}")
    });
    fault.unwrap_or_else(|| match list.choices.len() {
        0 => String::new(),
        count => {
            let bytes = list.choices.iter().map(|choice| choice.bytes).sum();
            format!("{count} model{}, {}", if count == 1 { "" } else { "s" }, decimal(bytes))
        }
    })
}

fn predicted(state: &State) -> String {
    let nodes = match state.models.fits_for.len() {
        0 => return String::new(),
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    };
    format!("predicted for {nodes}, as if no model were loaded; full bar {SPEED_FULL:.0} tok/s")
}

/// The transfer under way, or the selected model in full.
fn draw_details(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, row: Option<ModelRow>) {
    let cells = usize::from(area.width).saturating_sub(2);
    let mut body: Vec<Line> = Vec::new();
    if let Some(pull) = &state.models.pull {
        let text = match picture(&pull.name, &pull.lanes, state.now) {
            text if text.is_empty() => format!("{}: asking the nodes", pull.name),
            text => text,
        };
        let done = share(&pull.lanes).map_or(0, |share| (share * BAR as f64) as usize);
        let bar = Span::styled(format!(" {}{} ", "█".repeat(done), "░".repeat(BAR - done)), theme.accent);
        let room = cells.saturating_sub(BAR + 14);
        body.push(Line::from_iter([
            bar,
            Span::styled(shorten(&text, room), theme.plain),
            Span::styled("  X cancels", theme.dim),
        ]));
    }
    let (title, texts) = match &row {
        Some(ModelRow::Held(choice)) => (clean_line(&choice.model), about_held(state, choice)),
        Some(ModelRow::Known(entry)) => (entry.name.to_owned(), about(entry, entry.usual())),
        None => (String::new(), Vec::new()),
    };
    for text in texts {
        body.extend(paragraph(&text, " ", theme.plain, cells + 1));
    }
    let inner = panel(frame, theme, area, false, &title, Span::raw(""));
    lines(frame, inner, body);
}

/// Facts about a model that nodes have.
fn about_held(state: &State, choice: &ModelChoice) -> Vec<String> {
    let names = choice.nodes.iter().filter_map(|place| state.cluster.nodes.get(*place)).map(|node| node.name());
    let on = format!(
        "On {}. Enter loads it as the planner recommends, after a question; Delete deletes its files, after a question.",
        names.collect::<Vec<_>>().join(", ")
    );
    let facts = of_file(&choice.model).map(|(entry, file)| about(entry, file)).unwrap_or_default();
    std::iter::once(clean_line(&on)).chain(facts).collect()
}

/// Facts about a file of the catalogue.
fn about(entry: &CatalogueEntry, file: &CatalogueFile) -> Vec<String> {
    let others: Vec<&CatalogueFile> = entry.files.iter().filter(|other| *other != file).collect();
    let others = match others.as_slice() {
        [] => String::new(),
        [first, ..] => {
            let sizes: Vec<String> =
                others.iter().map(|other| format!("{} ({})", other.quantisation, other.size())).collect();
            format!(" Also {}: console model pull {}:{}.", sizes.join(", "), entry.name, first.quantisation)
        }
    };
    vec![
        format!(
            "{} parameters, family {}, {}, context {} tokens, licence {}.",
            entry.size_text(),
            entry.family,
            file.quantisation,
            entry.context,
            entry.licence
        ),
        format!("{}, {}.{others}", file.source, file.size()),
    ]
}
