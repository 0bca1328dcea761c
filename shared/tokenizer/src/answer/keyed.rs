//! Calls as pairs of keys and values (GLM 4.5 to 4.7):
//! `<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>..</tool_call>`, with line ends between the tags.
use std::sync::Arc;

use super::{
    ToolSchemas,
    marks::{Begins, Until, begins, until},
    syntax::{After, CallSyntax, CallText, NAME_BYTES_MAX, Read, Step, steps},
    values::ArgumentWriter,
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

/// Finds calls as pairs.
#[derive(Debug)]
pub(super) struct KeyedCalls {
    writer: ArgumentWriter,
    place: PairPlace,
}

#[derive(Clone, Copy, Debug)]
enum PairPlace {
    /// In the name.
    Name,
    /// Before a key or the end of the call.
    Call,
    Key,
    /// Between a key and its value.
    Between,
    Value,
}

impl KeyedCalls {
    pub(super) fn new(schemas: Arc<ToolSchemas>) -> Self {
        Self { writer: ArgumentWriter::new(schemas, false), place: PairPlace::Name }
    }

    /// Makes one decision about the text that was not read yet.
    fn step(&mut self, text: &str, call: &mut CallText) -> Step {
        let out = &mut call.arguments;
        let (place, used) = match self.place {
            PairPlace::Name => match until(text.trim_start(), &["\n", KEY, CLOSE]) {
                Until::Mark(at, _) => {
                    let end = text.len() - text.trim_start().len() + at;
                    let name = text[..end].trim();
                    if at > NAME_BYTES_MAX {
                        return Step::Broken(0);
                    }
                    if name.is_empty() {
                        return Step::Broken(end);
                    }
                    call.name = Some(name.to_owned());
                    self.writer.begin(name, out);
                    (PairPlace::Call, end)
                }
                Until::Open(certain) if certain > NAME_BYTES_MAX => return Step::Broken(0),
                Until::Open(_) => return Step::Wait,
            },
            PairPlace::Call => match (begins(text, KEY), begins(text, CLOSE)) {
                (Begins::With(end), _) => (PairPlace::Key, end),
                (_, Begins::With(end)) => {
                    self.writer.close(out);
                    return Step::Whole(end);
                }
                (Begins::Not, Begins::Not) => return Step::Broken(0),
                _ => return Step::Wait,
            },
            PairPlace::Key => match until(text, &[KEY_END]) {
                Until::Mark(at, mark) if at <= NAME_BYTES_MAX => {
                    self.writer.key(text[..at].trim(), out);
                    (PairPlace::Between, at + mark.len())
                }
                Until::Open(certain) if certain <= NAME_BYTES_MAX => return Step::Wait,
                _ => return Step::Broken(0),
            },
            PairPlace::Between => match begins(text, VALUE) {
                Begins::With(end) => (PairPlace::Value, end),
                Begins::Perhaps => return Step::Wait,
                Begins::Not => return Step::Broken(0),
            },
            PairPlace::Value => match until(text, &[VALUE_END]) {
                Until::Open(0) => return Step::Wait,
                Until::Open(certain) => {
                    self.writer.push(&text[..certain], out);
                    (PairPlace::Value, certain)
                }
                Until::Mark(at, mark) => {
                    self.writer.push(&text[..at], out);
                    self.writer.end(out);
                    (PairPlace::Call, at + mark.len())
                }
            },
        };
        self.place = place;
        Step::On(used)
    }
}

impl CallSyntax for KeyedCalls {
    fn marks(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn begin(&mut self, _mark: &str) {
        self.place = PairPlace::Name;
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        steps(text, |text| self.step(text, call))
    }

    fn after(&mut self, _text: &str) -> After {
        After::Over(0)
    }
}
