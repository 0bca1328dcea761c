//! One choice of an answer, from tokens to the client's view: thoughts, text, tool calls, log probabilities, finish
//! reason. Pure.
use std::sync::Arc;

use common::chat::{FinishReason, Thinking, ToolFormat};
use protocol::message::TokenEvent;
use tokenizer::{
    thinking::{AnswerPart, ThinkingParser},
    tools::{Piece, ToolParser},
};

use super::{
    answer::{Ended, Said},
    reading::Reading,
};

/// A token with its log probability, and the most probable tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenLogprobs {
    pub(super) token: String,
    pub(super) logprob: f32,
    pub(super) top: Vec<(String, f32)>,
}

/// A part of a choice as the client sees it.
#[derive(Debug)]
pub(super) enum ChoicePart {
    /// It has begun.
    Started,
    /// What the model thinks before it answers.
    Thought(String),
    /// Text, with the log probabilities of its tokens.
    Content(String, Vec<TokenLogprobs>),
    /// A complete tool call.
    Call { index: usize, name: String, arguments: String },
    /// Its end.
    End(&'static str, Box<Ended>),
}

/// A choice in progress.
#[derive(Debug)]
pub(super) struct Choice {
    reading: Reading,
    thinking: ThinkingParser,
    parser: Option<ToolParser>,
    /// Log probabilities of tokens whose text is held back.
    pending: Vec<TokenLogprobs>,
    calls: usize,
}

impl Choice {
    pub(super) fn new(reading: Reading) -> Self {
        let thinking = ThinkingParser::new(Thinking::None);
        Self { reading, thinking, parser: None, pending: Vec::new(), calls: 0 }
    }

    /// Converts an event of the answer to parts.
    pub(super) fn take(&mut self, said: Said) -> Vec<ChoicePart> {
        match said {
            Said::Started { tool_format, thinking } => {
                let Reading { tools, schemas, has_thoughts, .. } = &self.reading;
                // A forced call is a bare JSON object, the format of Llama 3.
                let format = if tools.are_forced { ToolFormat::Llama3 } else { tool_format };
                let finds = tools.are_given && format != ToolFormat::None;
                self.parser = finds.then(|| ToolParser::new(format, Arc::clone(schemas)));
                self.thinking = ThinkingParser::new(if *has_thoughts { thinking } else { Thinking::None });
                vec![ChoicePart::Started]
            }
            Said::Token(token) => {
                self.pending.extend(self.reading.logprobs.and_then(|most| shown(&token, most)));
                let parts = self.thinking.push(&token.text);
                self.read(parts)
            }
            Said::Finished(ended) => {
                let thinking = std::mem::replace(&mut self.thinking, ThinkingParser::new(Thinking::None));
                let mut parts = self.read(thinking.finish().into_iter().collect());
                let pieces = self.parser.take().map_or_else(Vec::new, ToolParser::finish);
                parts.extend(self.parts(pieces));
                if !self.pending.is_empty() {
                    parts.push(ChoicePart::Content(String::new(), std::mem::take(&mut self.pending)));
                }
                let reason = match ended.reason {
                    FinishReason::Stop if self.calls > 0 => "tool_calls",
                    FinishReason::Stop => "stop",
                    // A cancelled answer ends as an error; if it arrives here, it is not complete.
                    FinishReason::Cancelled => "cancelled",
                    FinishReason::Length | FinishReason::Context => "length",
                };
                parts.push(ChoicePart::End(reason, ended));
                parts
            }
        }
    }

    fn read(&mut self, answer: Vec<AnswerPart>) -> Vec<ChoicePart> {
        let mut parts = Vec::new();
        for part in answer {
            match part {
                AnswerPart::Thought(text) => {
                    // Log probabilities are those of the content.
                    self.pending.clear();
                    parts.push(ChoicePart::Thought(text));
                }
                AnswerPart::Answer(text) => {
                    let pieces = match &mut self.parser {
                        Some(parser) => parser.push(&text),
                        None => vec![Piece::Content(text)],
                    };
                    parts.extend(self.parts(pieces));
                }
            }
        }
        parts
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<ChoicePart> {
        let mut parts = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Content(text) if text.is_empty() => {}
                Piece::Content(text) => parts.push(ChoicePart::Content(text, std::mem::take(&mut self.pending))),
                Piece::Call { .. } if self.reading.tools.is_one && self.calls > 0 => {}
                Piece::Call { index, name, arguments } => {
                    self.calls += 1;
                    parts.push(ChoicePart::Call { index, name, arguments });
                }
            }
        }
        parts
    }
}

/// The head includes the sampled token itself in the list; its position there has no meaning.
fn shown(token: &TokenEvent, most: usize) -> Option<TokenLogprobs> {
    let id = token.id?;
    let own = token.logprobs.iter().find(|one| one.id == id)?;
    let mut top: Vec<(String, f32)> = token.logprobs.iter().map(|one| (one.text.clone(), one.logprob)).collect();
    top.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    top.truncate(most);
    Some(TokenLogprobs { token: own.text.clone(), logprob: own.logprob, top })
}

#[cfg(test)]
mod tests {
    use protocol::message::TokenLogprob;

    use super::*;
    use crate::gateway::reading::Tools;

    fn token(id: u32, text: &str) -> Said {
        let logprob = |id: u32, logprob: f32| TokenLogprob { id, text: format!("t{id}"), logprob };
        let logprobs = vec![logprob(7, -2.0), logprob(id, -3.0), logprob(8, -1.0)];
        Said::Token(TokenEvent { id: Some(id), text: text.into(), logprobs })
    }

    fn started(format: ToolFormat) -> Said {
        Said::Started { tool_format: format, thinking: Thinking::Marked }
    }

    /// A choice of a request with or without tools.
    fn choosing(are_given: bool) -> Choice {
        Choice::new(Reading { tools: Tools { are_given, ..Tools::default() }, ..Reading::default() })
    }

    fn ended() -> Said {
        Said::Finished(Box::default())
    }

    #[test]
    fn log_probabilities_arrive_with_the_text_of_their_tokens() {
        let mut choice = Choice::new(Reading { logprobs: Some(2), ..Reading::default() });
        assert!(matches!(choice.take(started(ToolFormat::Hermes))[..], [ChoicePart::Started]));
        assert!(choice.take(token(1, "")).is_empty(), "half a character");
        let [ChoicePart::Content(text, shown)] = &choice.take(token(2, "é"))[..] else { panic!("text") };
        assert_eq!((text.as_str(), shown.len()), ("é", 2));
        assert_eq!(shown[0].token, "t1");
        assert_eq!(shown[0].top, [("t8".into(), -1.0), ("t7".into(), -2.0)]);
        assert!(matches!(choice.take(ended())[..], [ChoicePart::End("stop", _)]));
    }

    #[test]
    fn calls_are_found_only_with_tools_and_set_finish_reason() {
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let mut choice = choosing(true);
        choice.take(started(ToolFormat::Hermes));
        let mut parts = choice.take(token(1, text));
        parts.extend(choice.take(ended()));
        let [ChoicePart::Call { index: 0, name, arguments }, ChoicePart::End("tool_calls", _)] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!((name.as_str(), arguments.as_str()), ("add", "{\"a\": 1}"));
        let mut without = choosing(false);
        without.take(started(ToolFormat::Hermes));
        assert!(matches!(&without.take(token(1, text))[..], [ChoicePart::Content(content, _)] if content == text));
    }

    #[test]
    fn a_cancelled_choice_never_looks_complete() {
        let mut choice = choosing(true);
        choice.take(started(ToolFormat::Hermes));
        choice.take(token(1, "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"));
        let ended = Ended { reason: FinishReason::Cancelled, ..Ended::default() };
        assert!(matches!(choice.take(Said::Finished(Box::new(ended)))[..], [ChoicePart::End("cancelled", _)]));
    }

    #[test]
    fn forced_call_is_parsed_regardless_of_the_template() {
        let tools = Tools { are_given: true, are_forced: true, is_one: true };
        let mut choice = Choice::new(Reading { tools, ..Reading::default() });
        choice.take(started(ToolFormat::None));
        let mut parts = choice.take(token(1, "{\"name\": \"add\", \"arguments\": "));
        parts.extend(choice.take(token(2, "{\"a\": 1}}")));
        parts.extend(choice.take(ended()));
        assert!(
            matches!(&parts[..], [ChoicePart::Call { name, .. }, ChoicePart::End("tool_calls", _)] if name == "add"),
            "{parts:?}"
        );
    }

    #[test]
    fn thoughts_are_no_content_and_have_no_calls() {
        let text = "<think>\nI could <b>call</b>.\n</think>\n\nNo.";
        let reading = Reading { has_thoughts: true, logprobs: Some(1), ..Reading::default() };
        let mut choice = Choice::new(reading);
        choice.take(started(ToolFormat::Hermes));
        let mut parts = choice.take(token(1, &text[..20]));
        parts.extend(choice.take(token(2, &text[20..])));
        parts.extend(choice.take(ended()));
        let [
            ChoicePart::Thought(first),
            ChoicePart::Thought(rest),
            ChoicePart::Content(content, shown),
            ChoicePart::End("stop", _),
        ] = &parts[..]
        else {
            panic!("{parts:?}")
        };
        assert_eq!((first.clone() + rest, content.as_str()), ("I could <b>call</b>.".into(), "No."));
        assert!(shown.len() <= 1, "only tokens of the content have log probabilities");
        let mut raw = Choice::new(Reading::default());
        raw.take(started(ToolFormat::Hermes));
        assert!(matches!(&raw.take(token(1, text))[..], [ChoicePart::Content(content, _)] if content == text));
    }
}
