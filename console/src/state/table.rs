//! A table independent of the screen: columns, rows and their arrangement. The selection is kept by row key, so that it
//! survives sorting, filtering and changing rows. Counterpart of `view/widgets/table.rs`.
use std::cmp::Ordering;

use crate::state::filter::Filter;
use crate::state::row::TableRow;

/// Alignment of a column's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left.
    Left,
    /// Right, for figures.
    Right,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Width in cells.
    pub width: usize,
    /// Alignment of its text.
    pub align: Align,
    /// 0 is always shown; of the others the highest number is dropped first on a narrow screen.
    pub priority: u8,
    /// Whether it takes the remaining width.
    pub grows: bool,
}

impl Column {
    /// A column of text.
    pub const fn left(title: &'static str, width: usize, priority: u8) -> Self {
        Self { title, width, align: Align::Left, priority, grows: false }
    }

    /// A column of figures.
    pub const fn right(title: &'static str, width: usize, priority: u8) -> Self {
        Self { align: Align::Right, ..Self::left(title, width, priority) }
    }

    /// A column of text that takes the remaining width.
    pub const fn rest(title: &'static str, width: usize, priority: u8) -> Self {
        Self { grows: true, ..Self::left(title, width, priority) }
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its columns.
    pub columns: &'static [Column],
    /// All rows in their natural order.
    pub rows: Vec<TableRow>,
}

/// How an operator has arranged a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrangement {
    /// The column that rows are sorted by, and whether in descending order; `None` = the natural order.
    pub sort: Option<(usize, bool)>,
    /// Which rows are shown.
    pub filter: Filter,
    /// The key of the selected row.
    pub selected: Option<String>,
    /// Index of the first visible row.
    pub first: usize,
}

impl Arrangement {
    /// The visible rows, in display order.
    pub fn rows<'a>(&self, table: &'a Table) -> Vec<&'a TableRow> {
        let mut rows: Vec<&TableRow> = table.rows.iter().filter(|row| self.filter.takes(row)).collect();
        if let Some((column, descending)) = self.sort {
            // Stable: equal rows keep their natural order.
            rows.sort_by(|one, two| order(one, two, column, descending));
        }
        rows
    }

    /// The index of the selected row among the visible ones; the first row if it is not among them.
    pub fn place(&self, rows: &[&TableRow]) -> usize {
        rows.iter().position(|row: &&TableRow| self.selected.as_deref() == Some(row.key.as_str())).unwrap_or(0)
    }

    /// The first visible row for a screen of this height: unchanged as long as the selected row is visible.
    pub fn first_shown(&self, place: usize, count: usize, height: usize) -> usize {
        let height = height.max(1);
        let first = self.first.min(count.saturating_sub(height));
        first.clamp((place + 1).saturating_sub(height), place)
    }

    /// Sorts by the neighbouring column; past either end is the natural order.
    pub fn sort_further(&mut self, table: &Table, back: bool) {
        let count = table.columns.len();
        let at = self.sort.map_or(count, |(column, _)| column);
        let next = if back { (at + count) % (count + 1) } else { (at + 1) % (count + 1) };
        self.sort = table.columns.get(next).map(|column| (next, column.align == Align::Right));
    }

    /// Reverses the sort order.
    pub fn reverse(&mut self) {
        if let Some((_, descending)) = &mut self.sort {
            *descending = !*descending;
        }
    }

    /// A description of sorting and filter; empty for the natural order without a filter.
    pub fn words(&self, table: &Table, shown: usize) -> String {
        let sort = self.sort.and_then(|(column, descending)| {
            let title = table.columns.get(column)?.title;
            Some(format!("by {title} {}", if descending { "↓" } else { "↑" }))
        });
        let filter = self.filter.words().map(|words| format!("/{words}  {shown} of {}", table.rows.len()));
        sort.into_iter().chain(filter).collect::<Vec<_>>().join("  ")
    }
}

/// Unknown figures come last in both directions.
fn order(one: &TableRow, two: &TableRow, column: usize, descending: bool) -> Ordering {
    let (Some(one), Some(two)) = (one.cells.get(column), two.cells.get(column)) else { return Ordering::Equal };
    let order = match (one.number, two.number) {
        (Some(one), Some(two)) => one.total_cmp(&two),
        (Some(_), None) => return Ordering::Less,
        (None, Some(_)) => return Ordering::Greater,
        (None, None) => one.text.cmp(&two.text),
    };
    if descending { order.reverse() } else { order }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::row::Cell;

    const COLUMNS: &[Column] = &[Column::left("node", 8, 0), Column::right("temp", 5, 1)];

    fn table(rows: &[(&str, Option<f64>)]) -> Table {
        Table {
            columns: COLUMNS,
            rows: rows
                .iter()
                .map(|(name, temperature): &(&str, Option<f64>)| TableRow {
                    key: (*name).to_owned(),
                    cells: vec![Cell::text(*name), Cell::figure(*temperature, |value| format!("{value:.1}"))],
                    is_stale: false,
                })
                .collect(),
        }
    }

    #[track_caller]
    fn check(arrangement: &Arrangement, table: &Table, expected: &[&str]) {
        let shown: Vec<&str> = arrangement.rows(table).iter().map(|row| row.key.as_str()).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn rows_sort_in_both_directions_with_unknown_figures_last() {
        let table = table(&[("b", Some(50.0)), ("c", None), ("a", Some(70.5)), ("d", Some(9.0))]);
        let mut arrangement = Arrangement::default();
        check(&arrangement, &table, &["b", "c", "a", "d"]);
        arrangement.sort_further(&table, false);
        check(&arrangement, &table, &["a", "b", "c", "d"]);
        arrangement.sort_further(&table, false);
        check(&arrangement, &table, &["a", "b", "d", "c"]);
        assert_eq!(arrangement.words(&table, 4), "by temp ↓");
        arrangement.reverse();
        check(&arrangement, &table, &["d", "b", "a", "c"]);
        arrangement.sort_further(&table, false);
        assert_eq!(arrangement.sort, None);
        arrangement.sort_further(&table, true);
        assert_eq!(arrangement.sort, Some((1, true)));
        arrangement.sort_further(&table, true);
        arrangement.sort_further(&table, true);
        assert_eq!(arrangement.sort, None);
    }

    #[test]
    fn selection_survives_moving_rows() {
        let mut arrangement =
            Arrangement { selected: Some("a".into()), sort: Some((1, true)), ..Arrangement::default() };
        let before = table(&[("a", Some(50.0)), ("b", Some(60.0))]);
        assert_eq!(arrangement.place(&arrangement.rows(&before)), 1);
        let after = table(&[("a", Some(70.0)), ("b", Some(60.0)), ("c", None)]);
        assert_eq!(arrangement.place(&arrangement.rows(&after)), 0);
        arrangement.selected = Some("gone".into());
        assert_eq!(arrangement.place(&arrangement.rows(&after)), 0);
    }

    #[test]
    fn selected_row_stays_visible_with_minimal_scrolling() {
        let at = |first, place| Arrangement { first, ..Arrangement::default() }.first_shown(place, 100, 10);
        assert_eq!((at(20, 25), at(20, 30), at(20, 19), at(95, 99)), (20, 21, 19, 90));
        let height = Arrangement::default().first_shown(0, 0, 0);
        assert_eq!(height, 0);
    }
}
