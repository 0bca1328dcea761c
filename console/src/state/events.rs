//! What happened to the cluster while this console looked: a bounded list, the oldest first, and the table of it.
use std::{collections::VecDeque, time::Duration};

use shared::telemetry::Severity;

use crate::state::{
    State,
    clean::clean_line,
    table::{Cell, Column, Row, Table, Tone},
};

/// Most entries that are kept.
pub const ENTRIES_MAX: usize = 1000;
/// Most bytes of an entry's text.
const TEXT_BYTES_MAX: usize = 500;
/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its number: one more than that of the entry before.
    pub number: u64,
    /// When, since the start of the dashboard.
    pub at: Duration,
    /// How bad it is.
    pub severity: Severity,
    /// Place of the node in the list; `None` for what concerns the whole cluster.
    pub node: Option<usize>,
    /// What, safe to draw.
    pub text: String,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    entries: VecDeque<Entry>,
    latest: u64,
}

impl Log {
    /// Adds an entry; the oldest gives way.
    pub fn push(&mut self, at: Duration, severity: Severity, node: Option<usize>, text: &str) {
        let mut text = clean_line(text);
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_front();
        }
        self.latest += 1;
        self.entries.push_back(Entry { number: self.latest, at, severity, node, text });
    }

    /// All that is kept, the oldest first.
    pub fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }

    /// The entry of a row.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        let number: u64 = key.parse().ok()?;
        self.entries.iter().find(|entry| entry.number == number)
    }
}

/// The columns.
const COLUMNS: &[Column] = &[
    Column::left("UTC", 8, 0),
    Column::left("severity", 8, 2),
    Column::left("node", 10, 1),
    Column::rest("what", 30, 0),
];

/// The entries that are bad enough, the newest first.
pub fn table(state: &State) -> Table {
    let entries = state.events.entries().iter().rev().filter(|entry| entry.severity >= state.severity_min);
    Table { columns: COLUMNS, rows: entries.map(|entry| row(state, entry)).collect() }
}

fn row(state: &State, entry: &Entry) -> Row {
    let node = entry.node.and_then(|place| state.nodes.get(place)).map_or("", |node| node.name());
    let tone = match entry.severity {
        Severity::Note => Tone::Plain,
        Severity::Warning => Tone::Warn,
        Severity::Error => Tone::Bad,
    };
    let at = Cell { text: time_of_day(state, entry.at), number: Some(entry.number as f64), tone: Tone::Dim };
    let severity = Cell { number: Some(f64::from(entry.severity as u8)), ..Cell::text(entry.severity.name()) };
    let cells = vec![at, severity.toned(tone), Cell::text(node), Cell::text(entry.text.clone()).toned(tone)];
    Row { key: entry.number.to_string(), cells, is_stale: false }
}

/// A time since the start as hours, minutes and seconds of the day, in UTC.
pub fn time_of_day(state: &State, at: Duration) -> String {
    let seconds = (state.clock_ms / 1000 + at.as_secs()) % DAY;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The next step of what is shown: all, warnings and errors, errors.
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
    fn the_oldest_entries_give_way_and_no_text_is_long_or_hostile() {
        let mut log = Log::default();
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
