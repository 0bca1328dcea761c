//! The Generate page: the text, or two side by side; a time breakdown; a comparison with the pinned result.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
};

use crate::{
    state::{Extent, State},
    view::{compare, prompt, sampling_form, text, theme::Theme, waterfall},
};

/// Minimum height of the text, in lines, before anything else gets room.
const TEXT_MIN: u16 = 4;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let prompt_lines = 1 + prompt::height(state, area);
    let room = area.height.saturating_sub(prompt_lines + TEXT_MIN);
    let compares = compare::height(state);
    let stages = waterfall::height(state);
    // The comparison has priority: the header also shows the figures of the last request.
    let compares = if compares <= room { compares } else { 0 };
    let stages = if compares + stages <= room { stages } else { 0 };
    let heights = [
        Constraint::Fill(1),
        Constraint::Length(compares),
        Constraint::Length(stages),
        Constraint::Length(prompt_lines),
    ];
    let [texts, comparison, times, below] = Layout::vertical(heights).areas(area);
    match &state.generation.pinned {
        Some(pinned) if compares > 0 => {
            let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(texts);
            text::draw_pinned(state, theme, frame, left, pinned);
            (extent.text_lines, extent.text_height) = text::draw(state, theme, frame, right);
            compare::draw(state, theme, frame, comparison, pinned);
        }
        _ => (extent.text_lines, extent.text_height) = text::draw(state, theme, frame, texts),
    }
    if stages > 0 {
        waterfall::draw(state, theme, frame, times);
    }
    prompt::draw(state, theme, frame, below);
    sampling_form::draw(state, theme, frame, area);
}
