//! What all ways to write calls have in common: a syntax reads one call at a time and passes its arguments on as JSON while
//! they arrive.
use std::fmt;

use super::marks::{Opening, opening};

/// Longest name of a tool or an argument in bytes.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// The part of a call that has become certain.
#[derive(Debug, Default)]
pub(super) struct CallText {
    /// The tool, as soon as it is certain that it is called.
    pub(super) name: Option<String>,
    /// More of the arguments as JSON; none before the name.
    pub(super) arguments: String,
}

/// How far a call was read: each variant with the number of bytes that were read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The call continues.
    More(usize),
    /// The call ends here.
    Whole(usize),
    /// This is no call.
    Broken(usize),
}

/// A decision about the text of a call that was not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It needs more text.
    Wait,
    /// So many bytes are read.
    On(usize),
    /// The call ends behind so many bytes.
    Whole(usize),
    /// This is no call.
    Broken(usize),
}

impl Step {
    /// With `more` bytes that were read before.
    pub(super) fn behind(self, more: usize) -> Self {
        match self {
            Self::Wait => Self::Wait,
            Self::On(used) => Self::On(more + used),
            Self::Whole(used) => Self::Whole(more + used),
            Self::Broken(used) => Self::Broken(more + used),
        }
    }
}

/// Makes decisions as long as there is text for them.
pub(super) fn steps(text: &str, mut decide: impl FnMut(&str) -> Step) -> Read {
    let mut read = 0;
    loop {
        match decide(&text[read..]) {
            Step::Wait => return Read::More(read),
            Step::On(used) => read += used,
            Step::Whole(used) => return Read::Whole(read + used),
            Step::Broken(used) => return Read::Broken(read + used),
        }
    }
}

impl Read {
    /// With `more` bytes that were read before.
    pub(super) fn behind(self, more: usize) -> Self {
        match self {
            Self::More(used) => Self::More(more + used),
            Self::Whole(used) => Self::Whole(more + used),
            Self::Broken(used) => Self::Broken(more + used),
        }
    }
}

/// The decision about the text behind a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is not decided yet.
    More,
    /// Another call, behind so many bytes.
    Next(usize),
    /// Other text, behind so many bytes; calls may follow in it.
    Over(usize),
    /// Text in which no calls are sought.
    Plain,
}

/// A way to write calls.
pub(super) trait CallSyntax: fmt::Debug + Send {
    /// The marks that may begin a call.
    fn marks(&self) -> &'static [&'static str];

    /// Where a call may begin in text that is no call so far.
    fn open(&mut self, text: &str) -> Opening {
        opening(text, self.marks())
    }

    /// Prepares for a call behind this mark; it is empty behind a call without one.
    fn begin(&mut self, mark: &str);

    /// Reads more of a call: `text` is the text that was not read yet.
    fn read(&mut self, text: &str, call: &mut CallText) -> Read;

    /// Decides about the text behind a call: `text` is all text behind it.
    fn after(&mut self, text: &str) -> After;
}
