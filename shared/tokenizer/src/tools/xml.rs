//! Calls as tags (Qwen3-Coder, Qwen3.5, Nemotron 3): `<tool_call><function=NAME><parameter=P>VALUE</parameter>..</function>
//! </tool_call>`. Models sometimes leave out `<tool_call>`.
use std::sync::Arc;

use super::{
    CALL_BYTES_MAX, ToolSchemas,
    held::{Held, OPENING, Place},
};
use crate::overlap;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Finds calls as tags.
#[derive(Debug)]
pub(super) struct XmlCalls {
    schemas: Arc<ToolSchemas>,
    place: Place<Tags>,
}

/// Progress within a call.
#[derive(Clone, Copy, Debug)]
struct Tags {
    /// The function must begin at this byte, behind white space.
    function: usize,
    /// Its end is not before this byte.
    sought: usize,
}

impl XmlCalls {
    /// At the beginning of an answer.
    pub(super) fn new(schemas: Arc<ToolSchemas>) -> Self {
        Self { schemas, place: Place::Open }
    }

    /// Makes one decision; false if it needs more text.
    pub(super) fn step(&mut self, held: &mut Held) -> bool {
        match self.place {
            Place::Open => {
                let Some(mark) = held.open(&[OPENING, FUNCTION]) else { return false };
                let is_opening = held.text[mark..].starts_with(OPENING);
                let function = if is_opening { mark + OPENING.len() } else { mark };
                self.place = Place::Inside(Tags { function, sought: function });
                true
            }
            Place::Inside(tags) => self.inside(tags, held),
            Place::Behind | Place::Plain => self.place.pass(held),
        }
    }

    fn inside(&mut self, tags: Tags, held: &mut Held) -> bool {
        let Tags { function, sought } = tags;
        let rest = held.text[function..].trim_start();
        if !rest.starts_with(FUNCTION) && !FUNCTION.starts_with(rest) {
            return self.refuse(function, held);
        }
        let found = held.text[sought..].find(FUNCTION_END).map(|at| sought + at);
        let sought = found.unwrap_or(held.text.len() - overlap(&held.text, FUNCTION_END)).max(function);
        if sought - function > CALL_BYTES_MAX {
            self.place = Place::Plain;
            return true;
        }
        let Some(end) = found else {
            self.place = Place::Inside(Tags { function, sought });
            return false;
        };
        let begin = held.text.len() - rest.len();
        // Without `<tool_call>`, only a tool of the request is called.
        let is_marked = held.text[..begin].trim_end().ends_with(OPENING);
        let call = self.call(&held.text[begin + FUNCTION.len()..end]);
        let Some((name, arguments)) = call.filter(|(name, _)| is_marked || self.schemas.has(name)) else {
            return self.refuse(end + FUNCTION_END.len(), held);
        };
        held.call(name, arguments, end + FUNCTION_END.len());
        self.place = Place::Behind;
        true
    }

    /// Decides that the first `end` bytes are content, because they are not a call.
    fn refuse(&mut self, end: usize, held: &mut Held) -> bool {
        held.give(end);
        self.place = Place::Open;
        true
    }

    /// Name and arguments of `NAME>..`, up to the end of the function.
    fn call(&self, text: &str) -> Option<(String, String)> {
        let (name, mut rest) = text.split_once('>')?;
        let name = name.trim();
        let mut arguments = serde_json::Map::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            let (parameter, behind) = rest.strip_prefix(PARAMETER)?.split_once('>')?;
            // Without an end tag, the value ends at the next parameter.
            let end = behind.find(PARAMETER_END).or_else(|| behind.find(PARAMETER)).unwrap_or(behind.len());
            let value = behind[..end].strip_prefix('\n').unwrap_or(&behind[..end]);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(parameter.trim().to_owned(), self.schemas.value(name, parameter.trim(), value));
            rest = behind[end..].strip_prefix(PARAMETER_END).unwrap_or(&behind[end..]);
        }
        let arguments = serde_json::to_string(&arguments).ok()?;
        (!name.is_empty()).then(|| (name.to_owned(), arguments))
    }
}
