//! Separates the parts of a streamed answer: thoughts, text for the user, and tool calls. Text that looks like a call but is
//! not one is content: except for marks and the white space around thoughts and calls, no text is lost. Pure and bounded;
//! the result does not depend on how the answer is split into pieces.
mod calls;
mod either;
mod format;
mod gemma;
mod grammar;
mod harmony;
mod json;
mod keyed;
mod literal;
mod marks;
mod named;
mod object;
mod pythonic;
mod schemas;
mod syntax;
mod tags;
mod thinking;
mod values;
mod written;

use std::sync::Arc;

use calls::CallParser;
use common::chat::{Thinking, ToolFormat};
use format::ThinkingMarks;
pub use format::{CHAT_FORMATS, ChatFormat};
pub use grammar::{GRAMMAR_TOOLS_MAX, GrammarTool, GrammarUse, call_grammar, call_or_value_grammar};
use harmony::HarmonyParser;
pub use schemas::ToolSchemas;
use thinking::{Divided, ThinkingParser};

/// Longest text of a call in bytes; a longer one is content, and so is all text after it.
pub const CALL_BYTES_MAX: usize = 256 << 10;
/// Most calls of an answer; all text after them is content.
pub const CALLS_MAX: usize = 128;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// What the model thinks before it answers.
    Thought(String),
    /// Text for the user.
    Content(String),
    /// A call begins.
    Call {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the arguments of a call: together they are a JSON object.
    Arguments {
        /// Index of the call.
        index: usize,
        /// Part of the JSON text.
        text: String,
    },
    /// The call is malformed or was cut off, so it is none: its text follows as content.
    Broken {
        /// Index of the call, which no other call has.
        index: usize,
    },
}

/// Incremental parser for an answer.
#[derive(Debug)]
pub struct AnswerParser(Stages);

#[derive(Debug)]
enum Stages {
    /// Thoughts, then text with calls.
    Sequence(ThinkingParser, CallParser),
    /// Messages to several channels.
    Channels(HarmonyParser),
}

impl AnswerParser {
    /// A parser at the beginning of an answer in this format. Without `schemas`, calls are not sought.
    pub fn new(format: ToolFormat, thinking: Thinking, schemas: Option<Arc<ToolSchemas>>) -> Self {
        Self::either(format, thinking, schemas, false)
    }

    /// A parser for an answer that calls tools or is a JSON value, behind its thought. A value is content as it is: the
    /// mark of a call in one of its strings is none, and in Llama 3 an object calls only a tool of the request.
    pub fn of_calls_or_value(format: ToolFormat, thinking: Thinking, schemas: Option<Arc<ToolSchemas>>) -> Self {
        Self::either(format, thinking, schemas, true)
    }

    fn either(format: ToolFormat, thinking: Thinking, schemas: Option<Arc<ToolSchemas>>, may_be_value: bool) -> Self {
        let row = ChatFormat::of(format);
        if format == ToolFormat::Harmony {
            let (has_thoughts, has_calls) = (thinking != Thinking::None, schemas.is_some());
            return Self(Stages::Channels(HarmonyParser::new(has_thoughts, has_calls, may_be_value)));
        }
        // Without tools, the mark of a call in a thought is text.
        let marks = ThinkingMarks {
            call: row.thinking.call.filter(|_| schemas.is_some()),
            returns: row.thinking.returns && !may_be_value,
            ..row.thinking
        };
        let syntax = schemas.and_then(|schemas| row.syntax(schemas, may_be_value));
        Self(Stages::Sequence(ThinkingParser::new(thinking, marks), CallParser::new(syntax, may_be_value)))
    }

    /// Adds text of the answer; returns the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.0 {
            Stages::Channels(parser) => parser.push(text),
            Stages::Sequence(thinking, calls) => {
                let mut parts = Vec::new();
                thinking.push(text, |divided| {
                    take(divided, calls, &mut parts);
                    calls.is_inside()
                });
                parts
            }
        }
    }

    /// Whether the answer is within a thought.
    pub fn thinks(&self) -> bool {
        match &self.0 {
            Stages::Channels(parser) => parser.thinks(),
            Stages::Sequence(thinking, _) => thinking.thinks(),
        }
    }

    /// Whether a thought may still continue or begin.
    pub fn may_think(&self) -> bool {
        match &self.0 {
            Stages::Channels(parser) => parser.may_think(),
            Stages::Sequence(thinking, _) => thinking.may_think(),
        }
    }

    /// Whether text so far may still become content, for example because a call is none after all.
    pub fn holds_back(&self) -> bool {
        match &self.0 {
            Stages::Channels(parser) => parser.holds_back(),
            Stages::Sequence(thinking, calls) => thinking.holds_back() || calls.holds_back(),
        }
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(self) -> Vec<AnswerPart> {
        match self.0 {
            Stages::Channels(parser) => parser.finish(),
            Stages::Sequence(thinking, mut calls) => {
                let mut parts = Vec::new();
                if let Some(divided) = thinking.finish() {
                    take(divided, &mut calls, &mut parts);
                }
                parts.extend(calls.finish());
                parts
            }
        }
    }
}

fn take(divided: Divided, calls: &mut CallParser, parts: &mut Vec<AnswerPart>) {
    match divided {
        Divided::Thought(text) => parts.push(AnswerPart::Thought(text)),
        Divided::Answer(text) => parts.extend(calls.push(&text)),
    }
}

/// Adds content to the parts of an answer.
fn give(parts: &mut Vec<AnswerPart>, text: String) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerPart::Content(before)) => before.push_str(&text),
        _ => parts.push(AnswerPart::Content(text)),
    }
}

#[cfg(test)]
mod tests;
