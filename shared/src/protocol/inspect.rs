//! What an operator looks at on a node beside its report: the latest lines of its log, its settings.
//! Everything is bounded; a prompt's text and a key are in none of it.
use serde::{Deserialize, Serialize};

/// Most lines of a log that a node keeps.
pub const LOG_LINES_MAX: usize = 4096;
/// Most bytes of all lines that a node keeps.
pub const LOG_BYTES_MAX: usize = 1 << 20;
/// Longest line in bytes; what is longer is cut.
pub const LOG_LINE_BYTES_MAX: usize = 2048;
/// Most lines of a log in one answer.
pub const LOG_ANSWER_LINES_MAX: usize = 512;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inspect {
    /// Lines of the log. Answered by `Inspected::Log`.
    Log {
        /// Only lines with a higher number; 0: from the oldest that is kept.
        after: u64,
        /// Only lines that are as severe as this, or more.
        level: LogLevel,
    },
    /// The settings that count, without secrets. Answered by `Inspected::Settings`.
    Settings,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Inspected {
    /// Lines of the log.
    Log(LogLines),
    /// Settings as TOML; whatever is secret reads `"(left out)"`.
    Settings(String),
}

/// How severe a line of a log is; the later the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For whoever wrote the daemon.
    Trace,
    /// For whoever looks for a defect.
    Debug,
    /// Something happened.
    Info,
    /// It costs something, or soon will.
    Warn,
    /// Something failed.
    Error,
}

impl LogLevel {
    /// In lower case.
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
    /// Counts lines from 1 at the daemon's start.
    pub number: u64,
    /// By the node's clock: milliseconds since 1970.
    pub unix_ms: u64,
    /// How severe.
    pub level: LogLevel,
    /// One line of text with its fields behind it.
    pub text: String,
}

/// Lines of a log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// Lines after the one that was named which are kept no more, of whatever level.
    pub missed: u64,
    /// Ask from here next.
    pub next: u64,
    /// There are more already.
    pub more: bool,
}
