//! Events of the cluster observed by this console: a bounded list, oldest first, and its table.
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

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

/// Equal events within this time of one another are one row.
const TOGETHER: Duration = Duration::from_secs(60);

/// Equal events that followed one another, of one node or of several.
#[derive(Clone, Debug, PartialEq)]
pub struct EventGroup<'a> {
    /// The oldest one, which identifies the group.
    pub first: &'a Entry,
    /// The newest one.
    pub last: &'a Entry,
    /// Their number.
    pub count: usize,
    /// List indices of their nodes, each once, in the order of their events.
    pub nodes: Vec<usize>,
}

impl EventGroup<'_> {
    /// The names of the nodes.
    pub fn names(&self, state: &State) -> String {
        let names = self.nodes.iter().filter_map(|place| state.cluster.nodes.get(*place)).map(|node| node.name());
        names.collect::<Vec<_>>().join(" ")
    }
}

/// The events of at least the selected severity in groups, the latest group first.
pub fn groups(state: &State) -> Vec<EventGroup<'_>> {
    let mut groups: Vec<EventGroup> = Vec::new();
    let mut latest: HashMap<(u8, &str), usize> = HashMap::new();
    let entries = state.journal.events.entries().iter();
    for entry in entries.filter(|entry| entry.severity >= state.tables.severity_min) {
        let key = (entry.severity as u8, alike(&entry.text));
        let group = latest.get(&key).and_then(|place| groups.get_mut(*place));
        match group.filter(|group| entry.at.saturating_sub(group.last.at) <= TOGETHER) {
            Some(group) => {
                (group.last, group.count) = (entry, group.count + 1);
                let new = entry.node.filter(|node| !group.nodes.contains(node));
                group.nodes.extend(new);
            }
            None => {
                latest.insert(key, groups.len());
                groups.push(EventGroup {
                    first: entry,
                    last: entry,
                    count: 1,
                    nodes: entry.node.into_iter().collect(),
                });
            }
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.last.number));
    groups
}

/// The text that events of the same kind have in common: a percentage and the words after it may differ.
fn alike(text: &str) -> &str {
    match text.split_once(" %") {
        Some((before, _)) => before.trim_end_matches(|one: char| one.is_ascii_digit()),
        None => text,
    }
}

/// The table's columns.
const COLUMNS: &[Column] = &[
    Column::left("UTC", 8, 0),
    Column::left("severity", 8, 2),
    Column::right("times", 5, 3),
    Column::left("nodes", 19, 1),
    Column::rest("what", 30, 0),
];

/// The groups of events, the latest first.
pub fn table(state: &State) -> Table {
    Table { columns: COLUMNS, rows: groups(state).iter().map(|group| row(state, group)).collect() }
}

/// The group of the row with this key.
pub fn group<'a>(state: &'a State, key: &str) -> Option<EventGroup<'a>> {
    groups(state).into_iter().find(|group| group.first.number.to_string() == key)
}

fn row(state: &State, group: &EventGroup) -> TableRow {
    let EventGroup { first, last: entry, count, .. } = group;
    let tone = tone(entry.severity);
    let at = Cell { text: time_of_day(state, entry.at), number: Some(entry.number as f64), tone: Tone::Dim };
    let severity = Cell { number: Some(f64::from(entry.severity as u8)), ..Cell::text(entry.severity.name()) };
    let times = if *count > 1 { format!("×{count}") } else { String::new() };
    let times = Cell { text: times, number: Some(*count as f64), tone: Tone::Dim };
    let text = Cell::text(entry.text.clone()).toned(tone);
    let cells = vec![at, severity.toned(tone), times, Cell::text(group.names(state)), text];
    TableRow { key: first.number.to_string(), cells, is_stale: false }
}

/// Numbers of notes, warnings and errors in each of `count` equal parts of the time until now, oldest first.
pub fn counts(state: &State, span: Duration, count: usize) -> Vec<[u32; 3]> {
    let mut parts = vec![[0; 3]; count];
    for entry in state.journal.events.entries() {
        let age = state.now.saturating_sub(entry.at);
        let back = (age.as_secs_f64() / span.as_secs_f64() * count as f64) as usize;
        if let Some(part) = count.checked_sub(back + 1).and_then(|at| parts.get_mut(at)) {
            let kind = match entry.severity {
                Severity::Note => 0,
                Severity::Warning => 1,
                Severity::Error => 2,
            };
            part[kind] += 1;
        }
    }
    parts
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
    use crate::fixtures::Story;

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

    #[test]
    fn equal_events_of_several_nodes_are_one_row() {
        let mut story = Story::begin();
        story.at(1000);
        let at = |second| Duration::from_secs(second);
        let log = &mut story.state.journal.events;
        *log = EventLog::default();
        for node in 0..3 {
            log.push(at(1), Severity::Note, Some(node), "is ready");
            log.push(at(1), Severity::Note, Some(node), "connected");
        }
        log.push(at(2), Severity::Warning, Some(2), "delays the others: 13 % of their time");
        log.push(at(30), Severity::Warning, Some(2), "delays the others: 9 % of their time");
        log.push(at(200), Severity::Note, Some(0), "is ready");
        story.at(200_000);
        let rows = table(&story.state).rows;
        let seen: Vec<Vec<&str>> =
            rows.iter().map(|row| row.cells[2..].iter().map(|cell| cell.text.as_str()).collect()).collect();
        let ours: [[&str; 3]; 4] = [
            ["", "127.0.0.2:9999", "is ready"],
            ["×2", "127.0.0.4:9999", "delays the others: 9 % of their time"],
            ["×3", "127.0.0.2:9999 127.0.0.3:9999 127.0.0.4:9999", "connected"],
            ["×3", "127.0.0.2:9999 127.0.0.3:9999 127.0.0.4:9999", "is ready"],
        ];
        assert_eq!(seen, ours);
        assert_eq!(rows[1].key, "7", "the oldest one identifies the group");
        let parts = counts(&story.state, at(240), 4);
        assert_eq!(parts, [[6, 1, 0], [0, 1, 0], [0; 3], [1, 0, 0]]);
    }
}
