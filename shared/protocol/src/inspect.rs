//! Details that an operator can request from a node in addition to its report: recent log lines and settings.
//! Everything is bounded; no prompt text and no key is included.
use serde::{Deserialize, Serialize};

/// Most lines of a log that a node keeps.
pub const LOG_LINES_MAX: usize = 4096;
/// Most bytes of all lines that a node keeps.
pub const LOG_BYTES_MAX: usize = 1 << 20;
/// Longest line in bytes; longer lines are truncated.
pub const LOG_LINE_BYTES_MAX: usize = 2048;
/// Most log lines in one response.
pub const LOG_ANSWER_LINES_MAX: usize = 512;

/// The details to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inspect {
    /// Log lines. Answered by `Inspected::Log`.
    Log {
        /// Only lines with a higher number; 0 starts at the oldest line kept.
        after: u64,
        /// Only lines of at least this severity.
        level: LogLevel,
    },
    /// The effective settings, without secrets. Answered by `Inspected::Settings`.
    Settings,
}

/// The requested details.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Inspected {
    /// Log lines.
    Log(LogLines),
    /// Settings as TOML; secrets are replaced by `"(left out)"`.
    Settings(String),
}

/// Severity of a log line, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For developers of the daemon.
    Trace,
    /// For diagnosing a defect.
    Debug,
    /// A normal event.
    Info,
    /// Something that costs performance or soon will.
    Warn,
    /// A failure.
    Error,
}

impl LogLevel {
    /// The name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Trace, Self::Debug, Self::Info, Self::Warn, Self::Error];
        let found = all.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| "trace, debug, info, warn or error".into())
    }
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Line number, counted from 1 since the daemon's start.
    pub number: u64,
    /// Time by the node's clock: milliseconds since 1970.
    pub unix_ms: u64,
    /// Severity.
    pub level: LogLevel,
    /// One line of text, followed by its fields.
    pub text: String,
}

/// Log lines, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// Number of lines after the given one that are no longer kept, of any severity.
    pub missed: u64,
    /// The value of `after` for the next request.
    pub next: u64,
    /// Whether more lines are available now.
    pub more: bool,
}
