//! The list of model files, over the page.
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    state::{
        Extent, State,
        clean::clean_line,
        models::{ModelChoice, ModelList},
    },
    view::{
        format::{fit, shorten, wrap_words},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Maximum width of the box.
const WIDTH: u16 = 76;
/// Width of a file's size, in cells.
const SIZE: usize = 11;
/// Most visible models.
const ROWS_MAX: usize = 12;

/// Renders the page.
pub(super) fn draw_page(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let text = if state.readonly { "" } else { "M lists the models of the nodes" };
    frame.render_widget(Span::styled(text, theme.dim), area);
}

/// Renders the list, if it is open, in the middle of the screen.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let Some(list) = &state.screen.models else { return };
    let cells = WIDTH.min(area.width.saturating_sub(4));
    let inner = usize::from(cells).saturating_sub(2);
    let rows = ROWS_MAX.min(usize::from(area.height).saturating_sub(8)).max(1);
    extent.models_height = rows;
    let first = (list.place() + 1).saturating_sub(rows);
    let mut body: Vec<Line> = Vec::new();
    for (place, choice) in list.choices.iter().enumerate().skip(first).take(rows) {
        body.push(row(state, theme, choice, place == list.place(), inner));
    }
    for text in remarks(state, list) {
        let ranges = wrap_words(&text, inner.saturating_sub(1));
        body.extend(ranges.into_iter().map(|range| Line::styled(format!(" {}", text[range].trim_end()), theme.plain)));
    }
    body.push(Line::raw(""));
    let keys = [("Enter", "load it"), ("↑ ↓", "select"), ("Esc", "close")];
    // An empty list can only be closed.
    let keys = keys.into_iter().skip(if list.choices.is_empty() { 2 } else { 0 }).flat_map(|(key, what)| {
        [Span::styled(format!(" {key}"), theme.accent), Span::styled(format!(" {what}  "), theme.plain)]
    });
    body.push(Line::from_iter(keys));
    let height = (body.len() as u16 + 2).min(area.height);
    let place =
        Rect { x: area.x + (area.width - cells) / 2, y: area.y + (area.height - height) / 2, width: cells, height };
    // One cell on either side separates its text from the content below.
    frame.render_widget(Clear, Rect { x: place.x - 1, width: cells + 2, ..place });
    let below = panel(frame, theme, place, true, "Load a model", Span::raw(""));
    lines(frame, below, body);
    let rule = Rect { y: place.y + height - 1, height: 1, ..place };
    frame.render_widget(Line::styled("━".repeat(usize::from(cells)), theme.accent), rule);
}

/// A model: name, size, and the nodes that have it.
fn row(state: &State, theme: &Theme, choice: &ModelChoice, is_selected: bool, cells: usize) -> Line<'static> {
    let names: Vec<&str> =
        choice.nodes.iter().filter_map(|place| state.cluster.nodes.get(*place)).map(|node| node.name()).collect();
    let all = state.cluster.usable().len();
    let on = if names.len() >= all { format!("all {all} nodes") } else { format!("only {}", names.join(", ")) };
    let title = cells.saturating_sub(SIZE + 24);
    let style = if is_selected { theme.accent } else { theme.plain };
    Line::from_iter([
        Span::styled(if is_selected { " ▸ " } else { "   " }, theme.accent),
        Span::styled(fit(&clean_line(&choice.model), title), style),
        Span::styled(format!("{:>SIZE$}  ", common::units::Bytes(choice.bytes).to_string()), theme.plain),
        Span::styled(shorten(&on, 19), theme.dim),
    ])
    .style(if is_selected { theme.selected } else { Style::new() })
}

/// What the list waits for, and what to do if it is empty.
fn remarks(state: &State, list: &ModelList) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(model) = &list.planning {
        remarks.push(format!("Planning {} ..", clean_line(model)));
    } else if !list.waiting.is_empty() {
        remarks.push("Reading the nodes' model folders ..".to_owned());
    } else if list.choices.is_empty() && list.faults.is_empty() {
        remarks.push("No node has a model file. On this machine, run:".to_owned());
        remarks.push("console model pull hf:OWNER/REPO:FILE".to_owned());
    }
    remarks.extend(list.faults.iter().map(|(place, reason)| {
        let node = state.cluster.nodes.get(*place).map_or("?", |node| node.name());
        format!("{node}: {reason}")
    }));
    remarks
}
