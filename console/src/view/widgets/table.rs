//! A table on the screen: as many columns as fit, least important dropped first; the selected row is always visible.
use ratatui::{
    Frame,
    layout::Rect,
    style::{Modifier, Style},
    text::{Line, Span},
};

use crate::{
    state::{
        Area, COLUMNS_MAX,
        row::{Cell, TableRow, Tone},
        table::{Align, Arrangement, Column, Table},
    },
    view::{
        format::{fit, fit_right, fit_words},
        theme::Theme,
        widgets::panel::lines,
    },
};

/// Width of the mark of the selected row, in cells.
const MARK: usize = 2;
/// Columns from this priority on are optional.
const NICE: u8 = 4;

/// Areas of the table's rows, used by scrolling keys and the mouse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// The area of the visible rows, without the heading.
    pub(crate) area: Area,
    /// Index of the first visible row.
    pub(crate) first: usize,
    /// Left edge and width of each column's head.
    pub(crate) heads: [(u16, u16); COLUMNS_MAX],
}

/// Renders heading and rows. `selected` is the key of the selected row; `wish` is the preferred width of the growing
/// column.
pub(crate) fn draw(
    frame: &mut Frame,
    theme: &Theme,
    area: Rect,
    table: &Table,
    arrangement: &Arrangement,
    selected: &str,
    wish: usize,
) -> Drawn {
    let rows = arrangement.rows(table);
    let height = usize::from(area.height).saturating_sub(1);
    let place = rows.iter().position(|row| row.key == selected);
    let first = arrangement.first_shown(place.unwrap_or(0), rows.len(), height);
    let columns = columns(table.columns, usize::from(area.width), wish);
    let heading = heading(theme, table, &columns, arrangement);
    let shown = rows.iter().enumerate().skip(first).take(height);
    let body = shown.map(|(index, row)| line(theme, table, row, &columns, Some(index) == place));
    lines(frame, area, std::iter::once(heading).chain(body));
    let body = Area { x: area.x, y: area.y + area.height.min(1), width: area.width, height: height as u16 };
    Drawn { area: body, first, heads: heads(&columns, area) }
}

/// Left edge and width of each column's head; the cell after a column belongs to it.
fn heads(columns: &[(usize, usize)], area: Rect) -> [(u16, u16); COLUMNS_MAX] {
    let mut heads = [(0, 0); COLUMNS_MAX];
    let mut x = area.x.saturating_add(MARK as u16);
    for (column, cells) in columns {
        let width = (*cells as u16 + 1).min(area.right().saturating_sub(x));
        if let Some(head) = heads.get_mut(*column) {
            *head = (x, width);
        }
        x = x.saturating_add(width);
    }
    heads
}

/// Cells that the growing column should have: twice its least width, for any rows, so that columns never jump.
pub(crate) fn wish(table: &Table) -> usize {
    table.columns.iter().filter(|column| column.grows).map(|column| 2 * column.width).sum()
}

/// The columns that fit, in order, with their widths. Optional columns give way to the growing one.
fn columns(all: &[Column], cells: usize, wish: usize) -> Vec<(usize, usize)> {
    let mut shown: Vec<usize> = (0..all.len()).collect();
    let taken = |shown: &[usize]| MARK + shown.iter().map(|column| all[*column].width + 1).sum::<usize>();
    while taken(&shown) > cells + 1 {
        let Some(least) =
            shown.iter().copied().filter(|column| all[*column].priority > 0).max_by_key(|column| all[*column].priority)
        else {
            break;
        };
        shown.retain(|column| *column != least);
    }
    while taken(&shown) + missing(all, &shown, wish) > cells + 1 {
        let nice = shown.iter().copied().filter(|column| all[*column].priority >= NICE);
        let Some(least) = nice.max_by_key(|column| all[*column].priority) else { break };
        shown.retain(|column| *column != least);
    }
    let spare = (cells + 1).saturating_sub(taken(&shown));
    shown.into_iter().map(|column| (column, all[column].width + if all[column].grows { spare } else { 0 })).collect()
}

/// Cells that the growing columns lack for a text of `wish` cells.
fn missing(all: &[Column], shown: &[usize], wish: usize) -> usize {
    let growing = shown.iter().map(|column| &all[*column]).filter(|column| column.grows);
    growing.map(|column| wish.saturating_sub(column.width)).sum()
}

fn heading(theme: &Theme, table: &Table, columns: &[(usize, usize)], arrangement: &Arrangement) -> Line<'static> {
    let mut spans = vec![Span::raw(" ".repeat(MARK))];
    for (column, cells) in columns {
        let Column { title, align, .. } = table.columns[*column];
        let sorted = arrangement.sort.filter(|(by, _)| by == column);
        let arrow = sorted.map_or("", |(_, descending)| if descending { "↓" } else { "↑" });
        let text = padded(&format!("{title}{arrow}"), *cells, align);
        spans.push(Span::styled(text + " ", if sorted.is_some() { theme.accent } else { theme.dim }));
    }
    Line::from(spans)
}

fn line(theme: &Theme, table: &Table, row: &TableRow, columns: &[(usize, usize)], is_selected: bool) -> Line<'static> {
    let mut spans = vec![Span::styled(if is_selected { "▸ " } else { "  " }, theme.accent)];
    for (index, (column, cells)) in columns.iter().enumerate() {
        let empty = Cell::default();
        let cell = row.cells.get(*column).unwrap_or(&empty);
        let mut style = style(theme, cell.tone, row.is_stale);
        if is_selected && index == 0 {
            style = style.add_modifier(Modifier::BOLD);
        }
        let text = match table.columns[*column].grows {
            true => fit_words(&cell.text, *cells),
            false => padded(&cell.text, *cells, table.columns[*column].align),
        };
        spans.push(Span::styled(text + " ", style));
    }
    Line::from(spans).style(if is_selected { theme.selected } else { Style::new() })
}

fn padded(text: &str, cells: usize, align: Align) -> String {
    match align {
        Align::Left => fit(text, cells),
        Align::Right => fit_right(text, cells),
    }
}

/// The style of a field: outdated primary content is dim, other tones keep their style.
fn style(theme: &Theme, tone: Tone, is_stale: bool) -> Style {
    match tone {
        Tone::Plain if is_stale => theme.dim,
        tone => theme.tone(tone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_tables_drop_columns_and_wide_ones_grow_one() {
        let all =
            [Column::left("a", 10, 0), Column::right("b", 5, 2), Column::right("c", 5, 9), Column::rest("d", 8, 1)];
        assert_eq!(columns(&all, 33, 0), [(0, 10), (1, 5), (2, 5), (3, 8)]);
        assert_eq!(columns(&all, 40, 0), [(0, 10), (1, 5), (2, 5), (3, 15)]);
        assert_eq!(columns(&all, 32, 0), [(0, 10), (1, 5), (3, 13)]);
        assert_eq!(columns(&all, 13, 0), [(0, 10)]);
        assert_eq!(columns(&all, 3, 0), [(0, 10)]);
        assert_eq!(columns(&all, 33, 12), [(0, 10), (1, 5), (3, 14)], "the growing column precedes optional ones");
    }
}
