//! A finding: a problem of a machine or between machines, its severity, and its fix. Plain values, for people and
//! scripts.
use serde::Serialize;

/// Severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information.
    Note,
    /// It costs performance, or soon may.
    Warning,
    /// It makes the node much slower, or something cannot work.
    Error,
}

impl Severity {
    /// The name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its stable name.
    pub code: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// Its meaning.
    pub meaning: String,
    /// The fix, as a command if there is one.
    pub fix: String,
}

/// Exit code of a check that found warnings.
pub const WARNINGS_CODE: u8 = 6;
/// Exit code of a check that found errors.
pub const ERRORS_CODE: u8 = 7;

/// The exit code of a check: 0 if there are only notes (table in docs/operate.md).
pub fn exit_code<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> u8 {
    match findings.into_iter().map(|finding| finding.severity).max() {
        None | Some(Severity::Note) => 0,
        Some(Severity::Warning) => WARNINGS_CODE,
        Some(Severity::Error) => ERRORS_CODE,
    }
}

impl Finding {
    /// Two lines of text: severity and meaning, then the fix.
    pub fn lines(&self) -> [String; 2] {
        [format!("{:<7}  {}", self.severity.name(), self.meaning), format!("{:<7}  fix: {}", "", self.fix)]
    }
}
