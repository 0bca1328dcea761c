//! A panel with a page's table: title, arrangement, and the filter while it is being typed.
use ratatui::{
    Frame,
    layout::{Position, Rect},
    text::{Line, Span},
};

use crate::{
    state::{Extent, Page, Panel, State, table::Table, tables},
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

/// Lines for the selected row's text, one of them empty, and the minimum height of a table that leaves room for it.
const DETAIL_LINES: u16 = 4;
const DETAIL_FROM: u16 = 12;
/// Shorter texts, in cells, are complete in the table.
const SHORT: usize = 14;

/// The texts around a table.
#[derive(Clone)]
pub(super) struct TableTexts<'a> {
    pub(super) title: &'a str,
    /// On the right, if nothing is sorted or filtered.
    pub(super) remark: Span<'a>,
    /// Instead of missing rows.
    pub(super) empty: &'a str,
    /// Whether the selected row's last field, which may be long, is repeated below the table.
    pub(super) repeats: bool,
}

/// Renders the current page's table.
pub(super) fn draw(
    state: &State,
    theme: &Theme,
    frame: &mut Frame,
    area: Rect,
    texts: TableTexts,
    extent: &mut Extent,
) {
    let TableTexts { title, remark, empty, repeats } = texts;
    let page = state.screen.focus.page;
    let Some(content) = tables::table(state, page) else { return };
    let arrangement = tables::arrangement(state, page);
    let (rows, _) = tables::shown(state, page, &content);
    let is_typing = state.screen.focus.panel == Panel::Filter;
    let words = arrangement.words(&content, rows.len());
    let remark = if words.is_empty() { remark } else { Span::styled(words, theme.accent) };
    let focused = is_typing || page.panels().first() == Some(&state.screen.focus.panel);
    let mut inner = panel(frame, theme, area, focused, title, remark);
    if is_typing && inner.height > 1 {
        inner.height -= 1;
        filter(frame, theme, Rect { y: inner.bottom(), height: 1, ..inner }, arrangement.filter.typed());
    }
    if rows.is_empty() {
        let text = if content.rows.is_empty() { empty } else { "Nothing matches the filter; Esc shows all again." };
        return lines(frame, inner, [Line::styled(format!(" {text}"), theme.dim)]);
    }
    if repeats && inner.height >= DETAIL_FROM {
        inner.height -= DETAIL_LINES;
        detail(state, theme, frame, Rect { y: inner.bottom(), height: DETAIL_LINES, ..inner }, &content);
    }
    // Other pages show long texts elsewhere, so their tables keep the other columns.
    let wish = if page == Page::Cluster { table::wish(&content) } else { 0 };
    let selected = tables::selected(state, page);
    let drawn = table::draw(frame, theme, inner, &content, arrangement, &selected, wish);
    (extent.table, extent.table_first, extent.heads) = (drawn.area, drawn.first, drawn.heads);
    extent.table_height = usize::from(drawn.area.height);
}

/// The last field of the selected row in full: it may be cut in the table.
fn detail(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, content: &Table) {
    let (rows, place) = tables::shown(state, state.screen.focus.page, content);
    let text = rows.get(place).and_then(|row| row.cells.last()).map_or("", |cell| cell.text.as_str());
    if width(text) < SHORT {
        return;
    }
    let below = paragraph(text, "  ", theme.plain, usize::from(area.width).saturating_sub(2));
    lines(frame, area, std::iter::once(Line::raw("")).chain(below));
}

fn filter(frame: &mut Frame, theme: &Theme, area: Rect, typed: &str) {
    let shown = shorten(typed, usize::from(area.width).saturating_sub(4));
    let cursor = Position { x: area.x + 2 + width(&shown) as u16, y: area.y };
    frame.render_widget(Line::from_iter([Span::styled(" /", theme.accent), Span::styled(shown, theme.plain)]), area);
    frame.set_cursor_position(cursor);
}
