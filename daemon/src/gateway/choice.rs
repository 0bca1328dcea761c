//! One choice of an answer, from tokens to the client's view: text, tool calls, log probabilities, finish reason. Pure.
use common::chat::{FinishReason, ToolFormat};
use protocol::message::TokenEvent;
use tokenizer::tools::{Piece, ToolParser};

use super::answer::{Ended, Said};
use crate::gateway::request::Tools;

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
    tools: Tools,
    /// Number of most probable tokens to show; `None`: no log probabilities.
    logprobs: Option<usize>,
    parser: Option<ToolParser>,
    /// Log probabilities of tokens whose text is held back.
    pending: Vec<TokenLogprobs>,
    calls: usize,
}

impl Choice {
    pub(super) fn new(tools: Tools, logprobs: Option<usize>) -> Self {
        Self { tools, logprobs, parser: None, pending: Vec::new(), calls: 0 }
    }

    /// Converts an event of the answer to parts.
    pub(super) fn take(&mut self, said: Said) -> Vec<ChoicePart> {
        match said {
            Said::Started { tool_format } => {
                // A forced call is a bare JSON object, the format of Llama 3.
                let format = if self.tools.are_forced { ToolFormat::Llama3 } else { tool_format };
                let finds = self.tools.are_given && format != ToolFormat::None;
                self.parser = finds.then(|| ToolParser::new(format));
                vec![ChoicePart::Started]
            }
            Said::Token(token) => {
                self.pending.extend(self.logprobs.and_then(|most| shown(&token, most)));
                let pieces = match &mut self.parser {
                    Some(parser) => parser.push(&token.text),
                    None => vec![Piece::Content(token.text.into())],
                };
                self.parts(pieces)
            }
            Said::Finished(ended) => {
                let pieces = self.parser.take().map_or_else(Vec::new, ToolParser::finish);
                let mut parts = self.parts(pieces);
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

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<ChoicePart> {
        let mut parts = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Content(text) if text.is_empty() => {}
                Piece::Content(text) => parts.push(ChoicePart::Content(text, std::mem::take(&mut self.pending))),
                Piece::Call { .. } if self.tools.is_one && self.calls > 0 => {}
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

    fn token(id: u32, text: &str) -> Said {
        let logprob = |id: u32, logprob: f32| TokenLogprob { id, text: format!("t{id}"), logprob };
        let logprobs = vec![logprob(7, -2.0), logprob(id, -3.0), logprob(8, -1.0)];
        Said::Token(TokenEvent { id: Some(id), text: text.into(), logprobs })
    }

    fn started(format: ToolFormat) -> Said {
        Said::Started { tool_format: format }
    }

    fn ended() -> Said {
        Said::Finished(Box::default())
    }

    #[test]
    fn log_probabilities_arrive_with_the_text_of_their_tokens() {
        let mut choice = Choice::new(Tools::default(), Some(2));
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
        let mut choice = Choice::new(Tools { are_given: true, ..Tools::default() }, None);
        choice.take(started(ToolFormat::Hermes));
        let mut parts = choice.take(token(1, text));
        parts.extend(choice.take(ended()));
        let [ChoicePart::Call { index: 0, name, arguments }, ChoicePart::End("tool_calls", _)] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!((name.as_str(), arguments.as_str()), ("add", "{\"a\": 1}"));
        let mut without = Choice::new(Tools::default(), None);
        without.take(started(ToolFormat::Hermes));
        assert!(matches!(&without.take(token(1, text))[..], [ChoicePart::Content(content, _)] if content == text));
    }

    #[test]
    fn a_cancelled_choice_never_looks_complete() {
        let mut choice = Choice::new(Tools { are_given: true, ..Tools::default() }, None);
        choice.take(started(ToolFormat::Hermes));
        choice.take(token(1, "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"));
        let ended = Ended { reason: FinishReason::Cancelled, ..Ended::default() };
        assert!(matches!(choice.take(Said::Finished(Box::new(ended)))[..], [ChoicePart::End("cancelled", _)]));
    }

    #[test]
    fn forced_call_is_parsed_regardless_of_the_template() {
        let mut choice = Choice::new(Tools { are_given: true, are_forced: true, is_one: true }, None);
        choice.take(started(ToolFormat::None));
        let mut parts = choice.take(token(1, "{\"name\": \"add\", \"arguments\": "));
        parts.extend(choice.take(token(2, "{\"a\": 1}}")));
        parts.extend(choice.take(ended()));
        assert!(
            matches!(&parts[..], [ChoicePart::Call { name, .. }, ChoicePart::End("tool_calls", _)] if name == "add"),
            "{parts:?}"
        );
    }
}
