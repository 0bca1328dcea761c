//! Separates a model's reasoning, the text between `<think>` and `</think>` at the beginning, from its answer while both
//! stream. White space around both is dropped, nothing else. Pure; the result does not depend on how the text is split
//! into pieces.
use common::chat::Thinking;

use crate::overlap;

const BEGIN: &str = "<think>";
const END: &str = "</think>";
/// Some models call a tool in the middle of a thought and leave out its end.
const CALL: &str = "<tool_call>";

/// Where an answer to a prompt that ends with `tail` thinks, for a template with these marks.
pub fn thinking_behind(tail: &str) -> Thinking {
    if tail.trim_end().ends_with(BEGIN) { Thinking::Open } else { Thinking::Marked }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// A thought.
    Thought(String),
    /// The answer, with its tool calls.
    Answer(String),
}

/// Incremental parser for thoughts.
#[derive(Debug)]
pub struct ThinkingParser {
    state: ThinkingState,
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
    pub fn new(thinking: Thinking) -> Self {
        let state = if thinking == Thinking::None { ThinkingState::Answer } else { ThinkingState::Begin(thinking) };
        Self { state, held: String::new() }
    }

    /// Adds text of the answer; returns the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(self) -> Option<AnswerPart> {
        let Self { state, held } = self;
        let (is_empty, is_blank) = (held.is_empty(), held.trim().is_empty());
        match state {
            ThinkingState::Begin(Thinking::Open) | ThinkingState::Thought { .. } if !is_blank => {
                Some(AnswerPart::Thought(held.trim_end().to_owned()))
            }
            ThinkingState::Begin(Thinking::Open) | ThinkingState::Thought { .. } | ThinkingState::Behind => None,
            ThinkingState::Begin(_) | ThinkingState::Answer => (!is_empty).then_some(AnswerPart::Answer(held)),
        }
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
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
                if !self.held.is_empty() {
                    parts.push(AnswerPart::Answer(std::mem::take(&mut self.held)));
                }
                false
            }
        }
    }

    fn begin(&mut self, thinking: Thinking) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() || text.len() < BEGIN.len() && BEGIN.starts_with(text) {
            return false;
        }
        let inside = text.strip_prefix(BEGIN).map(str::to_owned);
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

    fn think(&mut self, has_begun: bool, parts: &mut Vec<AnswerPart>) -> bool {
        if !has_begun {
            self.trim_start();
        }
        let of = |mark: &str, length: usize| self.held.find(mark).map(|at| (at, at + length));
        let end = of(END, END.len()).into_iter().chain(of(CALL, 0)).min();
        let partial = overlap(&self.held, END).max(overlap(&self.held, CALL));
        let certain = end.map_or(self.held.len() - partial, |(at, _)| at);
        // White space before the end of a thought is dropped.
        let told = self.held[..certain].trim_end().len();
        if told > 0 {
            parts.push(AnswerPart::Thought(self.held[..told].to_owned()));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Thought and answer of a text that arrives in these pieces.
    fn parse<'a>(thinking: Thinking, pieces: impl Iterator<Item = &'a str>) -> [String; 2] {
        let mut parser = ThinkingParser::new(thinking);
        let mut parts: Vec<AnswerPart> = pieces.flat_map(|piece| parser.push(piece)).collect();
        parts.extend(parser.finish());
        let mut found = [String::new(), String::new()];
        for part in parts {
            match part {
                AnswerPart::Thought(text) => found[0].push_str(&text),
                AnswerPart::Answer(text) => found[1].push_str(&text),
            }
        }
        found
    }

    /// Checks a text whole, letter by letter, and in every split into two.
    #[track_caller]
    fn check(thinking: Thinking, text: &str, thought: &str, answer: &str) {
        let expected = [thought, answer];
        assert_eq!(parse(thinking, std::iter::once(text)), expected, "{text:?} whole");
        let places: Vec<usize> = (0..=text.len()).filter(|place| text.is_char_boundary(*place)).collect();
        for place in &places {
            assert_eq!(
                parse(thinking, [&text[..*place], &text[*place..]].into_iter()),
                expected,
                "{text:?} at {place}"
            );
        }
        let letters = places.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        assert_eq!(parse(thinking, letters), expected, "{text:?} letter by letter");
    }

    #[test]
    fn thoughts_at_the_beginning_are_apart_from_the_answer() {
        check(Thinking::Marked, "<think>\nhm, 2 < 3\n\nyes\n</think>\n\nIt is.\n", "hm, 2 < 3\n\nyes", "It is.\n");
        check(Thinking::Marked, "\n<think>a</think>b", "a", "b");
        check(Thinking::Marked, "<think>\n\n</think>\n\nb", "", "b");
        check(Thinking::Open, "hm</th </think>\né", "hm</th", "é");
        check(Thinking::Open, "\n<think>hm</think>a</think>", "hm", "a</think>");
        check(Thinking::Open, "one call <tool_call>{}", "one call", "<tool_call>{}");
    }

    #[test]
    fn a_prompt_that_ends_inside_a_thought_is_found() {
        assert_eq!(thinking_behind("<|im_start|>assistant\n<think>\n"), Thinking::Open);
        assert_eq!(thinking_behind("assistant\n<think>\n\n</think>\n\n"), Thinking::Marked);
    }

    #[test]
    fn answers_without_thoughts_are_unchanged() {
        for text in ["", " \n", "<thin", "2 < 3", " an answer about <think>a</think>"] {
            check(Thinking::Marked, text, "", text);
            check(Thinking::None, text, "", text);
        }
        check(Thinking::None, "<think>a</think>", "", "<think>a</think>");
    }

    #[test]
    fn a_thought_that_does_not_end_is_no_answer() {
        check(Thinking::Open, " and then\n", "and then", "");
        check(Thinking::Open, " ", "", "");
        check(Thinking::Marked, "<think> and </thi", "and </thi", "");
    }
}
