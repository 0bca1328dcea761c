//! The form of the sampling parameters.
use ratatui::{
    Frame,
    layout::{Position, Rect},
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    state::{State, sampling_form::Field},
    view::{
        format::{fit, shorten, width},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Maximum width of the box.
const WIDTH: u16 = 72;
const TITLE: usize = 12;
/// Width of an input, in cells.
const VALUE: usize = 18;

/// Renders the form, if it is open, in the middle of the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let Some(form) = &state.screen.form else { return };
    let cells = WIDTH.min(area.width.saturating_sub(4));
    let height = (Field::ALL.len() as u16 + 5).min(area.height);
    let place = Rect {
        x: area.x + (area.width - cells) / 2,
        y: area.y + area.height.saturating_sub(height) / 2,
        width: cells,
        height,
    };
    frame.render_widget(Clear, Rect { x: place.x - 1, width: cells + 2, ..place });
    let below = panel(frame, theme, place, true, "Settings of the next answers", Span::raw(""));
    let mut body = Vec::new();
    let mut cursor = 0;
    for (index, (field, editor)) in Field::ALL.into_iter().zip(&form.fields).enumerate() {
        let is_here = index == form.at;
        let shown = end(editor.before_cursor(), VALUE - 1);
        if is_here {
            cursor = width(&shown) as u16;
        }
        let after = &editor.text()[editor.before_cursor().len()..];
        let style = if is_here { theme.accent } else { theme.plain };
        let value = if is_here && form.is_selected { theme.tab } else { theme.plain };
        let text = format!("{shown}{after}");
        let cut = shorten(&text, VALUE);
        let gap = " ".repeat(VALUE + 1 - width(&cut));
        body.push(Line::from_iter([
            Span::styled(if is_here { " ▸ " } else { "   " }, theme.accent),
            Span::styled(fit(field.title(), TITLE), style),
            Span::styled(cut, value),
            Span::styled(gap, theme.plain),
            Span::styled(shorten(field.meaning(), usize::from(cells).saturating_sub(4 + TITLE + VALUE)), theme.dim),
        ]));
        if let Some(error) = form.error.as_deref().filter(|_| is_here) {
            let indent = " ".repeat(3 + TITLE);
            body.push(Line::styled(indent + &shorten(error, usize::from(cells).saturating_sub(4 + TITLE)), theme.bad));
        }
    }
    if form.error.is_none() {
        body.push(Line::raw(""));
    }
    body.push(Line::from_iter([
        Span::styled(" Enter", theme.accent),
        Span::styled(" use it   ", theme.plain),
        Span::styled("↑ ↓", theme.accent),
        Span::styled(" field   ", theme.plain),
        Span::styled("Esc", theme.accent),
        Span::styled(" leave it as it was", theme.plain),
    ]));
    lines(frame, below, body);
    let rule = Rect { y: place.y + height - 1, height: 1, ..place };
    frame.render_widget(Line::styled("━".repeat(usize::from(cells)), theme.accent), rule);
    let y = below.y + form.at as u16;
    frame.set_cursor_position(Position { x: below.x + 3 + TITLE as u16 + cursor, y: y.min(place.bottom() - 1) });
}

/// The end of a text in this many cells.
fn end(text: &str, cells: usize) -> String {
    let from = text.char_indices().map(|(at, _)| at).find(|at| width(&text[*at..]) <= cells);
    text[from.unwrap_or(text.len())..].to_owned()
}
