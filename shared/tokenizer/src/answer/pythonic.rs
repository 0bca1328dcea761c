//! Calls as function calls of Python: `<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>` (LFM2), or one on each line between
//! `<function_calls>` and `</function_calls>` (OLMo 3).
use super::{
    json::CallList,
    literal::{Dialect, Literals},
    marks::{Begins, begins},
    syntax::{After, CallSyntax, CallText, NAME_BYTES_MAX, Read, Step, steps},
};

/// The marks around a list of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListMarks {
    /// Before it.
    pub open: &'static [&'static str],
    /// Behind it.
    pub close: &'static str,
    /// Whether brackets are around it; otherwise each call has a line.
    pub is_bracketed: bool,
}

/// Finds calls as function calls.
#[derive(Debug)]
pub(super) struct PythonicCalls {
    marks: ListMarks,
    list: CallList,
    place: PythonPlace,
}

#[derive(Debug)]
enum PythonPlace {
    /// Behind the mark.
    List,
    Name,
    Arguments(Literals),
}

impl PythonicCalls {
    pub(super) fn new(marks: ListMarks) -> Self {
        Self { marks, list: CallList::default(), place: PythonPlace::List }
    }

    /// Makes one decision about the text that was not read yet.
    fn step(&mut self, text: &str, call: &mut CallText) -> Step {
        match &mut self.place {
            PythonPlace::List => match self.list.open(text) {
                Some(used) => {
                    self.place = PythonPlace::Name;
                    Step::On(used)
                }
                None => Step::Wait,
            },
            PythonPlace::Name => {
                let rest = text.trim_start();
                let end = rest.find(|letter: char| !letter.is_alphanumeric() && !"_.-".contains(letter));
                let blank = text.len() - rest.len();
                match end {
                    None if rest.len() <= NAME_BYTES_MAX => Step::Wait,
                    Some(end @ 1..=NAME_BYTES_MAX) if rest[end..].starts_with('(') => {
                        call.name = Some(rest[..end].to_owned());
                        call.arguments.push('{');
                        self.place = PythonPlace::Arguments(Literals::new(Dialect::Python));
                        Step::On(blank + end + 1)
                    }
                    _ => Step::Broken(0),
                }
            }
            PythonPlace::Arguments(literals) => literals.step(text, &mut call.arguments),
        }
    }
}

impl CallSyntax for PythonicCalls {
    fn marks(&self) -> &'static [&'static str] {
        self.marks.open
    }

    fn begin(&mut self, mark: &str) {
        if mark.is_empty() {
            self.place = PythonPlace::Name;
        } else {
            *self = Self::new(self.marks);
        }
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        steps(text, |text| self.step(text, call))
    }

    fn after(&mut self, text: &str) -> After {
        if !self.list.is_open() {
            // Calls on lines of their own.
            let rest = text.trim_start();
            match begins(text, self.marks.close) {
                Begins::Not if rest.starts_with(|letter: char| letter.is_alphabetic() || letter == '_') => {
                    return After::Next(text.len() - rest.len());
                }
                _ => {}
            }
        }
        self.list.after(text, Some(self.marks.close))
    }
}
