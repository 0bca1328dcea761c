//! What happened in a simulated history, one line per event that matters: virtual time, node, text.
use std::time::Duration;

/// Lines of a history; none where nobody reads them.
#[derive(Debug, Default)]
pub(super) struct Story {
    is_told: bool,
    lines: Vec<String>,
}

impl Story {
    /// A story that keeps its lines if it is told.
    pub(super) fn new(is_told: bool) -> Self {
        Self { is_told, lines: Vec::new() }
    }

    /// Adds a line; the text is only made where it is kept.
    pub(super) fn say(&mut self, now: Duration, who: &str, text: impl FnOnce() -> String) {
        if self.is_told {
            self.lines.push(format!("{:>9.3} s  {who:<8} {}", now.as_secs_f64(), text()));
        }
    }

    /// All lines.
    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }
}
