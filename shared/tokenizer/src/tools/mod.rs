//! Finds tool calls in a streamed answer. Text that looks like a call but is not one is returned as content: except for
//! white space around calls, and their markers, no text is lost. Pure and bounded; the result does not depend on how
//! the answer is split into pieces.
mod held;
mod json;
mod schemas;
mod xml;

use std::sync::Arc;

use common::chat::ToolFormat;
use held::Held;
use json::JsonCalls;
pub use schemas::ToolSchemas;
use xml::XmlCalls;

/// Longest text of a call in bytes; a longer one is content, and so is all text after it.
pub const CALL_BYTES_MAX: usize = 256 << 10;
/// Most calls of an answer; all text after them is content.
pub const CALLS_MAX: usize = 128;

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
    syntax: Syntax,
    held: Held,
}

#[derive(Debug)]
enum Syntax {
    /// No calls.
    Text,
    Json(JsonCalls),
    Xml(XmlCalls),
}

impl ToolParser {
    /// A parser at the beginning of an answer.
    pub fn new(format: ToolFormat, schemas: Arc<ToolSchemas>) -> Self {
        let syntax = match format {
            ToolFormat::None => Syntax::Text,
            ToolFormat::Llama3 => Syntax::Json(JsonCalls::new(false)),
            ToolFormat::Hermes => Syntax::Json(JsonCalls::new(true)),
            ToolFormat::Xml => Syntax::Xml(XmlCalls::new(schemas)),
        };
        Self { syntax, held: Held::default() }
    }

    /// Adds text of the answer; returns the pieces that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.text.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.held.pieces)
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(self) -> Vec<Piece> {
        let Self { syntax, mut held } = self;
        // Llama 3 separates calls by semicolons.
        let separator = if matches!(syntax, Syntax::Json(_)) { ';' } else { ' ' };
        let is_blank = held.text.trim_matches(|letter: char| letter.is_whitespace() || letter == separator).is_empty();
        if held.calls == 0 || !is_blank {
            held.give_all();
        }
        held.pieces
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self) -> bool {
        match &mut self.syntax {
            Syntax::Text => {
                self.held.give_all();
                false
            }
            Syntax::Json(calls) => calls.step(&mut self.held),
            Syntax::Xml(calls) => calls.step(&mut self.held),
        }
    }
}

#[cfg(test)]
mod tests;
