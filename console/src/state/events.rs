//! What happened to the cluster while this console looked: a bounded list, the oldest first.
use std::{collections::VecDeque, time::Duration};

use shared::telemetry::Severity;

use crate::state::clean::clean_line;

/// Most entries that are kept.
pub const ENTRIES_MAX: usize = 1000;
/// Most bytes of an entry's text.
const TEXT_BYTES_MAX: usize = 500;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
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
}

impl Log {
    /// Adds an entry; the oldest gives way.
    pub fn push(&mut self, at: Duration, severity: Severity, node: Option<usize>, text: &str) {
        let mut text = clean_line(text);
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { at, severity, node, text });
    }

    /// All that is kept, the oldest first.
    pub fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
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
    }
}
