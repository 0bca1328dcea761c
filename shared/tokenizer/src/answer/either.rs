//! Calls in a syntax of their own, or as JSON objects behind the same marks: Mistral Nemo writes a list of objects where later
//! models write names, and LFM2 does if it is asked to.
use super::{
    json::{JsonCalls, JsonMarks},
    syntax::{After, CallSyntax, CallText, Read},
};

/// Finds calls in either form.
#[derive(Debug)]
pub(super) struct EitherCalls<S> {
    own: S,
    objects: JsonCalls,
    form: CallForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallForm {
    /// Nothing but white space and a bracket so far.
    Open,
    Own,
    Objects,
}

impl<S: CallSyntax> EitherCalls<S> {
    /// A syntax, and the closing mark behind objects.
    pub(super) fn new(own: S, close: Option<&'static str>) -> Self {
        let marks = JsonMarks { open: own.marks(), close, has_lists: true, is_closed: close.is_some() };
        Self { own, objects: JsonCalls::new(marks), form: CallForm::Open }
    }
}

impl<S: CallSyntax> CallSyntax for EitherCalls<S> {
    fn marks(&self) -> &'static [&'static str] {
        self.own.marks()
    }

    fn begin(&mut self, mark: &str) {
        // Behind another call, the form is known.
        if !mark.is_empty() {
            self.form = CallForm::Open;
        }
        self.own.begin(mark);
        self.objects.begin(mark);
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        if self.form == CallForm::Open {
            let rest = text.trim_start();
            let inside = rest.strip_prefix('[').unwrap_or(rest).trim_start();
            self.form = match inside.chars().next() {
                None => return Read::More(0),
                Some('{') => CallForm::Objects,
                Some(_) => CallForm::Own,
            };
        }
        if self.form == CallForm::Objects { self.objects.read(text, call) } else { self.own.read(text, call) }
    }

    fn after(&mut self, text: &str) -> After {
        if self.form == CallForm::Objects { self.objects.after(text) } else { self.own.after(text) }
    }
}
