//! Finds tool calls in a streamed answer. Text that looks like a call but is not one is returned as content: except for
//! white space around calls, and their markers, no text is lost. Pure and bounded; the result does not depend on how
//! the answer is split into pieces.
mod json;
mod schemas;
mod xml;

use common::chat::ToolFormat;
use json::JsonCalls;
pub use schemas::ToolSchemas;
use xml::XmlCalls;

/// Longest text of a call in bytes; a longer one is content, and so is all text after it.
pub const CALL_BYTES_MAX: usize = 256 << 10;
/// Most calls of an answer; all text after them is content.
pub const CALLS_MAX: usize = 128;

const OPENING: &str = "<tool_call>";
const CLOSING: &str = "</tool_call>";

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

/// Incremental parser for tool calls: one for each way to write them.
#[derive(Debug)]
pub struct ToolParser(Syntax);

#[derive(Debug)]
enum Syntax {
    /// No calls.
    Text,
    Json(JsonCalls),
    Xml(XmlCalls),
}

impl ToolParser {
    /// A parser at the beginning of an answer.
    pub fn new(format: ToolFormat, schemas: ToolSchemas) -> Self {
        Self(match format {
            ToolFormat::None => Syntax::Text,
            ToolFormat::Llama3 | ToolFormat::Hermes => Syntax::Json(JsonCalls::new(format)),
            ToolFormat::Xml => Syntax::Xml(XmlCalls::new(schemas)),
        })
    }

    /// Adds text of the answer; returns the pieces that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        match &mut self.0 {
            Syntax::Text if text.is_empty() => Vec::new(),
            Syntax::Text => vec![Piece::Content(text.to_owned())],
            Syntax::Json(calls) => calls.push(text),
            Syntax::Xml(calls) => calls.push(text),
        }
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(self) -> Vec<Piece> {
        match self.0 {
            Syntax::Text => Vec::new(),
            Syntax::Json(calls) => calls.finish(),
            Syntax::Xml(calls) => calls.finish(),
        }
    }
}

/// Takes the first `end` bytes of held text as content.
fn give(held: &mut String, end: usize, pieces: &mut Vec<Piece>) {
    if end == 0 {
        return;
    }
    let text: String = held.drain(..end).collect();
    match pieces.last_mut() {
        Some(Piece::Content(before)) => before.push_str(&text),
        _ => pieces.push(Piece::Content(text)),
    }
}

/// Number of bytes at the end of `text` that are a prefix of `mark`.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let most = text.len().min(mark.len() - 1);
    (1..=most).rev().find(|count| text.as_bytes().ends_with(&mark.as_bytes()[..*count])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
