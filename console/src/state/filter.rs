//! Which rows of a table are shown: `text`, `!text` for the others, `~expression` for a regular expression (`!~` for the others).
//! Upper and lower case are the same.
use regex::{Regex, RegexBuilder};

use crate::state::table::Row;

/// Longest filter in bytes.
pub const FILTER_BYTES_MAX: usize = 120;
/// Memory that a compiled expression may take.
const COMPILED_BYTES_MAX: usize = 1 << 16;

/// A filter as it was typed, and what it means.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    typed: String,
    meaning: Meaning,
    inverse: bool,
}

#[derive(Clone, Debug, Default)]
enum Meaning {
    #[default]
    All,
    /// In lower case.
    Text(String),
    Expression(Regex),
    /// It cannot be read; everything is shown until it can.
    Unreadable,
}

impl PartialEq for Filter {
    /// What was typed says it all.
    fn eq(&self, other: &Self) -> bool {
        self.typed == other.typed
    }
}

impl Filter {
    /// Reads a filter. What is longer than [`FILTER_BYTES_MAX`] is cut.
    pub fn new(typed: &str) -> Self {
        let typed = &typed[..typed.floor_char_boundary(FILTER_BYTES_MAX)];
        let (inverse, rest) = typed.strip_prefix('!').map_or((false, typed), |rest| (true, rest));
        let meaning = match rest.strip_prefix('~') {
            _ if rest.is_empty() => Meaning::All,
            Some("") => Meaning::All,
            Some(expression) => {
                let mut builder = RegexBuilder::new(expression);
                let compiled = builder.case_insensitive(true).size_limit(COMPILED_BYTES_MAX).build();
                compiled.map_or(Meaning::Unreadable, Meaning::Expression)
            }
            None => Meaning::Text(rest.to_lowercase()),
        };
        Self { typed: typed.to_owned(), meaning, inverse }
    }

    /// As it was typed.
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether everything is shown.
    pub fn is_empty(&self) -> bool {
        matches!(self.meaning, Meaning::All | Meaning::Unreadable)
    }

    /// Whether it cannot be read as the regular expression that it claims to be.
    pub fn is_unreadable(&self) -> bool {
        matches!(self.meaning, Meaning::Unreadable)
    }

    /// As it was typed, `None` where nothing was.
    pub fn words(&self) -> Option<String> {
        let unreadable = if self.is_unreadable() { " (no regular expression)" } else { "" };
        (!self.typed.is_empty()).then(|| format!("{}{unreadable}", self.typed))
    }

    /// Whether a row is shown: one of its fields matches, or for an inverse filter none.
    pub fn takes(&self, row: &Row) -> bool {
        let matches = |text: &str| match &self.meaning {
            Meaning::All | Meaning::Unreadable => true,
            Meaning::Text(wanted) => text.to_lowercase().contains(wanted),
            Meaning::Expression(expression) => expression.is_match(text),
        };
        self.is_empty() || row.cells.iter().any(|cell| matches(&cell.text)) != self.inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::table::Cell;

    #[track_caller]
    fn check(filter: &str, expected: &[&str]) {
        let rows = ["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"];
        let row = |text: &&str| Row { key: String::new(), cells: vec![Cell::text(*text)], is_stale: false };
        let filter = Filter::new(filter);
        let taken: Vec<&str> = rows.into_iter().filter(|text| filter.takes(&row(text))).collect();
        assert_eq!(taken, expected, "{filter:?}");
    }

    #[test]
    fn filters_take_text_its_inverse_and_expressions() {
        check("", &["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"]);
        check("ready", &["pi1 ready", "Pi10 Ready"]);
        check("!ready", &["pi2 loading", "x[9"]);
        check("~^pi\\d ", &["pi1 ready", "pi2 loading"]);
        check("!~^pi", &["x[9"]);
        check("x[9", &["x[9"]);
        check("!", &["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"]);
    }

    #[test]
    fn an_expression_that_cannot_be_read_or_is_too_large_says_so_and_hides_nothing() {
        check("~[9", &["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"]);
        assert!(Filter::new("~[9").words().is_some_and(|words| words.contains("no regular expression")));
        assert!(Filter::new("~(a{999}){999}").is_unreadable());
        assert_eq!(Filter::new(&"ü".repeat(500)).typed().len(), FILTER_BYTES_MAX);
    }
}
