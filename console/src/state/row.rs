//! A row of a table.

/// One field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The text, safe to render.
    pub text: String,
    /// By what it is sorted; fields without a number are sorted by their text, after those with one.
    pub number: Option<f64>,
    /// What it means.
    pub tone: Tone,
}

impl Cell {
    /// A text field.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A figure formatted by `write`; a dash if unknown.
    pub fn figure<T: Copy + Into<f64>>(value: Option<T>, write: impl Fn(T) -> String) -> Self {
        match value {
            Some(value) => Self { text: write(value), number: Some(value.into()), tone: Tone::Plain },
            None => Self { text: "–".to_owned(), number: None, tone: Tone::Dim },
        }
    }

    /// The same field with another tone.
    #[must_use]
    pub fn toned(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// Identifies the row: constant while its figures change.
    pub key: String,
    /// One field per column.
    pub cells: Vec<Cell>,
    /// Whether its figures are outdated and therefore dimmed.
    pub is_stale: bool,
}

/// The meaning of a text; the theme maps it to a style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Primary content.
    #[default]
    Plain,
    /// Secondary or outdated content.
    Dim,
    /// Normal.
    Ok,
    /// Needs attention.
    Warn,
    /// Broken or failed.
    Bad,
}
