//! The text of an answer that is not decided yet, and the steps that all ways to write calls have in common.
use super::{CALLS_MAX, Piece};
use crate::overlap;

pub(super) const OPENING: &str = "<tool_call>";
const CLOSING: &str = "</tool_call>";

/// Where a parser is in the answer; `T` is its progress within a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<T> {
    /// A call may start.
    Open,
    /// Within a call.
    Inside(T),
    /// After a call.
    Behind,
    /// Calls are not searched any more.
    Plain,
}

impl<T> Place<T> {
    /// Makes the decision behind a call, or that the rest is content; false if it needs more text.
    pub(super) fn pass(&mut self, held: &mut Held) -> bool {
        if !matches!(self, Self::Behind) {
            held.give_all();
            return false;
        }
        let is_decided = held.close();
        if is_decided {
            *self = Self::Open;
        }
        is_decided
    }
}

/// Undecided text: white space, followed by a possible call; and the pieces that are decided.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) text: String,
    pub(super) pieces: Vec<Piece>,
    pub(super) calls: usize,
}

impl Held {
    /// Decides that the first `end` bytes are content.
    pub(super) fn give(&mut self, end: usize) {
        if end == 0 {
            return;
        }
        let text: String = self.text.drain(..end).collect();
        match self.pieces.last_mut() {
            Some(Piece::Content(before)) => before.push_str(&text),
            _ => self.pieces.push(Piece::Content(text)),
        }
    }

    /// Decides that all text is content.
    pub(super) fn give_all(&mut self) {
        self.give(self.text.len());
    }

    /// Decides that the first `end` bytes are a call.
    pub(super) fn call(&mut self, name: String, arguments: String, end: usize) {
        self.text.drain(..end);
        self.pieces.push(Piece::Call { index: self.calls, name, arguments });
        self.calls += 1;
    }

    /// Decides that text up to the first of some marks is content; returns where the mark begins. White space before it is
    /// held until it is clear whether a call follows.
    pub(super) fn open(&mut self, marks: &[&str]) -> Option<usize> {
        let mark = marks.iter().filter_map(|mark| self.text.find(mark)).min().filter(|_| self.calls < CALLS_MAX);
        let partial = marks.iter().map(|mark| overlap(&self.text, mark)).max().unwrap_or(0);
        let certain = mark.unwrap_or(self.text.len() - partial);
        let told = self.text[..certain].trim_end().len();
        self.give(told);
        mark.map(|mark| mark - told)
    }

    /// Drops the mark after a call, which some answers lack; false if it may still arrive.
    fn close(&mut self) -> bool {
        let text = self.text.trim_start();
        if let Some(rest) = text.strip_prefix(CLOSING) {
            self.text = rest.to_owned();
        } else if CLOSING.starts_with(text) {
            return false;
        }
        true
    }
}
