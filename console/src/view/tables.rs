//! A panel with the table of a page in it: title, how it is arranged, the filter while it is typed.
use ratatui::{
    Frame,
    layout::{Position, Rect},
    text::{Line, Span},
};

use crate::{
    state::{Extent, Focus, State, tables},
    view::{
        format::{shorten, width},
        theme::Theme,
        widgets::{
            panel::{lines, panel},
            table,
        },
    },
};

/// Draws the table of the page that is shown. `remark` stands on the right where nothing is arranged; `empty` instead of no rows.
pub(super) fn draw(
    state: &State,
    theme: &Theme,
    frame: &mut Frame,
    area: Rect,
    (title, remark, empty): (&str, Span, &str),
    extent: &mut Extent,
) {
    let page = state.spot.page;
    let Some(content) = tables::table(state, page) else { return };
    let arrangement = tables::arrangement(state, page);
    let (rows, _) = tables::shown(state, page, &content);
    let is_typing = state.spot.focus == Focus::Filter;
    let words = arrangement.words(&content, rows.len());
    let remark = if words.is_empty() { remark } else { Span::styled(words, theme.accent) };
    let focused = is_typing || page.panels().first() == Some(&state.spot.focus);
    let mut inner = panel(frame, theme, area, focused, title, remark);
    if is_typing && inner.height > 1 {
        inner.height -= 1;
        filter(frame, theme, Rect { y: inner.bottom(), height: 1, ..inner }, arrangement.filter.typed());
    }
    if rows.is_empty() {
        let text = if content.rows.is_empty() { empty } else { "Nothing matches the filter; Esc shows all again." };
        return lines(frame, inner, [Line::styled(format!(" {text}"), theme.dim)]);
    }
    let drawn = table::draw(frame, theme, inner, &content, arrangement, &tables::selected(state, page));
    (extent.table, extent.table_first) = (drawn.area, drawn.first);
    extent.table_height = usize::from(drawn.area.height);
}

fn filter(frame: &mut Frame, theme: &Theme, area: Rect, typed: &str) {
    let shown = shorten(typed, usize::from(area.width).saturating_sub(4));
    let cursor = Position { x: area.x + 2 + width(&shown) as u16, y: area.y };
    frame.render_widget(Line::from_iter([Span::styled(" /", theme.accent), Span::styled(shown, theme.plain)]), area);
    frame.set_cursor_position(cursor);
}
