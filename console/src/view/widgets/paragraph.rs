//! A text broken into lines between words.
use ratatui::{
    style::Style,
    text::{Line, Span},
};

use crate::view::format::{width, wrap_words};

/// The text in lines of at most `cells` cells, each of which begins with `before` as a span of its own.
pub(crate) fn paragraph(text: &str, before: &'static str, style: Style, cells: usize) -> Vec<Line<'static>> {
    wrap_words(text, cells.saturating_sub(width(before)))
        .into_iter()
        .map(|range| {
            Line::from_iter([Span::styled(before, style), Span::styled(text[range].trim_end().to_owned(), style)])
        })
        .collect()
}
