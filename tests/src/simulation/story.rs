//! The story of a simulated history, one line per relevant event: virtual time, node, text.
use std::time::Duration;

/// The lines of a story; stays empty unless they are kept.
#[derive(Debug, Default)]
pub(super) struct Story {
    is_told: bool,
    lines: Vec<String>,
}

impl Story {
    /// A story that keeps its lines if `is_told`.
    pub(super) fn new(is_told: bool) -> Self {
        Self { is_told, lines: Vec::new() }
    }

    /// Adds a line; the text is created only if lines are kept.
    pub(super) fn say(&mut self, now: Duration, who: &str, text: impl FnOnce() -> String) {
        if self.is_told {
            self.lines.push(format!("{:>9.3} s  {who:<8} {}", now.as_secs_f64(), text()));
        }
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }
}
