//! The page of prompt and text.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
};

use crate::{
    state::{Extent, State},
    view::{prompt, text, theme::Theme},
};

/// Draws the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let prompt_lines = prompt::height(state, area);
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1 + prompt_lines)]).areas(area);
    (extent.text_lines, extent.text_height) = text::draw(state, theme, frame, above);
    prompt::draw(state, theme, frame, below);
}
