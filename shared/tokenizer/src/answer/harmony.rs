//! The harmony format of gpt-oss: an answer is a sequence of messages, each with a header that names its channel and
//! recipient: `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..`. Thoughts are in the
//! channel `analysis`, calls are messages to `functions.NAME`, and everything else is content.
use serde_json::{Map, Value};

use super::{
    AnswerPart, CALL_BYTES_MAX, CALLS_MAX, give,
    marks::{Until, until},
    object::{Meaning, ObjectScan},
};

const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
/// Marks that begin a header.
const BEGINS: [&str; 3] = [START, CHANNEL, CONSTRAIN];
/// Marks that end a message.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
/// What a header begins with when the prompt ends behind the role.
const RECIPIENT: &str = " to=";
/// The recipient of a call.
const FUNCTIONS: &str = "to=functions.";
/// Longest header in bytes.
const HEADER_BYTES_MAX: usize = 512;

/// Incremental parser for messages.
#[derive(Debug)]
pub(super) struct HarmonyParser {
    has_thoughts: bool,
    has_calls: bool,
    /// Whether the answer may be a value instead of calls: all text behind its beginning is the value.
    may_be_value: bool,
    place: HarmonyPlace,
    /// Undecided text.
    text: String,
    parts: Vec<AnswerPart>,
    /// Calls that have begun.
    count: usize,
}

#[derive(Debug)]
enum HarmonyPlace {
    /// Before a header, or text without one.
    Header {
        /// Whether a message came before.
        is_later: bool,
    },
    Thought,
    Content,
    Call {
        index: usize,
        /// The header and the arguments, in case that they are no call.
        raw: String,
        /// Where the arguments begin in it.
        begin: usize,
        scan: ObjectScan,
        is_whole: bool,
    },
}

impl HarmonyParser {
    /// At the beginning of an answer whose prompt ends with the role.
    pub(super) fn new(has_thoughts: bool, has_calls: bool, may_be_value: bool) -> Self {
        let place = HarmonyPlace::Header { is_later: false };
        Self { has_thoughts, has_calls, may_be_value, place, text: String::new(), parts: Vec::new(), count: 0 }
    }

    /// Adds text; returns the parts that are certain now.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.text.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.parts)
    }

    /// Whether the text is within a thought.
    pub(super) fn thinks(&self) -> bool {
        matches!(self.place, HarmonyPlace::Thought)
    }

    /// Whether a thought may still continue or begin.
    pub(super) fn may_think(&self) -> bool {
        matches!(self.place, HarmonyPlace::Thought | HarmonyPlace::Header { .. })
    }

    /// Whether text so far may still become content.
    pub(super) fn holds_back(&self) -> bool {
        match self.place {
            HarmonyPlace::Thought => false,
            HarmonyPlace::Call { .. } => true,
            HarmonyPlace::Header { .. } => {
                let rest = self.text.trim_start();
                !self.text.is_empty() && !BEGINS.iter().any(|mark| rest.starts_with(mark))
            }
            HarmonyPlace::Content => !self.text.is_empty(),
        }
    }

    /// Ends the answer; returns the text that was held back.
    pub(super) fn finish(mut self) -> Vec<AnswerPart> {
        let text = std::mem::take(&mut self.text);
        match self.place {
            // The answer was cut in the header.
            HarmonyPlace::Header { is_later } if is_header(&text, is_later) => {}
            HarmonyPlace::Call { .. } => {
                self.add(&text);
                self.end_call();
            }
            _ => self.add(&text),
        }
        self.parts
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self) -> bool {
        if let HarmonyPlace::Header { .. } = self.place {
            return self.header();
        }
        if self.may_be_value && matches!(self.place, HarmonyPlace::Content) {
            let text = std::mem::take(&mut self.text);
            self.add(&text);
            return false;
        }
        match until(&self.text, &ENDS) {
            Until::Open(0) => false,
            Until::Open(certain) => {
                let text: String = self.text.drain(..certain).collect();
                self.add(&text);
                true
            }
            Until::Mark(at, mark) => {
                let text: String = self.text.drain(..at).collect();
                self.add(&text);
                self.end_call();
                if mark != START && mark != CHANNEL {
                    self.text.drain(..mark.len());
                }
                self.place = HarmonyPlace::Header { is_later: true };
                true
            }
        }
    }

    /// Reads a header, up to the mark of its message.
    fn header(&mut self) -> bool {
        let rest = self.text.trim_start();
        let begins = [START, CHANNEL, RECIPIENT.trim_start(), CONSTRAIN];
        if rest.is_empty() || begins.iter().any(|mark| rest.len() < mark.len() && mark.starts_with(rest)) {
            return false;
        }
        if !begins.iter().any(|mark| rest.starts_with(mark)) {
            // Text without a header, for example of a constrained answer.
            self.place = HarmonyPlace::Content;
            return true;
        }
        let Some(at) = self.text.find(MESSAGE).filter(|at| *at <= HEADER_BYTES_MAX) else {
            if self.text.len() > HEADER_BYTES_MAX + MESSAGE.len() {
                self.place = HarmonyPlace::Content;
                // Its first mark would be taken for the next header.
                let mark = self.text.len().min(HEADER_BYTES_MAX);
                let text: String = self.text.drain(..self.text.floor_char_boundary(mark)).collect();
                give(&mut self.parts, text);
                return true;
            }
            return false;
        };
        let header: String = self.text.drain(..at + MESSAGE.len()).collect();
        self.place = self.message(header);
        true
    }

    /// Where the message behind a header belongs.
    fn message(&mut self, header: String) -> HarmonyPlace {
        let words = header.replace(CONSTRAIN, " ").replace(CHANNEL, " ").replace(MESSAGE, " ").replace(START, " ");
        let mut words = words.split_whitespace();
        let name = words.clone().find_map(|word| word.strip_prefix(FUNCTIONS)).filter(|name| !name.is_empty());
        if let Some(name) = name.filter(|_| self.has_calls && self.count < CALLS_MAX) {
            let index = self.count;
            self.count += 1;
            self.parts.push(AnswerPart::Call { index, name: name.to_owned() });
            let begin = header.len();
            return HarmonyPlace::Call { index, raw: header, begin, scan: ObjectScan::default(), is_whole: false };
        }
        match words.any(|word| word == "analysis") {
            true if self.has_thoughts => HarmonyPlace::Thought,
            _ => HarmonyPlace::Content,
        }
    }

    /// Adds text of the current message.
    fn add(&mut self, text: &str) {
        match &mut self.place {
            HarmonyPlace::Header { .. } | HarmonyPlace::Content => give(&mut self.parts, text.to_owned()),
            HarmonyPlace::Thought if text.is_empty() => {}
            HarmonyPlace::Thought => self.parts.push(AnswerPart::Thought(text.to_owned())),
            HarmonyPlace::Call { index, raw, scan, is_whole, .. } => {
                raw.push_str(text);
                let (mut begin, mut end) = (None, 0);
                for (at, byte) in text.bytes().enumerate() {
                    if *is_whole {
                        break;
                    }
                    *is_whole = scan.take(byte) == Meaning::End;
                    if scan.depth() > 0 || *is_whole {
                        begin.get_or_insert(at);
                        end = at + 1;
                    }
                }
                if let Some(passed) = begin.and_then(|begin| text.get(begin..end)) {
                    self.parts.push(AnswerPart::Arguments { index: *index, text: passed.to_owned() });
                }
            }
        }
    }

    /// Ends the message if it is a call.
    fn end_call(&mut self) {
        let place = std::mem::replace(&mut self.place, HarmonyPlace::Content);
        let HarmonyPlace::Call { index, raw, begin, .. } = place else { return };
        let is_call = raw.len() <= CALL_BYTES_MAX && serde_json::from_str::<Map<String, Value>>(&raw[begin..]).is_ok();
        if !is_call {
            self.parts.push(AnswerPart::Broken { index });
            give(&mut self.parts, raw);
        }
    }
}

/// Whether held text is the beginning of a header; white space is if a message came before.
fn is_header(text: &str, is_later: bool) -> bool {
    let rest = text.trim_start();
    match rest {
        "" => is_later,
        _ if rest.starts_with(FUNCTIONS) => true,
        _ => BEGINS.iter().any(|mark| rest.starts_with(mark) || mark.starts_with(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_that_is_cut_in_a_header_shows_no_marks() {
        let thought = "<|channel|>analysis<|message|>Hm.<|end|>";
        for (before, header) in [
            ("", "<|channel|>analysis<|message|>"),
            ("", " to=functions.f<|channel|>commentary <|constrain|>json<|message|>"),
            (thought, "<|start|>assistant<|channel|>final<|message|>"),
            (thought, "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"),
        ] {
            for cut in 0..header.len() {
                let mut parser = HarmonyParser::new(true, true, false);
                let mut parts = parser.push(before);
                parts.extend(parser.push(&header[..cut]));
                parts.extend(parser.finish());
                let mut shown = parts.iter().filter(|part| !matches!(part, AnswerPart::Thought(_)));
                assert!(
                    shown.all(|part| matches!(part, AnswerPart::Content(text) if !text.contains("<|"))),
                    "{:?}: {parts:?}",
                    &header[..cut]
                );
            }
        }
        for text in [" ", "to", "<b>"] {
            let mut parser = HarmonyParser::new(true, true, false);
            let mut parts = parser.push(text);
            parts.extend(parser.finish());
            assert_eq!(parts, [AnswerPart::Content(text.into())]);
        }
    }
}
