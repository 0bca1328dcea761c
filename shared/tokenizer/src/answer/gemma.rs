//! Calls of Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`.
use super::{
    json::CallList,
    literal::{Dialect, Literals},
    marks::{Begins, begins},
    syntax::{After, CallSyntax, CallText, NAME_BYTES_MAX, Read, Step, steps},
};

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
const CALL: &str = "call:";

/// Finds calls in Gemma 4's form.
#[derive(Debug)]
pub(super) struct GemmaCalls(GemmaPlace);

#[derive(Debug)]
enum GemmaPlace {
    /// Behind the mark.
    Call,
    Name,
    Arguments(Literals),
}

impl GemmaCalls {
    pub(super) fn new() -> Self {
        Self(GemmaPlace::Call)
    }

    /// Makes one decision about the text that was not read yet.
    fn step(&mut self, text: &str, call: &mut CallText) -> Step {
        match &mut self.0 {
            GemmaPlace::Call => match begins(text, CALL) {
                Begins::With(end) => {
                    self.0 = GemmaPlace::Name;
                    Step::On(end)
                }
                Begins::Perhaps => Step::Wait,
                Begins::Not => Step::Broken(0),
            },
            GemmaPlace::Name => match text.find(['{', '<', '\n']) {
                None if text.len() <= NAME_BYTES_MAX => Step::Wait,
                Some(end @ 1..=NAME_BYTES_MAX) if text[end..].starts_with('{') && !text[..end].trim().is_empty() => {
                    call.name = Some(text[..end].trim().to_owned());
                    call.arguments.push('{');
                    self.0 = GemmaPlace::Arguments(Literals::new(Dialect::Gemma));
                    Step::On(end + 1)
                }
                _ => Step::Broken(0),
            },
            GemmaPlace::Arguments(literals) => literals.step(text, &mut call.arguments),
        }
    }
}

impl CallSyntax for GemmaCalls {
    fn marks(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn begin(&mut self, _mark: &str) {
        self.0 = GemmaPlace::Call;
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        steps(text, |text| self.step(text, call))
    }

    fn after(&mut self, text: &str) -> After {
        CallList::default().after(text, Some(CLOSE))
    }
}
