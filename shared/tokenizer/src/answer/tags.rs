//! Calls as tags (Qwen3-Coder, Qwen3.5, Nemotron 3): `<tool_call><function=NAME><parameter=P>VALUE</parameter>..</function>
//! </tool_call>`. Models sometimes leave out `<tool_call>`, or the ends of parameters.
use std::sync::Arc;

use super::{
    ToolSchemas,
    json::CallList,
    marks::{Begins, Until, begins, until},
    syntax::{After, CallSyntax, CallText, NAME_BYTES_MAX, Read, Step, steps},
    values::ArgumentWriter,
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Finds calls as tags.
#[derive(Debug)]
pub(super) struct TagCalls {
    writer: ArgumentWriter,
    place: TagPlace,
    /// Whether `<tool_call>` came first; otherwise only a tool of the request is called.
    is_marked: bool,
}

#[derive(Clone, Copy, Debug)]
enum TagPlace {
    /// Before the function.
    Call,
    /// In its name.
    Name,
    /// Before a parameter or the end of the function.
    Function,
    /// In the name of a parameter.
    Key,
    /// In its value.
    Value,
}

impl TagCalls {
    pub(super) fn new(schemas: Arc<ToolSchemas>) -> Self {
        Self { writer: ArgumentWriter::new(schemas, true), place: TagPlace::Call, is_marked: false }
    }

    /// Makes one decision about the text that was not read yet.
    fn step(&mut self, text: &str, call: &mut CallText) -> Step {
        let out = &mut call.arguments;
        let (place, used) = match self.place {
            TagPlace::Call => match begins(text, FUNCTION) {
                Begins::With(end) => (TagPlace::Name, end),
                Begins::Perhaps => return Step::Wait,
                Begins::Not => return Step::Broken(0),
            },
            TagPlace::Name | TagPlace::Key => {
                let Some(end) = text.find('>').filter(|end| *end <= NAME_BYTES_MAX) else {
                    return if text.len() > NAME_BYTES_MAX { Step::Broken(0) } else { Step::Wait };
                };
                let name = text[..end].trim();
                if matches!(self.place, TagPlace::Key) {
                    self.writer.key(name, out);
                    (TagPlace::Value, end + 1)
                } else if name.is_empty() || !self.is_marked && !self.writer.has(name) {
                    return Step::Broken(end + 1);
                } else {
                    call.name = Some(name.to_owned());
                    self.writer.begin(name, out);
                    (TagPlace::Function, end + 1)
                }
            }
            TagPlace::Function => match (begins(text, PARAMETER), begins(text, FUNCTION_END), begins(text, CLOSE)) {
                (Begins::With(end), _, _) => (TagPlace::Key, end),
                (_, Begins::With(end), _) => return self.close(end, out),
                (_, _, Begins::With(end)) => return self.close(end - CLOSE.len(), out),
                (Begins::Not, Begins::Not, Begins::Not) => return Step::Broken(0),
                _ => return Step::Wait,
            },
            TagPlace::Value => match until(text, &[PARAMETER_END, PARAMETER, FUNCTION_END]) {
                Until::Open(0) => return Step::Wait,
                Until::Open(certain) => {
                    self.writer.push(&text[..certain], out);
                    (TagPlace::Value, certain)
                }
                Until::Mark(at, mark) => {
                    self.writer.push(&text[..at], out);
                    self.writer.end(out);
                    (TagPlace::Function, if mark == PARAMETER_END { at + mark.len() } else { at })
                }
            },
        };
        self.place = place;
        Step::On(used)
    }

    fn close(&mut self, end: usize, out: &mut String) -> Step {
        self.writer.close(out);
        Step::Whole(end)
    }
}

impl CallSyntax for TagCalls {
    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, FUNCTION]
    }

    fn begin(&mut self, mark: &str) {
        self.is_marked = mark == OPEN;
        self.place = if self.is_marked { TagPlace::Call } else { TagPlace::Name };
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        steps(text, |text| self.step(text, call))
    }

    fn after(&mut self, text: &str) -> After {
        CallList::default().after(text, Some(CLOSE))
    }
}
