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
/// In time linear in the length of the text: it is done for each frame.
pub fn blocks(text: &str) -> Vec<AnswerBlock<'_>> {
    let (mut blocks, mut from) = (Vec::new(), 0);
    // Where each mark is found next; those behind `from` are not sought again.
    let mut ahead = CALL_MARKS.map(|(begin, _)| text.find(begin));
    loop {
        for (at, (begin, _)) in ahead.iter_mut().zip(CALL_MARKS) {
            if at.is_some_and(|at| at < from) {
                *at = text[from..].find(begin).map(|found| from + found);
            }
        }
        let next = ahead.iter().zip(CALL_MARKS).filter_map(|(at, marks)| Some(((*at)?, marks)));
        let Some((at, (begin, end))) = next.min_by_key(|(at, _)| *at) else { break };
        let before = text[from..at].trim();
        if !before.is_empty() {
            blocks.push(AnswerBlock::Text(before));
        }
        let inside = &text[at + begin.len()..];
        let length = inside.find(end);
        blocks.push(AnswerBlock::Call(inside[..length.unwrap_or(inside.len())].trim()));
        from = length.map_or(text.len(), |length| at + begin.len() + length + end.len());
    }
    let rest = &text[from..];
    let rest = if blocks.is_empty() { rest } else { rest.trim() };
    if !rest.is_empty() {
        blocks.push(AnswerBlock::Text(rest));
    }
    blocks
}
