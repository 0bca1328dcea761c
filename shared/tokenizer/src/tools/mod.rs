//! Finds tool calls in a streamed answer. Text that looks like a call but is not one is returned as content: except for
//! white space around calls, and their markers, no text is lost. Pure and bounded; the result does not depend on how
//! the answer is split into pieces.
use std::ops::Range;

use common::chat::ToolFormat;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longest text of a call in bytes; a longer one is content, and so is all text after it.
pub const CALL_BYTES_MAX: usize = 256 << 10;
/// Most calls of an answer; all text after them is content.
pub const CALLS_MAX: usize = 128;

const OPENING: &str = "<tool_call>";
const CLOSING: &str = "</tool_call>";
/// Optional prefix of a call in Llama 3. It is a control token, which is not rendered in most answers.
const PYTHON_TAG: &str = "<|python_tag|>";

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text for the user.
    Content(String),
    /// A complete call.
    Call {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// The tool.
        name: String,
        /// A JSON object, as the model wrote it.
        arguments: String,
    },
}

/// Incremental parser for tool calls.
#[derive(Debug)]
pub struct ToolParser {
    format: ToolFormat,
    state: State,
    /// Undecided text: white space, followed by a possible call.
    held: String,
    calls: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// A call may start here.
    Open,
    /// Within the object of a call.
    Inside(Scan),
    /// After a call.
    Behind,
    /// Calls are not searched any more.
    Plain,
}

/// Progress of scanning an object.
#[derive(Clone, Copy, Debug)]
struct Scan {
    begin: usize,
    end: usize,
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

enum Found {
    /// The object is incomplete.
    Part,
    /// The object ends here.
    Whole(Range<usize>),
    /// Not a JSON object; first evident at this offset.
    Broken(usize),
}

impl ToolParser {
    /// A parser at the beginning of an answer.
    pub fn new(format: ToolFormat) -> Self {
        let state = if format == ToolFormat::None { State::Plain } else { State::Open };
        Self { format, state, held: String::new(), calls: 0 }
    }

    /// Adds text of the answer; returns the pieces that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.calls == 0 || !self.held.trim_matches(|letter: char| letter.is_whitespace() || letter == ';').is_empty()
        {
            self.give(self.held.len(), &mut pieces);
        }
        pieces
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match (self.state, self.format) {
            (State::Plain, _) | (_, ToolFormat::None) => {
                self.give(self.held.len(), pieces);
                false
            }
            (State::Open, ToolFormat::Hermes) => self.open_mark(pieces),
            (State::Open | State::Behind, ToolFormat::Llama3) => self.open_object(),
            (State::Behind, ToolFormat::Hermes) => self.close_mark(),
            (State::Inside(scan), _) => self.scan(scan, pieces),
        }
    }

    /// Hermes: text up to a marker is content.
    fn open_mark(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let mark = self.held.find(OPENING).filter(|_| self.calls < CALLS_MAX);
        let certain = mark.unwrap_or_else(|| self.held.len() - overlap(&self.held, OPENING));
        // White space is held back until it is clear whether a call follows.
        let kept = certain - self.held[..certain].trim_end().len();
        self.give(certain - kept, pieces);
        if mark.is_some() {
            self.state = State::Inside(Scan::new(kept + OPENING.len()));
        }
        mark.is_some()
    }

    /// Hermes: the marker after a call, which some answers lack.
    fn close_mark(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(CLOSING) {
            self.held = rest.to_owned();
        } else if CLOSING.starts_with(text) {
            return false;
        }
        self.state = State::Open;
        true
    }

    /// Llama 3: calls must start the answer or follow another call.
    fn open_object(&mut self) -> bool {
        let is_behind = matches!(self.state, State::Behind);
        let text = self.held.trim_start_matches(|letter: char| letter.is_whitespace() || is_behind && letter == ';');
        let object = text.strip_prefix(PYTHON_TAG).unwrap_or(text).trim_start();
        let begin = self.held.len() - object.len();
        self.state = match object.as_bytes().first() {
            Some(b'{') if self.calls < CALLS_MAX => State::Inside(Scan::new(begin)),
            None => return false,
            Some(_) if PYTHON_TAG.starts_with(object) => return false,
            Some(_) => State::Plain,
        };
        true
    }

    fn scan(&mut self, mut scan: Scan, pieces: &mut Vec<Piece>) -> bool {
        let found = scan.advance(self.held.as_bytes());
        self.state = State::Inside(scan);
        match found {
            Found::Part if self.held.len() - scan.begin <= CALL_BYTES_MAX => return false,
            Found::Part => self.state = State::Plain,
            Found::Broken(at) => self.refuse(at, pieces),
            Found::Whole(object) => match self.call(&self.held[object.clone()]) {
                Some((name, arguments)) => {
                    self.held.drain(..object.end);
                    pieces.push(Piece::Call { index: self.calls, name, arguments });
                    self.calls += 1;
                    self.state = State::Behind;
                }
                None => self.refuse(object.end, pieces),
            },
        }
        true
    }

    /// Returns the first `end` bytes of held text as content, because they are not a call.
    fn refuse(&mut self, end: usize, pieces: &mut Vec<Piece>) {
        self.give(end, pieces);
        self.state = if self.format == ToolFormat::Hermes { State::Open } else { State::Plain };
    }

    /// Name and arguments of a call.
    fn call(&self, object: &str) -> Option<(String, String)> {
        #[derive(Deserialize)]
        struct Call<'a> {
            #[serde(alias = "function")]
            name: String,
            #[serde(borrow, alias = "parameters")]
            arguments: Option<&'a RawValue>,
        }
        let Call { name, arguments } = serde_json::from_str(object).ok()?;
        let arguments = match arguments.map(RawValue::get) {
            Some(object) if object.starts_with('{') => object.to_owned(),
            // Some models encode the object as a string.
            Some(text) => {
                let text: String = serde_json::from_str(text).ok()?;
                serde_json::from_str::<serde_json::Map<_, _>>(&text).ok()?;
                text
            }
            // Without a marker, an object that has only a name is an answer.
            None if self.format == ToolFormat::Hermes => "{}".to_owned(),
            None => return None,
        };
        (!name.is_empty()).then_some((name, arguments))
    }

    /// Returns the first `end` bytes of held text as content.
    fn give(&mut self, end: usize, pieces: &mut Vec<Piece>) {
        if end == 0 {
            return;
        }
        let text: String = self.held.drain(..end).collect();
        match pieces.last_mut() {
            Some(Piece::Content(before)) => before.push_str(&text),
            _ => pieces.push(Piece::Content(text)),
        }
    }
}

impl Scan {
    fn new(begin: usize) -> Self {
        Self { begin, end: begin, depth: 0, in_text: false, is_escaped: false }
    }

    /// Scans the new bytes: the object ends where braces and brackets balance.
    fn advance(&mut self, bytes: &[u8]) -> Found {
        while let Some(byte) = bytes.get(self.end) {
            match byte {
                _ if self.in_text && self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_text => self.is_escaped = true,
                b'"' if self.in_text || self.depth > 0 => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'{' | b'[' if self.depth > 0 || *byte == b'{' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => self.depth -= 1,
                b':' | b',' | b'+' | b'-' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E' if self.depth > 0 => {}
                _ => return Found::Broken(self.end),
            }
            self.end += 1;
            if self.depth == 0 && matches!(byte, b'}' | b']') {
                return Found::Whole(self.begin..self.end);
            }
        }
        Found::Part
    }
}

/// Number of bytes at the end of `text` that are a prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let most = text.len().min(mark.len() - 1);
    (1..=most).rev().find(|count| text.as_bytes().ends_with(&mark.as_bytes()[..*count])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
