//! Calls as JSON objects: between marks (Hermes), or at the beginning of the answer (Llama 3).
use std::ops::Range;

use common::chat::ToolFormat;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CALL_BYTES_MAX, CALLS_MAX, CLOSING, OPENING, Piece, give, overlap};

/// Optional prefix of a call in Llama 3. It is a control token, which is not rendered in most answers.
const PYTHON_TAG: &str = "<|python_tag|>";

/// Incremental parser for calls as objects.
#[derive(Debug)]
pub(super) struct JsonCalls {
    format: ToolFormat,
    state: JsonState,
    /// Undecided text: white space, followed by a possible call.
    held: String,
    calls: usize,
}

#[derive(Clone, Copy, Debug)]
enum JsonState {
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

impl JsonCalls {
    /// A parser at the beginning of an answer.
    pub(super) fn new(format: ToolFormat) -> Self {
        Self { format, state: JsonState::Open, held: String::new(), calls: 0 }
    }

    /// Adds text of the answer; returns the pieces that are certain now.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer; returns the text that was held back.
    pub(super) fn finish(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.calls == 0 || !self.held.trim_matches(|letter: char| letter.is_whitespace() || letter == ';').is_empty()
        {
            let end = self.held.len();
            give(&mut self.held, end, &mut pieces);
        }
        pieces
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match (self.state, self.format) {
            (JsonState::Plain, _) | (_, ToolFormat::None | ToolFormat::Xml) => {
                let end = self.held.len();
                give(&mut self.held, end, pieces);
                false
            }
            (JsonState::Open, ToolFormat::Hermes) => self.open_mark(pieces),
            (JsonState::Open | JsonState::Behind, ToolFormat::Llama3) => self.open_object(),
            (JsonState::Behind, ToolFormat::Hermes) => self.close_mark(),
            (JsonState::Inside(scan), _) => self.scan(scan, pieces),
        }
    }

    /// Hermes: text up to a marker is content.
    fn open_mark(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let mark = self.held.find(OPENING).filter(|_| self.calls < CALLS_MAX);
        let certain = mark.unwrap_or_else(|| self.held.len() - overlap(&self.held, OPENING));
        // White space is held back until it is clear whether a call follows.
        let kept = certain - self.held[..certain].trim_end().len();
        give(&mut self.held, certain - kept, pieces);
        if mark.is_some() {
            self.state = JsonState::Inside(Scan::new(kept + OPENING.len()));
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
        self.state = JsonState::Open;
        true
    }

    /// Llama 3: calls must start the answer or follow another call.
    fn open_object(&mut self) -> bool {
        let is_behind = matches!(self.state, JsonState::Behind);
        let text = self.held.trim_start_matches(|letter: char| letter.is_whitespace() || is_behind && letter == ';');
        let object = text.strip_prefix(PYTHON_TAG).unwrap_or(text).trim_start();
        let begin = self.held.len() - object.len();
        self.state = match object.as_bytes().first() {
            Some(b'{') if self.calls < CALLS_MAX => JsonState::Inside(Scan::new(begin)),
            None => return false,
            Some(_) if PYTHON_TAG.starts_with(object) => return false,
            Some(_) => JsonState::Plain,
        };
        true
    }

    fn scan(&mut self, mut scan: Scan, pieces: &mut Vec<Piece>) -> bool {
        let found = scan.advance(self.held.as_bytes());
        self.state = JsonState::Inside(scan);
        match found {
            Found::Part if self.held.len() - scan.begin <= CALL_BYTES_MAX => return false,
            Found::Part => self.state = JsonState::Plain,
            Found::Broken(at) => self.refuse(at, pieces),
            Found::Whole(object) => match self.call(&self.held[object.clone()]) {
                Some((name, arguments)) => {
                    self.held.drain(..object.end);
                    pieces.push(Piece::Call { index: self.calls, name, arguments });
                    self.calls += 1;
                    self.state = JsonState::Behind;
                }
                None => self.refuse(object.end, pieces),
            },
        }
        true
    }

    /// Returns the first `end` bytes of held text as content, because they are not a call.
    fn refuse(&mut self, end: usize, pieces: &mut Vec<Piece>) {
        give(&mut self.held, end, pieces);
        self.state = if self.format == ToolFormat::Hermes { JsonState::Open } else { JsonState::Plain };
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
