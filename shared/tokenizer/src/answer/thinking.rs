//! Separates a model's reasoning, the text between two marks at the beginning, from its answer while both stream. White
//! space around both is dropped, nothing else.
use common::chat::Thinking;

use super::format::ThinkingMarks;
use crate::overlap;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Divided {
    /// A thought.
    Thought(String),
    /// The answer, with its tool calls.
    Answer(String),
}

/// Incremental parser for thoughts.
#[derive(Debug)]
pub(super) struct ThinkingParser {
    marks: ThinkingMarks,
    state: ThinkingState,
    /// Whether the answer so far ends within a call.
    is_call: bool,
    /// Undecided text.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThinkingState {
    /// Nothing but white space so far; a thought may begin, or has begun with the prompt.
    Begin(Thinking),
    /// Inside a thought; white space before its first letter is dropped.
    Thought {
        has_begun: bool,
    },
    /// Behind a thought: white space before the answer is dropped.
    Behind,
    Answer,
}

impl ThinkingParser {
    /// A parser at the beginning of an answer.
    pub(super) fn new(thinking: Thinking, marks: ThinkingMarks) -> Self {
        let state = if thinking == Thinking::None { ThinkingState::Answer } else { ThinkingState::Begin(thinking) };
        Self { marks, state, is_call: false, held: String::new() }
    }

    /// Adds text of the answer. `take` gets the parts that are certain now, and returns whether the answer ends within a call.
    pub(super) fn push(&mut self, text: &str, mut take: impl FnMut(Divided) -> bool) {
        self.held.push_str(text);
        let mut parts = Vec::new();
        let mut goes_on = true;
        while goes_on {
            goes_on = self.step(&mut parts);
            for part in parts.drain(..) {
                self.is_call = take(part);
            }
        }
    }

    /// Whether the text is within a thought.
    pub(super) fn thinks(&self) -> bool {
        matches!(self.state, ThinkingState::Thought { .. } | ThinkingState::Begin(Thinking::Open))
    }

    /// Whether a thought may still continue or begin.
    pub(super) fn may_think(&self) -> bool {
        matches!(self.state, ThinkingState::Thought { .. } | ThinkingState::Begin(_))
    }

    /// Whether text so far may still become a part of the answer.
    pub(super) fn holds_back(&self) -> bool {
        match self.state {
            ThinkingState::Begin(Thinking::Open) | ThinkingState::Thought { .. } | ThinkingState::Behind => false,
            ThinkingState::Begin(_) | ThinkingState::Answer => !self.held.is_empty(),
        }
    }

    /// Ends the answer; returns the text that was held back.
    pub(super) fn finish(self) -> Option<Divided> {
        let Self { state, held, .. } = self;
        let (is_empty, is_blank) = (held.is_empty(), held.trim().is_empty());
        match state {
            ThinkingState::Begin(Thinking::Open) | ThinkingState::Thought { .. } if !is_blank => {
                Some(Divided::Thought(held.trim_end().to_owned()))
            }
            ThinkingState::Begin(Thinking::Open) | ThinkingState::Thought { .. } | ThinkingState::Behind => None,
            ThinkingState::Begin(_) | ThinkingState::Answer => (!is_empty).then_some(Divided::Answer(held)),
        }
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self, parts: &mut Vec<Divided>) -> bool {
        match self.state {
            ThinkingState::Begin(thinking) => self.begin(thinking),
            ThinkingState::Thought { has_begun } => self.think(has_begun, parts),
            ThinkingState::Behind => {
                self.trim_start();
                let is_over = !self.held.is_empty();
                if is_over {
                    self.state = ThinkingState::Answer;
                }
                is_over
            }
            ThinkingState::Answer => {
                if self.marks.returns {
                    return self.answer(parts);
                }
                if !self.held.is_empty() {
                    parts.push(Divided::Answer(std::mem::take(&mut self.held)));
                }
                false
            }
        }
    }

    /// Looks for another thought, and for an end without a beginning, in the text of the answer outside of its calls.
    fn answer(&mut self, parts: &mut Vec<Divided>) -> bool {
        let marks = [self.marks.begin, self.marks.end];
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        if let Some((0, mark)) = found {
            self.held.drain(..mark.len());
            if self.is_call {
                parts.push(Divided::Answer(mark.to_owned()));
            } else if mark == self.marks.begin {
                self.state = ThinkingState::Thought { has_begun: false };
            }
            return true;
        }
        let partial = marks.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or_default();
        let certain = found.map_or(self.held.len() - partial, |(at, _)| at);
        if certain > 0 {
            parts.push(Divided::Answer(self.held.drain(..certain).collect()));
        }
        found.is_some()
    }

    fn begin(&mut self, thinking: Thinking) -> bool {
        let begin = self.marks.begin;
        let text = self.held.trim_start();
        if text.is_empty() || text.len() < begin.len() && begin.starts_with(text) {
            return false;
        }
        let inside = text.strip_prefix(begin).map(str::to_owned);
        let thinks = inside.is_some() || thinking == Thinking::Open;
        self.held = inside.unwrap_or_else(|| std::mem::take(&mut self.held));
        self.state = if thinks { ThinkingState::Thought { has_begun: false } } else { ThinkingState::Answer };
        true
    }

    /// Drops the white space at the beginning of the held text.
    fn trim_start(&mut self) {
        let begin = self.held.len() - self.held.trim_start().len();
        self.held.drain(..begin);
    }

    fn think(&mut self, has_begun: bool, parts: &mut Vec<Divided>) -> bool {
        if !has_begun {
            self.trim_start();
        }
        let ThinkingMarks { end: mark, call, .. } = self.marks;
        let at_end = self.held.find(mark).map(|at| (at, at + mark.len()));
        let at_call = call.and_then(|call| self.held.find(call)).map(|at| (at, at));
        let end = at_end.into_iter().chain(at_call).min();
        let partial = overlap(&self.held, mark).max(call.map_or(0, |call| overlap(&self.held, call)));
        let certain = end.map_or(self.held.len() - partial, |(at, _)| at);
        // White space before the end of a thought is dropped.
        let told = self.held[..certain].trim_end().len();
        if told > 0 {
            parts.push(Divided::Thought(self.held[..told].to_owned()));
            self.state = ThinkingState::Thought { has_begun: true };
        }
        let Some((_, answer)) = end else {
            self.held.drain(..told);
            return false;
        };
        self.held.drain(..answer);
        self.state = ThinkingState::Behind;
        true
    }
}
