//! A finding: what is wrong with a machine or between machines, how bad, what cures it. Plain values, for people and scripts.
use serde::Serialize;

/// How bad a finding is; the later the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Note,
    /// It costs speed, or may soon cost more.
    Warning,
    /// The node is much slower for it, or something cannot work.
    Error,
}

impl Severity {
    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its stable name.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it means.
    pub meaning: String,
    /// What to do, as a command where there is one.
    pub fix: String,
}

/// Exit code of a check that found warnings.
pub const WARNINGS_CODE: u8 = 6;
/// Exit code of a check that found errors.
pub const ERRORS_CODE: u8 = 7;

/// The exit code of a check: 0 if there are only notes (table in the README).
pub fn exit_code<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> u8 {
    match findings.into_iter().map(|finding| finding.severity).max() {
        None | Some(Severity::Note) => 0,
        Some(Severity::Warning) => WARNINGS_CODE,
        Some(Severity::Error) => ERRORS_CODE,
    }
}

impl Finding {
    /// Two lines for people: severity and meaning, then the cure.
    pub fn lines(&self) -> [String; 2] {
        [format!("{:<7}  {}", self.severity.name(), self.meaning), format!("{:<7}  fix: {}", "", self.fix)]
    }
}
