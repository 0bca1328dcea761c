//! A table that fits a terminal: columns are dropped, the least important first, until a row fits, and the last column
//! is cut.
use std::io::{IsTerminal, stdout};

use crate::cli::shared::paint::Shade;
use crate::view::format::{fit, fit_right, shorten, width};

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableColumn {
    /// Its title.
    pub(crate) title: &'static str,
    /// Least width in cells.
    pub(crate) least: usize,
    /// Whether its cells are right-aligned.
    pub(crate) is_number: bool,
    /// Columns with the highest number are dropped first; 0 is never dropped.
    pub(crate) drops: u8,
}

/// The width of the terminal; unlimited for pipes and files.
pub(crate) fn room() -> usize {
    let size = if stdout().is_terminal() { terminal_size() } else { None };
    size.map_or(usize::MAX, |(columns, _)| columns)
}

/// Columns and rows of the terminal, if it has a size: one that cron opens with `ssh -tt` and some serial consoles have 0 by 0.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    known(crossterm::terminal::size().ok()?)
}

fn known(size: (u16, u16)) -> Option<(usize, usize)> {
    let (columns, rows) = size;
    (columns > 0 && rows > 0).then_some((columns.into(), rows.into()))
}

/// A cell: its text and the tone of the text.
pub(crate) type TableCell = (String, Option<Shade>);

/// The title row and all rows in at most `room` cells. The last column is not padded. Tones are applied if `colours`.
pub(crate) fn table(columns: &[TableColumn], rows: &[Vec<TableCell>], room: usize, colours: bool) -> Vec<String> {
    let mut widths: Vec<usize> = columns.iter().map(|column| column.least.max(width(column.title))).collect();
    for row in rows {
        for (cell, widest) in row.iter().zip(&mut widths) {
            *widest = width(&cell.0).max(*widest);
        }
    }
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    while total(&shown, &widths, columns) > room {
        let droppable = shown.iter().enumerate().filter(|(_, index)| columns[**index].drops > 0);
        let Some((place, _)) = droppable.max_by_key(|(_, index)| columns[**index].drops) else { break };
        shown.remove(place);
    }
    let titles: Vec<TableCell> = columns.iter().map(|column| (column.title.to_owned(), None)).collect();
    let lines = std::iter::once(&titles).chain(rows);
    lines.map(|row| line(row, &shown, (columns, &widths), room, colours)).collect()
}

/// Cells of a row, apart from the last column, of which only its least width counts.
fn total(shown: &[usize], widths: &[usize], columns: &[TableColumn]) -> usize {
    let last = shown.last().map_or(0, |last| columns[*last].least);
    let others = shown.iter().rev().skip(1).map(|index| widths[*index] + 2);
    last + others.sum::<usize>()
}

fn line(row: &[TableCell], shown: &[usize], sizes: (&[TableColumn], &[usize]), room: usize, colours: bool) -> String {
    let (columns, widths) = sizes;
    let mut used = 0;
    let mut text = String::new();
    for (place, index) in shown.iter().enumerate() {
        let (cell, tone) = &row[*index];
        let cell = if place + 1 == shown.len() {
            shorten(cell, room.saturating_sub(used))
        } else if columns[*index].is_number {
            fit_right(cell, widths[*index]) + "  "
        } else {
            fit(cell, widths[*index]) + "  "
        };
        used += width(&cell);
        text.push_str(&tone.map_or_else(|| cell.clone(), |tone| tone.paint(&cell, colours)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [TableColumn; 4] = [
        TableColumn { title: "NODE", least: 4, is_number: false, drops: 0 },
        TableColumn { title: "SHARD", least: 9, is_number: true, drops: 2 },
        TableColumn { title: "TEMP", least: 5, is_number: true, drops: 1 },
        TableColumn { title: "HEALTH", least: 6, is_number: false, drops: 0 },
    ];

    fn rows() -> Vec<Vec<TableCell>> {
        let cells = ["pi1", "1.0 GiB", "48.1", "cores are shared with others"];
        vec![cells.map(|cell| (cell.to_owned(), None)).to_vec()]
    }

    #[test]
    fn terminal_of_no_size_is_unlimited() {
        assert_eq!([(0, 0), (80, 0), (80, 24)].map(known), [None, None, Some((80, 24))]);
    }

    #[test]
    fn columns_are_dropped_until_a_row_fits() {
        let shown = |room| table(&COLUMNS, &rows(), room, false);
        assert_eq!(shown(80)[0], "NODE      SHARD   TEMP  HEALTH");
        assert_eq!(shown(80)[1], "pi1     1.0 GiB   48.1  cores are shared with others");
        assert_eq!(shown(24), ["NODE   TEMP  HEALTH", "pi1    48.1  cores are …"]);
        for room in 12..60 {
            assert!(shown(room).iter().all(|line| width(line) <= room), "{room}: {:?}", shown(room));
        }
    }

    #[test]
    fn tones_do_not_change_the_width() {
        let mut rows = rows();
        rows[0][3].1 = Some(Shade::Warning);
        let (plain, coloured) = (table(&COLUMNS, &rows, 80, false), table(&COLUMNS, &rows, 80, true));
        assert_ne!(plain[1], coloured[1]);
        assert!(coloured[1].starts_with("pi1     1.0 GiB   48.1  \x1b["), "{:?}", coloured[1]);
    }
}
