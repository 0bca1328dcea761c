//! One choice of an answer, from tokens to what a client sees of it: text, calls of tools, probabilities, why it ended. Pure.
use shared::{
    protocol::message::{FinishReason, TokenEvent, ToolFormat},
    tools::{Piece, ToolParser},
};

use super::answer::{Ended, Said};

/// A token with its probability, and the most probable ones in its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    pub(super) token: String,
    pub(super) logprob: f32,
    pub(super) top: Vec<(String, f32)>,
}

/// Something that a client sees.
#[derive(Debug)]
pub(super) enum Part {
    /// It runs.
    Started,
    /// Text, with the probabilities of the tokens that made it.
    Content(String, Vec<Shown>),
    /// A whole call of a tool.
    Call { index: usize, name: String, arguments: String },
    /// Its end.
    End(&'static str, Box<Ended>),
}

/// Which calls of tools are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tools {
    /// Whether there are any.
    pub(super) are_given: bool,
    /// Whether the answer is one call and nothing else: a grammar makes it so, in whatever way the model writes calls.
    pub(super) are_forced: bool,
    /// Whether at most one is wanted.
    pub(super) is_one: bool,
}

/// A choice under way.
#[derive(Debug)]
pub(super) struct Choice {
    tools: Tools,
    /// Most probable tokens to show; `None`: no probabilities.
    logprobs: Option<usize>,
    parser: Option<ToolParser>,
    /// Probabilities of tokens whose text is held back.
    pending: Vec<Shown>,
    calls: usize,
}

impl Choice {
    pub(super) fn new(tools: Tools, logprobs: Option<usize>) -> Self {
        Self { tools, logprobs, parser: None, pending: Vec::new(), calls: 0 }
    }

    /// Takes what an answer said.
    pub(super) fn take(&mut self, said: Said) -> Vec<Part> {
        match said {
            Said::Started { tool_format } => {
                // A forced call is a bare object, as Llama 3 writes all of them.
                let format = if self.tools.are_forced { ToolFormat::Llama3 } else { tool_format };
                let finds = self.tools.are_given && format != ToolFormat::None;
                self.parser = finds.then(|| ToolParser::new(format));
                vec![Part::Started]
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
                    parts.push(Part::Content(String::new(), std::mem::take(&mut self.pending)));
                }
                let reason = match ended.reason {
                    FinishReason::Stop if self.calls > 0 => "tool_calls",
                    FinishReason::Stop => "stop",
                    // An answer that was cancelled ends as an error; should it come here, it is no whole one.
                    FinishReason::Cancelled => "cancelled",
                    FinishReason::Length | FinishReason::Context => "length",
                };
                parts.push(Part::End(reason, ended));
                parts
            }
        }
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Content(text) if text.is_empty() => {}
                Piece::Content(text) => parts.push(Part::Content(text, std::mem::take(&mut self.pending))),
                Piece::Call { .. } if self.tools.is_one && self.calls > 0 => {}
                Piece::Call { index, name, arguments } => {
                    self.calls += 1;
                    parts.push(Part::Call { index, name, arguments });
                }
            }
        }
        parts
    }
}

/// The token itself is among those that the head tells; its place there says nothing.
fn shown(token: &TokenEvent, most: usize) -> Option<Shown> {
    let id = token.id?;
    let own = token.logprobs.iter().find(|one| one.id == id)?;
    let mut top: Vec<(String, f32)> = token.logprobs.iter().map(|one| (one.text.clone(), one.logprob)).collect();
    top.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    top.truncate(most);
    Some(Shown { token: own.text.clone(), logprob: own.logprob, top })
}

#[cfg(test)]
mod tests {
    use shared::protocol::message::TokenLogprob;

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
    fn probabilities_travel_with_the_text_that_their_tokens_made() {
        let mut choice = Choice::new(Tools::default(), Some(2));
        assert!(matches!(choice.take(started(ToolFormat::Hermes))[..], [Part::Started]));
        assert!(choice.take(token(1, "")).is_empty(), "half a character");
        let [Part::Content(text, shown)] = &choice.take(token(2, "é"))[..] else { panic!("text") };
        assert_eq!((text.as_str(), shown.len()), ("é", 2));
        assert_eq!(shown[0].token, "t1");
        assert_eq!(shown[0].top, [("t8".into(), -1.0), ("t7".into(), -2.0)]);
        assert!(matches!(choice.take(ended())[..], [Part::End("stop", _)]));
    }

    #[test]
    fn calls_are_found_only_where_tools_were_given_and_end_the_answer_as_such() {
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let mut choice = Choice::new(Tools { are_given: true, ..Tools::default() }, None);
        choice.take(started(ToolFormat::Hermes));
        let mut parts = choice.take(token(1, text));
        parts.extend(choice.take(ended()));
        let [Part::Call { index: 0, name, arguments }, Part::End("tool_calls", _)] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!((name.as_str(), arguments.as_str()), ("add", "{\"a\": 1}"));
        let mut without = Choice::new(Tools::default(), None);
        without.take(started(ToolFormat::Hermes));
        assert!(matches!(&without.take(token(1, text))[..], [Part::Content(content, _)] if content == text));
    }

    #[test]
    fn a_cancelled_choice_never_looks_complete() {
        let mut choice = Choice::new(Tools { are_given: true, ..Tools::default() }, None);
        choice.take(started(ToolFormat::Hermes));
        choice.take(token(1, "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"));
        let ended = Ended { reason: FinishReason::Cancelled, ..Ended::default() };
        assert!(matches!(choice.take(Said::Finished(Box::new(ended)))[..], [Part::End("cancelled", _)]));
    }

    #[test]
    fn a_forced_call_is_one_whatever_the_template_knows() {
        let mut choice = Choice::new(Tools { are_given: true, are_forced: true, is_one: true }, None);
        choice.take(started(ToolFormat::None));
        let mut parts = choice.take(token(1, "{\"name\": \"add\", \"arguments\": "));
        parts.extend(choice.take(token(2, "{\"a\": 1}}")));
        parts.extend(choice.take(ended()));
        assert!(
            matches!(&parts[..], [Part::Call { name, .. }, Part::End("tool_calls", _)] if name == "add"),
            "{parts:?}"
        );
    }
}
