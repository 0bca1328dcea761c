//! Reads an answer: what the model thought, its text, and the tool calls within it.
use common::chat::AnswerForm;
use tokenizer::answer::{AnswerParser, AnswerPart};

/// The marks around a tool call in the formats that mark both ends.
const CALL_MARKS: [(&str, &str); 5] = [
    ("<tool_call>", "</tool_call>"),
    ("<function_calls>", "</function_calls>"),
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<|tool_call>", "<tool_call|>"),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
];

/// The parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerText {
    /// What the model thought first.
    pub thought: String,
    /// The text for the user, with its tool calls.
    pub text: String,
    /// Whether the answer is within a thought.
    pub thinks: bool,
}

/// Reads an answer, or the part of it that has arrived.
pub fn read(answer: &str, form: &AnswerForm) -> AnswerText {
    let mut read = AnswerText::default();
    let mut parser = AnswerParser::new(form.tool_format, form.thinking, None);
    let mut parts = parser.push(answer);
    read.thinks = parser.thinks();
    parts.extend(parser.finish());
    for part in parts {
        match part {
            AnswerPart::Thought(text) => read.thought.push_str(&text),
            AnswerPart::Content(text) => read.text.push_str(&text),
            // Without tools, no calls are sought.
            AnswerPart::Call { .. } | AnswerPart::Arguments { .. } | AnswerPart::Broken { .. } => {}
        }
    }
    read
}

/// A part of the text of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerBlock<'a> {
    /// Text for the user.
    Text(&'a str),
    /// A tool call, without its marks.
    Call(&'a str),
}

/// Divides the text of an answer into plain text and tool calls. A call whose end has not arrived extends to the end.
pub fn blocks(text: &str) -> Vec<AnswerBlock<'_>> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((at, begin, end)) = next_call(rest) {
        let before = rest[..at].trim();
        if !before.is_empty() {
            blocks.push(AnswerBlock::Text(before));
        }
        let inside = &rest[at + begin.len()..];
        let length = inside.find(end);
        blocks.push(AnswerBlock::Call(inside[..length.unwrap_or(inside.len())].trim()));
        rest = length.map_or("", |length| &inside[length + end.len()..]);
    }
    let rest = if blocks.is_empty() { rest } else { rest.trim() };
    if !rest.is_empty() {
        blocks.push(AnswerBlock::Text(rest));
    }
    blocks
}

/// Where the next call begins, and its marks.
fn next_call(text: &str) -> Option<(usize, &'static str, &'static str)> {
    let found = CALL_MARKS.iter().filter_map(|(begin, end)| Some((text.find(begin)?, *begin, *end)));
    found.min_by_key(|(at, ..)| *at)
}
