//! Filters of table rows: `text`, `!text` (inverse), `~expression` (regular expression), `!~expression` (inverse).
//! Case-insensitive.
use regex::{Regex, RegexBuilder};

use crate::state::row::TableRow;

/// Maximum length of a filter in bytes.
pub const FILTER_BYTES_MAX: usize = 120;
/// Maximum memory of a compiled expression in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 16;

/// A filter as typed, with its parsed form.
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
    /// The expression is invalid; every row is shown until it is valid.
    Unreadable,
}

impl Meaning {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::All | Self::Unreadable => true,
            Self::Text(wanted) => text.to_lowercase().contains(wanted),
            Self::Expression(expression) => expression.is_match(text),
        }
    }
}

impl PartialEq for Filter {
    /// The typed text determines the parsed form, so only the text is compared.
    fn eq(&self, other: &Self) -> bool {
        self.typed == other.typed
    }
}

impl Filter {
    /// Parses a filter; text beyond [`FILTER_BYTES_MAX`] is cut off.
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

    /// The filter as typed.
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether every row is shown.
    pub fn is_empty(&self) -> bool {
        matches!(self.meaning, Meaning::All | Meaning::Unreadable)
    }

    /// Whether its regular expression is invalid.
    pub fn is_unreadable(&self) -> bool {
        matches!(self.meaning, Meaning::Unreadable)
    }

    /// The filter as typed, with a remark if it is invalid; `None` without a filter.
    pub fn words(&self) -> Option<String> {
        let unreadable = if self.is_unreadable() { " (no regular expression)" } else { "" };
        (!self.typed.is_empty()).then(|| format!("{}{unreadable}", self.typed))
    }

    /// Whether a row is shown: one of its fields matches, or none of them for an inverse filter.
    pub fn takes(&self, row: &TableRow) -> bool {
        self.is_empty() || row.cells.iter().any(|cell| self.meaning.matches(&cell.text)) != self.inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::row::Cell;

    #[track_caller]
    fn check(filter: &str, expected: &[&str]) {
        let rows = ["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"];
        let filter = Filter::new(filter);
        let taken = rows.into_iter().filter(|text| {
            filter.takes(&TableRow { key: String::new(), cells: vec![Cell::text(*text)], is_stale: false })
        });
        let taken: Vec<&str> = taken.collect();
        assert_eq!(taken, expected, "{filter:?}");
    }

    #[test]
    fn filters_match_text_expressions_and_their_inverse() {
        check("", &["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"]);
        check("ready", &["pi1 ready", "Pi10 Ready"]);
        check("!ready", &["pi2 loading", "x[9"]);
        check("~^pi\\d ", &["pi1 ready", "pi2 loading"]);
        check("!~^pi", &["x[9"]);
        check("x[9", &["x[9"]);
        check("!", &["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"]);
    }

    #[test]
    fn invalid_or_large_expression_is_reported_and_hides_nothing() {
        check("~[9", &["pi1 ready", "pi2 loading", "Pi10 Ready", "x[9"]);
        assert!(Filter::new("~[9").words().is_some_and(|words| words.contains("no regular expression")));
        assert!(Filter::new("~(a{999}){999}").is_unreadable());
        assert_eq!(Filter::new(&"ü".repeat(500)).typed().len(), FILTER_BYTES_MAX);
    }
}
