//! Finds the calls in the text behind an answer's thoughts.
use super::{
    AnswerPart, CALL_BYTES_MAX, CALLS_MAX, give,
    marks::Opening,
    syntax::{After, CallSyntax, CallText, Read},
};

/// A letter that is in no mark.
const NO_MARK: char = '\0';

/// Incremental parser for calls.
#[derive(Debug)]
pub(super) struct CallParser {
    /// `None`: there are no calls.
    syntax: Option<Box<dyn CallSyntax>>,
    place: Place,
    /// Undecided text: white space, followed by a possible call.
    text: String,
    parts: Vec<AnswerPart>,
    /// Calls that have begun.
    count: usize,
    /// Whether one of them is whole.
    has_call: bool,
    /// Whether the answer may be a value instead: then no call follows its text.
    may_be_value: bool,
}

/// Where the parser is in the answer.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// A call may begin.
    Open,
    /// Within a call.
    Inside {
        /// Bytes of the undecided text that were read.
        read: usize,
        /// Its index, once its tool is certain.
        index: Option<usize>,
    },
    /// After a call.
    Behind,
    /// Calls are not sought any more.
    Plain,
}

impl CallParser {
    /// At the beginning of an answer.
    pub(super) fn new(syntax: Option<Box<dyn CallSyntax>>, may_be_value: bool) -> Self {
        let place = if syntax.is_some() { Place::Open } else { Place::Plain };
        Self { syntax, place, text: String::new(), parts: Vec::new(), count: 0, has_call: false, may_be_value }
    }

    /// Whether the text so far ends within a call.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.place, Place::Inside { .. })
    }

    /// Whether text so far may still become content.
    pub(super) fn holds_back(&self) -> bool {
        !self.text.is_empty()
    }

    /// Adds text; returns the parts that are certain now.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.text.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.parts)
    }

    /// Ends the answer; returns the text that was held back.
    pub(super) fn finish(mut self) -> Vec<AnswerPart> {
        match (self.place, &mut self.syntax) {
            (Place::Inside { index: Some(index), .. }, _) => self.parts.push(AnswerPart::Broken { index }),
            (Place::Behind, Some(syntax)) => {
                // Closing marks may be missing: decided as if a letter followed that is in none of them.
                if let After::Over(used) = syntax.after(&format!("{}{NO_MARK}", self.text)) {
                    self.text.drain(..used);
                }
            }
            _ => {}
        }
        // Llama 3 separates calls by semicolons.
        let is_blank = self.text.trim_matches(|letter: char| letter.is_whitespace() || letter == ';').is_empty();
        if !(self.has_call && is_blank) {
            self.give(self.text.len());
        }
        self.parts
    }

    /// Decides that the first `end` bytes are content.
    fn give(&mut self, end: usize) {
        let text: String = self.text.drain(..end).collect();
        if self.may_be_value && !text.trim().is_empty() {
            self.place = Place::Plain;
        }
        give(&mut self.parts, text);
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self) -> bool {
        match self.place {
            Place::Open => self.open(),
            Place::Inside { read, index } => self.inside(read, index),
            Place::Behind => self.behind(),
            Place::Plain => {
                self.give(self.text.len());
                false
            }
        }
    }

    fn open(&mut self) -> bool {
        let found = self.syntax.as_mut().filter(|_| self.count < CALLS_MAX).map(|syntax| syntax.open(&self.text));
        match found {
            None | Some(Opening::Never) => {
                self.place = Place::Plain;
                true
            }
            Some(Opening::Later(certain)) => {
                // White space before a call is dropped.
                self.give(self.text[..certain].trim_end().len());
                matches!(self.place, Place::Plain)
            }
            Some(Opening::Mark(begin, end)) => {
                let told = self.text[..begin].trim_end().len();
                self.give(told);
                if matches!(self.place, Place::Plain) {
                    return true;
                }
                let mark = &self.text[begin - told..end - told];
                if let Some(syntax) = &mut self.syntax {
                    syntax.begin(mark);
                }
                self.place = Place::Inside { read: end - told, index: None };
                true
            }
        }
    }

    fn inside(&mut self, mut read: usize, mut index: Option<usize>) -> bool {
        let Some(syntax) = &mut self.syntax else { return false };
        let mut call = CallText::default();
        let found = syntax.read(&self.text[read..], &mut call);
        if let Some(name) = call.name {
            index = Some(self.count);
            self.parts.push(AnswerPart::Call { index: self.count, name });
            self.count += 1;
        }
        if let Some(index) = index.filter(|_| !call.arguments.is_empty()) {
            self.parts.push(AnswerPart::Arguments { index, text: call.arguments });
        }
        let (Read::More(used) | Read::Whole(used) | Read::Broken(used)) = found;
        read += used;
        self.place = Place::Inside { read, index };
        let length = if matches!(found, Read::More(_)) { self.text.len() } else { read };
        match found {
            _ if length > CALL_BYTES_MAX => self.refuse(0, index, Place::Plain),
            Read::More(_) => return false,
            Read::Whole(_) => {
                self.has_call = true;
                self.text.drain(..read);
                self.place = Place::Behind;
            }
            Read::Broken(_) => self.refuse(read, index, Place::Open),
        }
        true
    }

    /// Decides that the first `end` bytes are content, because they are not a call.
    fn refuse(&mut self, end: usize, index: Option<usize>, place: Place) {
        self.parts.extend(index.map(|index| AnswerPart::Broken { index }));
        self.place = place;
        self.give(end);
    }

    fn behind(&mut self) -> bool {
        let Some(syntax) = &mut self.syntax else { return false };
        match syntax.after(&self.text) {
            After::More => return false,
            After::Next(skipped) if self.count < CALLS_MAX => {
                syntax.begin("");
                self.place = Place::Inside { read: skipped, index: None };
            }
            After::Next(_) | After::Plain => self.place = Place::Plain,
            After::Over(skipped) => {
                self.text.drain(..skipped);
                self.place = Place::Open;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use common::chat::{Thinking, ToolFormat};
    use serde_json::json;

    use crate::answer::{AnswerParser, AnswerPart, ToolSchemas};

    /// The calls and the content of an answer that may be a value, cut at this byte.
    fn read(format: ToolFormat, answer: &str, cut: usize) -> (Vec<String>, String) {
        let tools = [json!({"function": {"name": "now"}})];
        let schemas = Some(Arc::new(ToolSchemas::read(&tools)));
        let mut parser = AnswerParser::of_calls_or_value(format, Thinking::Marked, schemas);
        let mut parts = parser.push(&answer[..cut]);
        parts.extend(parser.push(&answer[cut..]));
        parts.extend(parser.finish());
        let (mut names, mut content) = (Vec::new(), String::new());
        for part in parts {
            match part {
                AnswerPart::Call { name, .. } => names.push(name),
                AnswerPart::Content(text) => content.push_str(&text),
                AnswerPart::Broken { .. } => panic!("a value is no broken call: {answer}"),
                AnswerPart::Thought(_) | AnswerPart::Arguments { .. } => {}
            }
        }
        (names, content)
    }

    #[test]
    fn value_that_quotes_or_resembles_a_call_is_content() {
        use ToolFormat::{Gemma, Harmony, Hermes, Llama3, Mistral};
        let hermes = r#"<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"#;
        let harmony = "<|channel|>commentary to=functions.now<|message|>{}<|end|>";
        for (format, before, value) in [
            (Hermes, "", format!(r#"{{"a": "{hermes}", "b": 1}}"#)),
            (Hermes, "<think>Hm.</think>\n", format!(r#"{{"a": "{hermes}"}}"#)),
            (Mistral, "", r#"{"a": "[TOOL_CALLS]now[ARGS]{}"}"#.to_owned()),
            (Gemma, "<|channel>thought\nHm.<channel|>", r#"{"a": "<|channel>thought<channel|> b"}"#.to_owned()),
            (Llama3, "", r#"{"name": "Ada", "parameters": {"x": 1}}"#.to_owned()),
            (Llama3, "", r#"{"parameters": {}, "name": "Ada"}"#.to_owned()),
            (
                Harmony,
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
                format!(r#"<|channel|>final<|message|>{{"a": "{harmony}"}}"#),
            ),
        ] {
            let answer = format!("{before}{value}");
            let expected = value.trim_start_matches("<|channel|>final<|message|>");
            for cut in 0..=answer.len() {
                assert_eq!(read(format, &answer, cut), (vec![], expected.to_owned()), "{answer} cut at {cut}");
            }
        }
    }

    #[test]
    fn calls_in_place_of_a_value_are_found() {
        use ToolFormat::{Harmony, Hermes, Llama3};
        let hermes = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
        let llama = "{\"name\": \"now\", \"parameters\": {}}";
        let harmony = "<|channel|>commentary to=functions.now<|message|>{}<|call|>";
        for (format, answer, count) in [
            (Hermes, format!("<think>Hm.</think>\n\n{hermes}\n{hermes}"), 2),
            (Hermes, format!("<think>Hm. {hermes}"), 1),
            (Llama3, format!("{llama}; {llama}"), 2),
            (Harmony, format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{harmony}"), 1),
        ] {
            for cut in 0..=answer.len() {
                assert_eq!(read(format, &answer, cut), (vec!["now".to_owned(); count], String::new()), "{answer}");
            }
        }
    }
}
