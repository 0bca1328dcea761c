//! One choice of an answer, from tokens to the client's view: thoughts, text, tool calls, log probabilities, finish
//! reason. Pure.
use std::sync::Arc;

use common::chat::{AnswerForm, FinishReason, Thinking, ToolFormat};
use protocol::message::{TokenEvent, TokenLogprob};
use tokenizer::answer::{AnswerParser, AnswerPart};

use super::{
    answer::{Ended, Said},
    reading::Reading,
};

/// A token with its log probability, and the most probable tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenLogprobs {
    /// The token; the first one of a prompt has no probability.
    pub(super) token: String,
    pub(super) own: Option<TokenLogprob>,
    /// Best first.
    pub(super) top: Vec<TokenLogprob>,
}

/// A part of a choice as the client sees it.
#[derive(Debug)]
pub(super) enum ChoicePart {
    /// It has begun.
    Started,
    /// What the model thinks before it answers.
    Thought(String),
    /// Log probabilities of tokens of the prompt.
    Scored(Vec<TokenLogprobs>),
    /// A token whose text follows, perhaps later.
    Token(u32),
    /// Text, with the log probabilities of its tokens.
    Content(String, Vec<TokenLogprobs>),
    /// A tool call begins.
    Call { index: usize, name: String },
    /// More of the arguments of a call; together they are a JSON object.
    Arguments { index: usize, text: String },
    /// The latest call is none after all: its text follows as content.
    Broken,
    /// Its end.
    End(&'static str, Box<Ended>),
}

/// A choice in progress.
#[derive(Debug)]
pub(super) struct Choice {
    reading: Reading,
    parser: AnswerParser,
    /// Log probabilities of tokens whose text is held back.
    pending: Vec<TokenLogprobs>,
    /// Calls, without those that are none after all.
    calls: usize,
    /// The latest of them.
    call: Option<usize>,
    /// Tokens of thoughts.
    thought_tokens: usize,
    /// The prompt, if the text begins with it.
    echo: Option<String>,
}

impl Choice {
    pub(super) fn new(reading: Reading) -> Self {
        let parser = AnswerParser::new(ToolFormat::None, Thinking::None, None);
        Self { reading, parser, pending: Vec::new(), calls: 0, call: None, thought_tokens: 0, echo: None }
    }

    /// Begins the text with the prompt.
    pub(super) fn echoing(self, echo: Option<String>) -> Self {
        Self { echo, ..self }
    }

    /// Converts an event of the answer to parts.
    pub(super) fn take(&mut self, said: Said) -> Vec<ChoicePart> {
        match said {
            Said::Started(form) => {
                self.parser = self.parser_of(&form);
                let echo = self.echo.take().map(|text| ChoicePart::Content(text, Vec::new()));
                std::iter::once(ChoicePart::Started).chain(echo).collect()
            }
            Said::Scored(tokens) => {
                let most = self.reading.logprobs.unwrap_or_default();
                vec![ChoicePart::Scored(tokens.iter().map(|token| scored(token, most)).collect())]
            }
            // Not asked for.
            Said::Embedded(_) => Vec::new(),
            Said::Token(_) if self.reading.is_prompt_only => Vec::new(),
            Said::Token(token) => {
                self.pending.extend(self.reading.logprobs.and_then(|most| shown(&token, most)));
                let parts = self.parser.push(&token.text);
                let thinks = self.parser.thinks() || parts.iter().any(|part| matches!(part, AnswerPart::Thought(_)));
                self.thought_tokens += usize::from(thinks && token.id.is_some());
                let id = token.id.filter(|_| self.reading.shows_ids).map(ChoicePart::Token);
                let parts = id.into_iter().chain(self.parts(parts)).collect();
                // Its tokens were marks, thoughts or calls. A token without text begins a character of the next part.
                if !token.text.is_empty() && !self.parser.holds_back() {
                    self.pending.clear();
                }
                parts
            }
            Said::Finished(mut ended) => {
                let rest = AnswerParser::new(ToolFormat::None, Thinking::None, None);
                let rest = std::mem::replace(&mut self.parser, rest).finish();
                let mut parts = self.parts(rest);
                // Behind calls, only marks and white space are left.
                if !self.pending.is_empty() && self.calls == 0 {
                    parts.push(ChoicePart::Content(String::new(), std::mem::take(&mut self.pending)));
                }
                let reason = match ended.reason {
                    FinishReason::Stop if self.reading.is_prompt_only => "length",
                    FinishReason::Stop if self.calls > 0 => "tool_calls",
                    FinishReason::Stop => "stop",
                    // A cancelled answer ends as an error; if it arrives here, it is not complete.
                    FinishReason::Cancelled => "cancelled",
                    FinishReason::Length | FinishReason::Context => "length",
                };
                ended.thought_tokens = self.thought_tokens;
                parts.push(ChoicePart::End(reason, ended));
                parts
            }
        }
    }

    /// The parser of an answer in this form.
    fn parser_of(&self, form: &AnswerForm) -> AnswerParser {
        let Reading { tools, schemas, has_thoughts, is_formatted, .. } = &self.reading;
        let AnswerForm { tool_format, thinking, has_own_calls, .. } = *form;
        // A forced call that is not in the model's syntax is a bare JSON object, the format of Llama 3.
        let is_plain = tools.are_forced && !has_own_calls;
        let format = if is_plain { ToolFormat::Llama3 } else { tool_format };
        let may_think = *has_thoughts && (has_own_calls || !(tools.are_forced || *is_formatted));
        let shown = if may_think { thinking } else { Thinking::None };
        // An answer that only has a format may look like a call.
        let may_call = tools.are_given && (has_own_calls || !is_formatted);
        let schemas = may_call.then(|| Arc::clone(schemas));
        // Behind thoughts that stay in the content, a call may follow text.
        if *is_formatted && (!has_own_calls || shown == thinking) {
            return AnswerParser::of_calls_or_value(format, shown, schemas);
        }
        AnswerParser::new(format, shown, schemas)
    }

    /// Whether thoughts may still follow.
    pub(super) fn may_think(&self) -> bool {
        self.parser.may_think()
    }

    fn parts(&mut self, answer: Vec<AnswerPart>) -> Vec<ChoicePart> {
        let mut parts = Vec::new();
        for part in answer {
            match part {
                AnswerPart::Thought(text) => {
                    // Log probabilities are those of the content.
                    self.pending.clear();
                    parts.push(ChoicePart::Thought(text));
                }
                AnswerPart::Content(text) => {
                    parts.push(ChoicePart::Content(text, std::mem::take(&mut self.pending)));
                }
                // Further calls of a request that allows one are left out.
                AnswerPart::Call { .. } if self.reading.tools.is_one && self.calls > 0 => {}
                AnswerPart::Call { index, name } => {
                    (self.calls, self.call) = (self.calls + 1, Some(index));
                    parts.push(ChoicePart::Call { index, name });
                }
                AnswerPart::Arguments { index, text } if self.call == Some(index) => {
                    parts.push(ChoicePart::Arguments { index, text });
                }
                AnswerPart::Broken { index } if self.call == Some(index) => {
                    (self.calls, self.call) = (self.calls - 1, None);
                    parts.push(ChoicePart::Broken);
                }
                AnswerPart::Arguments { .. } | AnswerPart::Broken { .. } => {}
            }
        }
        parts
    }
}

/// The head includes the sampled token itself in the list; its position there has no meaning.
fn shown(token: &TokenEvent, most: usize) -> Option<TokenLogprobs> {
    Some(scored(token, most)).filter(|shown| shown.own.is_some())
}

/// The log probabilities at a position, without that of the token itself if there is none.
fn scored(token: &TokenEvent, most: usize) -> TokenLogprobs {
    let own = token.logprobs.iter().find(|one| Some(one.id) == token.id).cloned();
    let mut top = token.logprobs.clone();
    top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    top.truncate(most);
    let text = own.as_ref().map_or_else(|| token.text.to_string(), |own| own.text.clone());
    TokenLogprobs { token: text, own, top }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizer::answer::ToolSchemas;

    use super::*;
    use crate::gateway::reading::Tools;

    fn token(id: u32, text: &str) -> Said {
        let logprob = |id: u32, logprob: f32| TokenLogprob { id, text: format!("t{id}"), logprob, bytes: Vec::new() };
        let logprobs = vec![logprob(7, -2.0), logprob(id, -3.0), logprob(8, -1.0)];
        Said::Token(TokenEvent { id: Some(id), text: text.into(), logprobs })
    }

    fn started(format: ToolFormat) -> Said {
        Said::Started(AnswerForm { tool_format: format, thinking: Thinking::Marked, ..AnswerForm::default() })
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
        let top: Vec<(&str, f32)> = shown[0].top.iter().map(|one| (one.text.as_str(), one.logprob)).collect();
        assert_eq!(top, [("t8", -1.0), ("t7", -2.0)]);
        assert!(matches!(choice.take(ended())[..], [ChoicePart::End("stop", _)]));
    }

    #[test]
    fn only_tokens_of_the_content_have_log_probabilities() {
        let gpt = "<|channel|>~analysis~<|message|>~a~<|end|>~<|start|>~assistant~<|channel|>~final~<|message|>~Yes";
        let cut = "<tool_call>~{\"name\": \"add\"~, \"arguments\": {";
        let called = format!("I~\n~{cut}~}}}}~\n~</tool_call>~\n");
        for (format, texts, expected) in [
            (ToolFormat::Hermes, "<think>~a~\n~</think>~\n\n~Yes", 1),
            (ToolFormat::Harmony, gpt, 1),
            (ToolFormat::Hermes, called.as_str(), 1),
            // It is no call, because it was cut off.
            (ToolFormat::Hermes, cut, 3),
        ] {
            let tools = Tools { are_given: true, ..Tools::default() };
            let reading = Reading { tools, has_thoughts: true, logprobs: Some(1), ..Reading::default() };
            let mut choice = Choice::new(reading);
            choice.take(started(format));
            let said = texts.split('~').map(|text| token(9, text)).chain([ended()]);
            let parts: Vec<ChoicePart> = said.flat_map(|said| choice.take(said)).collect();
            let mut count = 0;
            for part in &parts {
                if let ChoicePart::Content(text, shown) = part {
                    assert!(!text.is_empty(), "{texts:?}: {parts:?}");
                    count += shown.len();
                }
            }
            assert_eq!(count, expected, "{texts:?}: {parts:?}");
        }
    }

    #[test]
    fn calls_are_found_only_with_tools_and_set_finish_reason() {
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let mut choice = choosing(true);
        choice.take(started(ToolFormat::Hermes));
        let mut parts = choice.take(token(1, text));
        parts.extend(choice.take(ended()));
        let [
            ChoicePart::Call { index: 0, name },
            ChoicePart::Arguments { index: 0, text: arguments },
            ChoicePart::End("tool_calls", _),
        ] = &parts[..]
        else {
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
        let [ChoicePart::Call { name, .. }, pieces @ .., ChoicePart::End("tool_calls", _)] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert!(name == "add" && pieces.iter().all(|part| matches!(part, ChoicePart::Arguments { .. })), "{parts:?}");
    }

    #[test]
    fn forced_call_of_a_head_that_constrains_it_is_in_its_syntax() {
        let tools = Tools { are_given: true, are_forced: true, is_one: false };
        let mut choice = Choice::new(Reading { tools, has_thoughts: true, ..Reading::default() });
        let (tool_format, thinking) = (ToolFormat::Hermes, Thinking::Open);
        choice.take(Said::Started(AnswerForm { tool_format, thinking, has_own_calls: true, ..AnswerForm::default() }));
        let text = "Hm.</think>\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
        let mut parts = choice.take(token(1, text));
        parts.extend(choice.take(ended()));
        let [
            ChoicePart::Thought(thought),
            ChoicePart::Call { name, .. },
            ChoicePart::Arguments { .. },
            ChoicePart::End("tool_calls", _),
        ] = &parts[..]
        else {
            panic!("{parts:?}")
        };
        assert_eq!((thought.as_str(), name.as_str()), ("Hm.", "add"));
    }

    #[test]
    fn answer_with_a_format_thinks_only_if_its_head_constrains_calls() {
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
        for has_own_calls in [true, false] {
            let tools = Tools { are_given: true, ..Tools::default() };
            let mut choice =
                Choice::new(Reading { tools, has_thoughts: true, is_formatted: true, ..Reading::default() });
            let (tool_format, thinking) = (ToolFormat::Hermes, Thinking::Open);
            choice.take(Said::Started(AnswerForm { tool_format, thinking, has_own_calls, ..AnswerForm::default() }));
            let answer = if has_own_calls { format!("Hm.</think>\n{text}") } else { "{\"a\": 1}".to_owned() };
            let mut parts = choice.take(token(1, &answer));
            parts.extend(choice.take(ended()));
            match &parts[..] {
                [ChoicePart::Thought(_), ChoicePart::Call { name, .. }, ..] => assert!(has_own_calls && name == "add"),
                [ChoicePart::Content(content, _), ChoicePart::End("stop", _)] => {
                    assert!(!has_own_calls && *content == answer);
                }
                _ => panic!("{parts:?}"),
            }
        }
    }

    #[test]
    fn value_of_a_format_is_no_call() {
        let hermes = "<tool_call>{\\\"name\\\": \\\"add\\\", \\\"arguments\\\": {}}</tool_call>";
        let quoting = format!("{{\"a\": \"{hermes}\"}}");
        let call = "{\"name\": \"add\", \"parameters\": {}}";
        let other = "{\"name\": \"Ada\", \"parameters\": {}}";
        let schemas = Arc::new(ToolSchemas::read(&[json!({"function": {"name": "add"}})]));
        for (format, has_own_calls, answer, is_call) in [
            (ToolFormat::Llama3, false, call, false),
            (ToolFormat::Llama3, true, call, true),
            (ToolFormat::Llama3, true, other, false),
            (ToolFormat::Hermes, false, quoting.as_str(), false),
            (ToolFormat::Hermes, true, quoting.as_str(), false),
        ] {
            let tools = Tools { are_given: true, ..Tools::default() };
            let schemas = Arc::clone(&schemas);
            let mut choice = Choice::new(Reading { tools, schemas, is_formatted: true, ..Reading::default() });
            choice.take(Said::Started(AnswerForm { tool_format: format, has_own_calls, ..AnswerForm::default() }));
            let mut parts = choice.take(token(1, answer));
            parts.extend(choice.take(ended()));
            match &parts[..] {
                [ChoicePart::Call { .. }, ChoicePart::Arguments { .. }, ChoicePart::End("tool_calls", _)] => {
                    assert!(is_call, "{answer}");
                }
                [ChoicePart::Content(content, _), ChoicePart::End("stop", _)] => {
                    assert!(!is_call && content == answer, "{answer}");
                }
                _ => panic!("{parts:?}"),
            }
        }
    }

    #[test]
    fn call_behind_a_thought_in_the_content_is_found_next_to_a_format() {
        let tools = Tools { are_given: true, ..Tools::default() };
        let mut choice = Choice::new(Reading { tools, is_formatted: true, ..Reading::default() });
        let (tool_format, thinking) = (ToolFormat::Hermes, Thinking::Marked);
        choice.take(Said::Started(AnswerForm { tool_format, thinking, has_own_calls: true, ..AnswerForm::default() }));
        let text = "<think>Hm.</think>\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
        let parts = choice.take(token(1, text));
        let [ChoicePart::Content(thought, _), ChoicePart::Call { .. }, ChoicePart::Arguments { .. }] = &parts[..]
        else {
            panic!("{parts:?}")
        };
        assert_eq!(thought, "<think>Hm.</think>");
    }

    #[test]
    fn a_call_that_breaks_off_is_content_and_no_reason() {
        let mut choice = choosing(true);
        choice.take(started(ToolFormat::Hermes));
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"";
        let mut parts = choice.take(token(1, text));
        parts.extend(choice.take(ended()));
        let [
            ChoicePart::Call { .. },
            ChoicePart::Arguments { .. },
            ChoicePart::Broken,
            ChoicePart::Content(content, _),
            ChoicePart::End("stop", _),
        ] = &parts[..]
        else {
            panic!("{parts:?}")
        };
        assert_eq!(content, text);
    }

    #[test]
    fn only_one_call_is_shown_if_one_is_allowed() {
        let tools = Tools { are_given: true, is_one: true, ..Tools::default() };
        let mut choice = Choice::new(Reading { tools, ..Reading::default() });
        choice.take(started(ToolFormat::Hermes));
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>".repeat(2);
        let mut parts = choice.take(token(1, &text));
        parts.extend(choice.take(ended()));
        let [ChoicePart::Call { .. }, ChoicePart::Arguments { .. }, ChoicePart::End("tool_calls", _)] = &parts[..]
        else {
            panic!("{parts:?}")
        };
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
