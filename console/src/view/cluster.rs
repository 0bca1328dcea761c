//! The page of the cluster: all nodes, and beside or below them the picture of what runs on them and what to do next.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::Line,
};

use crate::{
    state::{State, clean::clean_line, standing::hint},
    view::{format::wrap_words, nodes, theme::Theme, topology, widgets::panel::lines},
};

/// From this width on the topology stands beside the nodes.
const WIDTH_WIDE: u16 = 110;
/// Cells of the table of nodes.
const NODES_CELLS: u16 = 80;

/// Draws the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let text = clean_line(&hint(state));
    let cells = usize::from(area.width).saturating_sub(2);
    let words: Vec<Line> = wrap_words(&text, cells)
        .into_iter()
        .map(|range| Line::styled(format!(" {}", &text[range]), theme.dim))
        .collect();
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(words.len() as u16)]).areas(area);
    lines(frame, below, words);
    if area.width >= WIDTH_WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Length(NODES_CELLS), Constraint::Fill(1)]).spacing(1).areas(above);
        nodes::draw(state, theme, frame, left);
        return topology::draw(state, theme, frame, right);
    }
    let rows = (state.nodes.len() as u16).clamp(1, above.height.saturating_sub(8).max(2));
    let [upper, lower] = Layout::vertical([Constraint::Length(rows + 2), Constraint::Fill(1)]).areas(above);
    nodes::draw(state, theme, frame, upper);
    topology::draw(state, theme, frame, lower);
}
