//! Events of the cluster observed by this console: a bounded list, oldest first, and its table.
use std::{collections::VecDeque, time::Duration};

use telemetry::Severity;

use crate::state::{
    State,
    clean::clean_line,
    row::{Cell, TableRow, Tone},
    table::{Column, Table},
};

/// Maximum number of entries.
pub const ENTRIES_MAX: usize = 1000;
/// Maximum length of an entry's text in bytes.
const TEXT_BYTES_MAX: usize = 500;
/// Seconds per day.
const DAY: u64 = 24 * 60 * 60;

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its number: one more than the previous entry's.
    pub number: u64,
    /// Time since the start of the dashboard.
    pub at: Duration,
    /// The severity.
    pub severity: Severity,
    /// List index of the node; `None` if the event concerns the whole cluster.
    pub node: Option<usize>,
    /// The message, sanitised for display.
    pub text: String,
}

/// The list of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventLog {
    entries: VecDeque<Entry>,
    latest: u64,
}

impl EventLog {
    /// Adds an entry; the oldest is dropped at the limit.
    pub fn push(&mut self, at: Duration, severity: Severity, node: Option<usize>, text: &str) {
        let mut text = clean_line(text);
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_front();
        }
        self.latest += 1;
        self.entries.push_back(Entry { number: self.latest, at, severity, node, text });
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }

    /// The entry of a row.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        let number: u64 = key.parse().ok()?;
        self.entries.iter().find(|entry| entry.number == number)
    }
}

/// The table's columns.
const COLUMNS: &[Column] = &[
    Column::left("UTC", 8, 0),
    Column::left("severity", 8, 2),
    Column::left("node", 10, 1),
    Column::rest("what", 30, 0),
];

/// The entries of at least the selected severity, newest first.
pub fn table(state: &State) -> Table {
    let entries =
        state.journal.events.entries().iter().rev().filter(|entry| entry.severity >= state.tables.severity_min);
    Table { columns: COLUMNS, rows: entries.map(|entry| row(state, entry)).collect() }
}

fn row(state: &State, entry: &Entry) -> TableRow {
    let node = entry.node.and_then(|place| state.cluster.nodes.get(place)).map_or("", |node| node.name());
    let tone = tone(entry.severity);
    let at = Cell { text: time_of_day(state, entry.at), number: Some(entry.number as f64), tone: Tone::Dim };
    let severity = Cell { number: Some(f64::from(entry.severity as u8)), ..Cell::text(entry.severity.name()) };
    let cells = vec![at, severity.toned(tone), Cell::text(node), Cell::text(entry.text.clone()).toned(tone)];
    TableRow { key: entry.number.to_string(), cells, is_stale: false }
}

/// The tone of an event.
pub fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Note => Tone::Plain,
        Severity::Warning => Tone::Warn,
        Severity::Error => Tone::Bad,
    }
}

/// A time since the start as UTC time of day (hours, minutes, seconds).
pub fn time_of_day(state: &State, at: Duration) -> String {
    let seconds = (state.clock_ms / 1000 + at.as_secs()) % DAY;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The next severity filter: all, warnings and errors, errors.
pub fn severity_after(severity: Severity) -> Severity {
    match severity {
        Severity::Note => Severity::Warning,
        Severity::Warning => Severity::Error,
        Severity::Error => Severity::Note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_entries_are_dropped_and_texts_are_sanitised() {
        let mut log = EventLog::default();
        for count in 0..ENTRIES_MAX + 5 {
            log.push(Duration::ZERO, Severity::Note, None, &format!("{count}\u{1b}[2J\n{}", "ü".repeat(1000)));
        }
        assert_eq!(log.entries().len(), ENTRIES_MAX);
        let first = &log.entries()[0].text;
        assert!(first.starts_with("5[2J ") && first.len() <= TEXT_BYTES_MAX);
        assert_eq!(log.entry("6").map(|entry| entry.number), Some(6));
        assert_eq!(log.entry("1"), None);
    }
}
