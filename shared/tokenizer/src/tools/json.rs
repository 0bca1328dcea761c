//! Calls as JSON objects: between marks (Hermes), or at the beginning of the answer (Llama 3).
use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    CALL_BYTES_MAX, CALLS_MAX,
    held::{Held, OPENING, Place},
};

/// Optional prefix of a call in Llama 3. It is a control token, which is not rendered in most answers.
const PYTHON_TAG: &str = "<|python_tag|>";

/// Finds calls as objects.
#[derive(Debug)]
pub(super) struct JsonCalls {
    /// Whether calls stand between marks (Hermes); without them, they must start the answer or follow another call.
    is_marked: bool,
    place: Place<Scan>,
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
    /// At the beginning of an answer.
    pub(super) fn new(is_marked: bool) -> Self {
        Self { is_marked, place: Place::Open }
    }

    /// Makes one decision; false if it needs more text.
    pub(super) fn step(&mut self, held: &mut Held) -> bool {
        match self.place {
            Place::Open | Place::Behind if !self.is_marked => self.open_object(held),
            Place::Open => {
                let mark = held.open(&[OPENING]);
                mark.inspect(|mark| self.place = Place::Inside(Scan::new(mark + OPENING.len()))).is_some()
            }
            Place::Inside(scan) => self.scan(scan, held),
            Place::Behind | Place::Plain => self.place.pass(held),
        }
    }

    /// Llama 3: calls must start the answer or follow another call.
    fn open_object(&mut self, held: &Held) -> bool {
        let is_behind = matches!(self.place, Place::Behind);
        let text = held.text.trim_start_matches(|letter: char| letter.is_whitespace() || is_behind && letter == ';');
        let object = text.strip_prefix(PYTHON_TAG).unwrap_or(text).trim_start();
        let begin = held.text.len() - object.len();
        self.place = match object.as_bytes().first() {
            Some(b'{') if held.calls < CALLS_MAX => Place::Inside(Scan::new(begin)),
            None => return false,
            Some(_) if PYTHON_TAG.starts_with(object) => return false,
            Some(_) => Place::Plain,
        };
        true
    }

    fn scan(&mut self, mut scan: Scan, held: &mut Held) -> bool {
        let found = scan.advance(held.text.as_bytes());
        self.place = Place::Inside(scan);
        match found {
            Found::Part if held.text.len() - scan.begin <= CALL_BYTES_MAX => return false,
            Found::Part => self.place = Place::Plain,
            Found::Whole(object) if object.len() > CALL_BYTES_MAX => self.place = Place::Plain,
            Found::Broken(at) => self.refuse(at, held),
            Found::Whole(object) => match self.call(&held.text[object.clone()]) {
                Some((name, arguments)) => {
                    held.call(name, arguments, object.end);
                    self.place = Place::Behind;
                }
                None => self.refuse(object.end, held),
            },
        }
        true
    }

    /// Decides that the first `end` bytes are content, because they are not a call.
    fn refuse(&mut self, end: usize, held: &mut Held) {
        held.give(end);
        self.place = if self.is_marked { Place::Open } else { Place::Plain };
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
            None if self.is_marked => "{}".to_owned(),
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
