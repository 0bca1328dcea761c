//! The prompt box: as tall as the text needs, up to a share of the screen; the cursor's line is always visible.
use std::ops::Range;

use ratatui::{
    Frame,
    layout::{Position, Rect},
    text::{Line, Span},
};

use crate::{
    state::{Page, Panel, State, sampling_form},
    view::{
        format::{width, wrap_anywhere},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Width of the mark before the text, in cells.
const MARK: u16 = 3;

/// Lines needed by the text, up to an eighth of the screen.
pub(super) fn height(state: &State, area: Rect) -> u16 {
    let (lines, _) = wrapped(state, area.width);
    (lines.len() as u16).clamp(1, (area.height / 8).max(1))
}

/// Renders the box and places the cursor in it.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let title = if state.screen.focus.page == Page::Chat { "Message" } else { "Prompt" };
    let focused = state.screen.focus.panel == Panel::Prompt;
    let area = panel(frame, theme, area, focused, title, Span::styled(asked_for(state), theme.dim));
    let (all, cursor) = wrapped(state, area.width);
    let text = state.screen.editor.text();
    let height = usize::from(area.height).max(1);
    let first = (cursor.1 + 1).saturating_sub(height);
    let mark = |index: usize| Span::styled(if index == 0 { " > " } else { "   " }, theme.accent);
    if text.is_empty() {
        let is_chat = state.screen.focus.page == Page::Chat;
        let empty = match (&state.preferences.replay, state.readonly) {
            (Some(_), _) => "this is a recording",
            (None, true) => "read-only: no prompt can be sent",
            (None, false) if is_chat && focused => "type a message, Enter sends it",
            (None, false) if is_chat => "i to type a message",
            (None, false) if focused => "type a prompt, Enter generates",
            (None, false) => "i to type a prompt",
        };
        lines(frame, area, [Line::from_iter([mark(0), Span::styled(empty, theme.dim)])]);
    } else {
        let shown = all.into_iter().enumerate().skip(first);
        let rows = shown
            .map(|(index, range)| Line::from_iter([mark(index), Span::styled(text[range].to_owned(), theme.plain)]));
        lines(frame, area, rows);
    }
    if focused && state.screen.help.is_none() && state.operations.dialog.is_none() && state.screen.form.is_none() {
        let position = Position { x: area.x + MARK + cursor.0 as u16, y: area.y + (cursor.1 - first) as u16 };
        frame.set_cursor_position(position);
    }
}

/// The sampling parameters of an answer to this prompt.
fn asked_for(state: &State) -> String {
    let pinned = state.generation.pinned.as_ref().filter(|run| run.prompt == state.screen.editor.text());
    let next = state.defaults().sampling.seed.wrapping_add(state.generation.sent);
    sampling_form::summary(state.defaults(), pinned.map_or(next, |run| run.seed))
}

/// The wrapped text, and the cursor's column and line. One cell is reserved for a cursor at the end of a line.
fn wrapped(state: &State, cells: u16) -> (Vec<Range<usize>>, (usize, usize)) {
    let cells = usize::from(cells.saturating_sub(MARK + 1));
    let text = state.screen.editor.text();
    let lines = wrap_anywhere(text, cells);
    let at = state.screen.editor.before_cursor().len();
    let line = lines.iter().rposition(|range| range.start <= at).unwrap_or(0);
    let column = width(&text[lines[line].start..at.min(lines[line].end)]);
    (lines, (column, line))
}
