//! The last line: an answer to the last key, else the keys that help here.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{keymap, state::State, view::theme::Theme};

/// Draws the footer.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    if let Some(notice) = &state.notice {
        return frame.render_widget(Line::styled(format!(" {notice}"), theme.warn), area);
    }
    let hints = keymap::bindings(state.focus).filter(|binding| !binding.short.is_empty()).flat_map(|binding| {
        let key = binding.keys.first().map(keymap::Key::to_string).unwrap_or_default();
        [Span::styled(format!(" {key}"), theme.accent), Span::styled(format!(" {} ", binding.short), theme.dim)]
    });
    frame.render_widget(Line::from_iter(hints), area);
}
