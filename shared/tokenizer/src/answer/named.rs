//! Calls as a name followed by a JSON object: `[TOOL_CALLS]NAME[ARGS]{..}` (Ministral, Magistral, Devstral; with
//! `[CALL_ID]ID` before `[ARGS]` in Mistral Small 3.2), and `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}` (DeepSeek).
use serde_json::{Map, Value};

use super::{
    marks::{Begins, Until, begins, until},
    object::{Meaning, ObjectScan},
    syntax::{After, CallSyntax, CallText, NAME_BYTES_MAX, Read, Step, steps},
};

/// How a template marks a call and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameMarks {
    /// Marks before a call.
    pub open: &'static [&'static str],
    /// Marks behind the name; text between the first and the last is skipped.
    pub separators: &'static [&'static str],
    /// Marks of single calls, if those before a call are of all calls.
    pub each: Option<EachMarks>,
}

/// The marks of a call among others, all of which may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EachMarks {
    /// Before each call.
    pub open: &'static str,
    /// Behind each call.
    pub close: &'static str,
    /// Behind all calls.
    pub close_all: &'static str,
}

/// Optional marks around the arguments of DeepSeek R1.
const FENCE: &str = "```json";
const FENCE_END: &str = "```";

/// Finds calls with a name before the object.
#[derive(Debug)]
pub(super) struct NamedCalls {
    marks: NameMarks,
    place: NamePlace,
    name: String,
    raw: String,
    scan: ObjectScan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamePlace {
    /// Behind the mark.
    Call,
    Name,
    /// Behind the first separator; the name may follow only now (DeepSeek R1).
    Separated,
    Arguments,
}

impl NamedCalls {
    pub(super) fn new(marks: NameMarks) -> Self {
        let (name, raw) = (String::new(), String::new());
        Self { marks, place: NamePlace::Call, name, raw, scan: ObjectScan::default() }
    }

    /// Makes one decision about the text that was not read yet.
    fn step(&mut self, text: &str, call: &mut CallText) -> Step {
        match self.place {
            NamePlace::Call => {
                let each = self.marks.each.map(|each| begins(text, each.open));
                let used = match each.unwrap_or(Begins::Not) {
                    Begins::With(end) => end,
                    Begins::Perhaps => return Step::Wait,
                    Begins::Not => text.len() - text.trim_start().len(),
                };
                match text[used..].chars().next() {
                    None => return Step::Wait,
                    Some('[') => return Step::Broken(used),
                    Some(_) => self.place = NamePlace::Name,
                }
                Step::On(used)
            }
            NamePlace::Name => {
                let found = until(text, self.marks.separators);
                // Some answers lack the separator.
                let object = text.find('{');
                match (found, object) {
                    (Until::Open(certain), None) if certain <= NAME_BYTES_MAX => Step::Wait,
                    (Until::Mark(at, mark), object)
                        if at <= NAME_BYTES_MAX && object.is_none_or(|object| at < object) =>
                    {
                        self.name = text[..at].trim().to_owned();
                        self.place = NamePlace::Separated;
                        Step::On(at + mark.len())
                    }
                    (_, Some(at)) if at <= NAME_BYTES_MAX => {
                        self.name = text[..at].trim().to_owned();
                        self.place = NamePlace::Separated;
                        Step::On(at)
                    }
                    _ => Step::Broken(0),
                }
            }
            NamePlace::Separated => self.separated(text, call),
            NamePlace::Arguments => self.arguments(text, call),
        }
    }

    /// Skips the text between the name and the object.
    fn separated(&mut self, text: &str, call: &mut CallText) -> Step {
        let Some(object) = text.find('{') else {
            return if text.len() > 2 * NAME_BYTES_MAX { Step::Broken(0) } else { Step::Wait };
        };
        if object > 2 * NAME_BYTES_MAX {
            return Step::Broken(0);
        }
        let between = text[..object].trim();
        let between = between.strip_suffix(FENCE).unwrap_or(between).trim();
        let between = self.marks.separators.last().map_or(between, |last| between.trim_end_matches(last)).trim();
        // DeepSeek R1 writes `function` before the separator and the name behind it; Mistral an id.
        if !between.is_empty() && self.marks.separators.len() == 1 {
            self.name = between.to_owned();
        }
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Step::Broken(object);
        }
        call.name = Some(self.name.clone());
        self.place = NamePlace::Arguments;
        Step::On(object)
    }

    fn arguments(&mut self, text: &str, call: &mut CallText) -> Step {
        if text.is_empty() {
            return Step::Wait;
        }
        for (at, byte) in text.bytes().enumerate() {
            match self.scan.take(byte) {
                Meaning::Broken => return Step::Broken(at),
                Meaning::End => {
                    self.pass(&text[..=at], call);
                    let is_object = serde_json::from_str::<Map<String, Value>>(&self.raw).is_ok();
                    return if is_object { Step::Whole(at + 1) } else { Step::Broken(at + 1) };
                }
                _ => {}
            }
        }
        self.pass(text, call);
        Step::On(text.len())
    }

    fn pass(&mut self, text: &str, call: &mut CallText) {
        self.raw.push_str(text);
        call.arguments.push_str(text);
    }
}

impl CallSyntax for NamedCalls {
    fn marks(&self) -> &'static [&'static str] {
        self.marks.open
    }

    fn begin(&mut self, _mark: &str) {
        *self = Self::new(self.marks);
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        steps(text, |text| self.step(text, call))
    }

    fn after(&mut self, text: &str) -> After {
        let Some(EachMarks { open, close, close_all }) = self.marks.each else { return After::Over(0) };
        let mut used = 0;
        for mark in [FENCE_END, close] {
            match begins(&text[used..], mark) {
                Begins::With(end) => used += end,
                Begins::Perhaps => return After::More,
                Begins::Not => {}
            }
        }
        match (begins(&text[used..], open), begins(&text[used..], close_all)) {
            (Begins::With(_), _) => After::Next(used),
            (_, Begins::With(end)) => After::Over(used + end),
            (Begins::Not, Begins::Not) => After::Over(used),
            _ => After::More,
        }
    }
}
