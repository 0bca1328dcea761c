//! Finds marks in text that is still arriving.
use crate::overlap;

/// Where a call may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// Not in the first so many bytes; the rest needs more text.
    Later(usize),
    /// From one byte to another, there is a mark.
    Mark(usize, usize),
    /// Nowhere from here on.
    Never,
}

/// The first of some marks in a text, and at one place the longest.
pub(super) fn first<'m>(text: &str, marks: &[&'m str]) -> Option<(usize, &'m str)> {
    let found = marks.iter().filter_map(|mark| Some((text.find(mark)?, *mark)));
    found.min_by_key(|found| (found.0, std::cmp::Reverse(found.1.len())))
}

/// Bytes at the end of a text that may be the beginning of one of some marks.
pub(super) fn partial(text: &str, marks: &[&str]) -> usize {
    marks.iter().map(|mark| overlap(text, mark)).max().unwrap_or(0)
}

/// Where the first of some marks is.
pub(super) fn opening(text: &str, marks: &[&str]) -> Opening {
    match first(text, marks) {
        Some((at, mark)) => Opening::Mark(at, at + mark.len()),
        None => Opening::Later(text.len() - partial(text, marks)),
    }
}

/// Whether a text begins with a mark, white space aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    /// It does; the mark ends at this byte.
    With(usize),
    /// It may, with more text.
    Perhaps,
    /// It does not.
    Not,
}

/// Whether a text begins with this mark.
pub(super) fn begins(text: &str, mark: &str) -> Begins {
    let rest = text.trim_start();
    let blank = text.len() - rest.len();
    if rest.starts_with(mark) {
        Begins::With(blank + mark.len())
    } else if mark.starts_with(rest) {
        Begins::Perhaps
    } else {
        Begins::Not
    }
}

/// A text up to one of some marks that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until<'m> {
    /// None so far; so many bytes surely belong to the text.
    Open(usize),
    /// The mark begins at this byte.
    Mark(usize, &'m str),
}

/// Seeks the first of some marks that end a text.
pub(super) fn until<'m>(text: &str, marks: &[&'m str]) -> Until<'m> {
    match first(text, marks) {
        Some((at, mark)) => Until::Mark(at, mark),
        None => Until::Open(text.len() - partial(text, marks)),
    }
}
