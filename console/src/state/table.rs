//! A table without a screen: columns, rows, and how an operator arranged them. What is selected is kept by its key, so that it
//! survives sorting, filtering and rows that come and go. Twin of `view/widgets/table.rs`.
use std::cmp::Ordering;

use crate::state::filter::Filter;

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left.
    Left,
    /// Right: figures.
    Right,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Cells that it takes.
    pub width: usize,
    /// Where its text stands.
    pub align: Align,
    /// 0 is always shown; of the others the highest number is the first to go on a narrow screen.
    pub priority: u8,
    /// Whether it takes what room is left.
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

    /// A column of text that takes what room is left.
    pub const fn rest(title: &'static str, width: usize, priority: u8) -> Self {
        Self { grows: true, ..Self::left(title, width, priority) }
    }
}

/// What a text means; the theme gives it a colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// What is read.
    #[default]
    Plain,
    /// What is not read every time, and what is old.
    Dim,
    /// As it should be.
    Ok,
    /// To be watched.
    Warn,
    /// Broken.
    Bad,
}

/// One field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What is shown, safe to draw.
    pub text: String,
    /// By what it is sorted; fields without a number are sorted by their text, after those with one.
    pub number: Option<f64>,
    /// What it means.
    pub tone: Tone,
}

impl Cell {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A figure as it is written; unknown ones are a dash.
    pub fn figure<T: Copy + Into<f64>>(value: Option<T>, write: impl Fn(T) -> String) -> Self {
        match value {
            Some(value) => Self { text: write(value), number: Some(value.into()), tone: Tone::Plain },
            None => Self { text: "–".to_owned(), number: None, tone: Tone::Dim },
        }
    }

    /// With another meaning.
    #[must_use]
    pub fn toned(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is about: stays the same while figures change.
    pub key: String,
    /// A field for each column.
    pub cells: Vec<Cell>,
    /// Whether its figures are old: they are dimmed.
    pub is_stale: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its columns.
    pub columns: &'static [Column],
    /// All rows in their natural order.
    pub rows: Vec<Row>,
}

/// How an operator arranged a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrangement {
    /// The column that rows are sorted by, and whether the largest come first; `None` = the natural order.
    pub sort: Option<(usize, bool)>,
    /// Which rows are shown.
    pub filter: Filter,
    /// The key of the selected row.
    pub selected: Option<String>,
    /// The first row on the screen.
    pub first: usize,
}

impl Arrangement {
    /// The rows that are shown, in their order.
    pub fn rows<'a>(&self, table: &'a Table) -> Vec<&'a Row> {
        let mut rows: Vec<&Row> = table.rows.iter().filter(|row| self.filter.takes(row)).collect();
        if let Some((column, descending)) = self.sort {
            // Stable: equal rows keep their natural order.
            rows.sort_by(|one, two| order(one, two, column, descending));
        }
        rows
    }

    /// The place of the selected row among those that are shown; the first where it is not among them.
    pub fn place(&self, rows: &[&Row]) -> usize {
        let is_it = |row: &&Row| self.selected.as_deref() == Some(row.key.as_str());
        rows.iter().position(is_it).unwrap_or(0)
    }

    /// The first row on a screen of this height: where it was, as long as the selected row is on it.
    pub fn first_shown(&self, place: usize, count: usize, height: usize) -> usize {
        let height = height.max(1);
        let first = self.first.min(count.saturating_sub(height));
        first.clamp((place + 1).saturating_sub(height), place)
    }

    /// Sorts by a neighbouring column; beyond the last and before the first is the natural order.
    pub fn sort_further(&mut self, table: &Table, back: bool) {
        let count = table.columns.len();
        let at = self.sort.map_or(count, |(column, _)| column);
        let next = if back { (at + count) % (count + 1) } else { (at + 1) % (count + 1) };
        self.sort = table.columns.get(next).map(|column| (next, column.align == Align::Right));
    }

    /// Turns the order around.
    pub fn reverse(&mut self) {
        if let Some((_, descending)) = &mut self.sort {
            *descending = !*descending;
        }
    }

    /// How the rows are arranged, in words; empty where nobody asked for anything.
    pub fn words(&self, table: &Table, shown: usize) -> String {
        let sort = self.sort.and_then(|(column, descending)| {
            let title = table.columns.get(column)?.title;
            Some(format!("by {title} {}", if descending { "↓" } else { "↑" }))
        });
        let filter = self.filter.words().map(|words| format!("/{words}  {shown} of {}", table.rows.len()));
        sort.into_iter().chain(filter).collect::<Vec<_>>().join("  ")
    }
}

/// Unknown figures come last, whatever the direction.
fn order(one: &Row, two: &Row, column: usize, descending: bool) -> Ordering {
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

    const COLUMNS: &[Column] = &[Column::left("node", 8, 0), Column::right("temp", 5, 1)];

    fn table(rows: &[(&str, Option<f64>)]) -> Table {
        let row = |(name, temperature): &(&str, Option<f64>)| Row {
            key: (*name).to_owned(),
            cells: vec![Cell::text(*name), Cell::figure(*temperature, |value| format!("{value:.1}"))],
            is_stale: false,
        };
        Table { columns: COLUMNS, rows: rows.iter().map(row).collect() }
    }

    #[track_caller]
    fn check(arrangement: &Arrangement, table: &Table, expected: &[&str]) {
        let shown: Vec<&str> = arrangement.rows(table).iter().map(|row| row.key.as_str()).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn rows_are_sorted_by_any_column_both_ways_and_unknown_figures_come_last() {
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
    fn what_is_selected_stays_selected_when_rows_move() {
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
    fn the_selected_row_is_always_on_the_screen_and_the_screen_moves_no_more_than_needed() {
        let at = |first, place| Arrangement { first, ..Arrangement::default() }.first_shown(place, 100, 10);
        assert_eq!((at(20, 25), at(20, 30), at(20, 19), at(95, 99)), (20, 21, 19, 90));
        let height = Arrangement::default().first_shown(0, 0, 0);
        assert_eq!(height, 0);
    }
}
