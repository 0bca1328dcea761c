//! The JSON objects of OpenAI's API: complete answers and chunks, usage, models.
use protocol::message::TokenLogprob;
use serde_json::{Value, json};

use super::{
    choice::{ChoicePart, TokenLogprobs},
    request::Kind,
};

/// Fields common to all objects of one answer.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) kind: Kind,
    /// Whether calls are written as in OpenAI's older `function_call`.
    pub(super) is_legacy: bool,
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    /// Identifies the computation: the same fingerprint, seed and request give the same text.
    pub(super) fingerprint: String,
}

/// Tokens used by all choices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) cached: usize,
    pub(super) completion: usize,
    /// Those of the completion that are thoughts.
    pub(super) reasoning: usize,
    /// Speculative tokens that became tokens of the completion.
    pub(super) accepted: usize,
    /// Those that did not; they are no part of the completion.
    pub(super) rejected: usize,
}

/// A choice in a complete answer.
#[derive(Debug, Default)]
pub(super) struct Whole {
    thought: String,
    text: String,
    shown: Vec<TokenLogprobs>,
    calls: Vec<Value>,
    finish: Option<&'static str>,
}

impl Usage {
    fn object(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        })
    }
}

impl Common {
    fn object(&self, name: &str, choices: Value) -> Value {
        let Self { id, created, model, fingerprint, .. } = self;
        json!({
            "id": id, "object": name, "created": created, "model": model, "system_fingerprint": fingerprint, "choices": choices,
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        self.object(if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" }, choices)
    }

    /// The chunk for a part of a choice in a stream; `offset` counts the choice's characters so far.
    pub(super) fn part(
        &self,
        index: usize,
        part: &ChoicePart,
        with_logprobs: bool,
        offset: &mut usize,
    ) -> Option<Value> {
        let (delta, logprobs, finish) = match part {
            ChoicePart::Started if self.kind == Kind::Chat => {
                (json!({"role": "assistant", "content": ""}), Value::Null, None)
            }
            // Answers with scored prompts are not streamed.
            ChoicePart::Started | ChoicePart::Scored(_) | ChoicePart::Token(_) => return None,
            // The names of llama-server and of vLLM.
            ChoicePart::Thought(text) => (json!({"reasoning_content": text, "reasoning": text}), Value::Null, None),
            ChoicePart::Content(text, shown) => {
                let logprobs = self.logprobs(shown, with_logprobs, *offset);
                *offset += text.chars().count();
                (json!({"content": text}), logprobs, None)
            }
            ChoicePart::Call { name, .. } if self.is_legacy => {
                (json!({"function_call": {"name": name, "arguments": ""}}), Value::Null, None)
            }
            ChoicePart::Arguments { text, .. } if self.is_legacy => {
                (json!({"function_call": {"arguments": text}}), Value::Null, None)
            }
            ChoicePart::Call { index: call, name } => {
                (json!({"tool_calls": [self.call(index, *call, name)]}), Value::Null, None)
            }
            ChoicePart::Arguments { index: call, text } => {
                let call = json!({"index": call, "function": {"arguments": text}});
                (json!({"tool_calls": [call]}), Value::Null, None)
            }
            // What a client has received cannot be taken back; the finish reason is not that of a call.
            ChoicePart::Broken => return None,
            ChoicePart::End(reason, _) => (json!({}), Value::Null, Some(self.finish(reason))),
        };
        let choice = match (self.kind, part) {
            (Kind::Chat, _) => json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}),
            (Kind::Completion, _) => {
                let text = delta.get("content").cloned().unwrap_or_else(|| "".into());
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
            }
        };
        Some(self.chunk(json!([choice])))
    }

    /// The chunk without choices that contains the usage.
    pub(super) fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage.object();
        chunk
    }

    /// A complete answer.
    pub(super) fn whole(&self, choices: &[Whole], with_logprobs: bool, usage: Usage, timings: Value) -> Value {
        let choices: Vec<Value> = choices
            .iter()
            .enumerate()
            .map(|(index, whole)| {
                let logprobs = self.logprobs(&whole.shown, with_logprobs, 0);
                match self.kind {
                    Kind::Completion => {
                        json!({"index": index, "text": whole.text, "logprobs": logprobs, "finish_reason": whole.finish})
                    }
                    Kind::Chat => {
                        let is_text = whole.calls.is_empty() || !whole.text.is_empty();
                        let mut message =
                            json!({"role": "assistant", "content": is_text.then_some(&whole.text), "refusal": null});
                        if !whole.thought.is_empty() {
                            message["reasoning_content"] = whole.thought.clone().into();
                            message["reasoning"] = whole.thought.clone().into();
                        }
                        match whole.calls.first() {
                            None => {}
                            Some(call) if self.is_legacy => message["function_call"] = call["function"].clone(),
                            Some(_) => message["tool_calls"] = whole.calls.clone().into(),
                        }
                        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": whole.finish})
                    }
                }
            })
            .collect();
        let name = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        let mut object = self.object(name, choices.into());
        (object["usage"], object["timings"]) = (usage.object(), timings);
        object
    }

    /// Adds a part to the complete choice with this index.
    pub(super) fn add(&self, choice: usize, whole: &mut Whole, part: ChoicePart) {
        match part {
            ChoicePart::Started | ChoicePart::Token(_) => {}
            ChoicePart::Scored(shown) => whole.shown.extend(shown),
            ChoicePart::Thought(text) => whole.thought.push_str(&text),
            ChoicePart::Content(text, shown) => {
                whole.text.push_str(&text);
                whole.shown.extend(shown);
            }
            ChoicePart::Call { index, name } => {
                let mut call = self.call(choice, index, &name);
                // Only chunks have an index in their calls.
                call.as_object_mut().map(|call| call.remove("index"));
                whole.calls.push(call);
            }
            ChoicePart::Arguments { text, .. } => {
                let call = whole.calls.last_mut().and_then(|call| call.pointer_mut("/function/arguments"));
                if let Some(Value::String(arguments)) = call {
                    arguments.push_str(&text);
                }
            }
            ChoicePart::Broken => drop(whole.calls.pop()),
            ChoicePart::End(reason, _) => whole.finish = Some(self.finish(reason)),
        }
    }

    /// The reason of an end, in the client's words.
    fn finish(&self, reason: &'static str) -> &'static str {
        if self.is_legacy && reason == "tool_calls" { "function_call" } else { reason }
    }

    /// A call of a choice; clients match results to calls by its id.
    fn call(&self, choice: usize, index: usize, name: &str) -> Value {
        let request = self.id.rsplit('-').next().unwrap_or_default();
        let id = match choice {
            0 => format!("call_{request}_{index}"),
            _ => format!("call_{request}_{choice}_{index}"),
        };
        json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}})
    }

    /// In two formats: parallel lists for completions, a list of objects for chats.
    fn logprobs(&self, shown: &[TokenLogprobs], is_wanted: bool, offset: usize) -> Value {
        if !is_wanted {
            return Value::Null;
        }
        if self.kind == Kind::Chat {
            let one = |token: &TokenLogprob| {
                let bytes = if token.bytes.is_empty() { token.text.as_bytes() } else { &token.bytes };
                json!({"token": token.text, "logprob": token.logprob, "bytes": bytes})
            };
            return json!({"content": shown.iter().filter_map(|shown| {
                let mut entry = one(shown.own.as_ref()?);
                entry["top_logprobs"] = shown.top.iter().map(one).collect();
                Some(entry)
            }).collect::<Vec<_>>()});
        }
        let mut at = offset;
        let mut offsets = Vec::new();
        for one in shown {
            offsets.push(at);
            at += one.token.chars().count();
        }
        json!({
            "tokens": shown.iter().map(|one| &one.token).collect::<Vec<_>>(),
            "token_logprobs": shown.iter().map(|one| one.own.as_ref().map(|own| own.logprob)).collect::<Vec<_>>(),
            "top_logprobs": shown.iter().map(|shown| match &shown.own {
                None => Value::Null,
                Some(_) => shown.top.iter().map(|one| (one.text.clone(), json!(one.logprob))).collect(),
            }).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(is_legacy: bool) -> Common {
        let (model, fingerprint) = ("m".into(), String::new());
        Common { kind: Kind::Chat, is_legacy, id: "chatcmpl-7".into(), created: 1, model, fingerprint }
    }

    fn call() -> ChoicePart {
        ChoicePart::Call { index: 0, name: "f".into() }
    }

    fn answer(common: &Common) -> Value {
        let mut choices = [Whole::default(), Whole::default()];
        for (index, whole) in choices.iter_mut().enumerate() {
            common.add(index, whole, call());
            common.add(index, whole, ChoicePart::Arguments { index: 0, text: "{".into() });
            common.add(index, whole, ChoicePart::Arguments { index: 0, text: "}".into() });
            common.add(index, whole, ChoicePart::End("tool_calls", Box::default()));
        }
        common.whole(&choices, false, Usage::default(), Value::Null)
    }

    #[test]
    fn calls_of_all_choices_have_ids_of_their_own() {
        let common = common(false);
        let object = answer(&common);
        let id = |index: usize| object["choices"][index]["message"]["tool_calls"][0]["id"].clone();
        assert_ne!(id(0), id(1));
        let chunk = common.part(1, &call(), false, &mut 0).expect("a chunk");
        assert_eq!(chunk["choices"][0]["delta"]["tool_calls"][0]["id"], id(1), "streams have the same ids");
    }

    #[test]
    fn older_clients_receive_function_calls() {
        let common = common(true);
        let object = answer(&common);
        let choice = &object["choices"][0];
        assert_eq!(choice["message"]["function_call"], json!({"name": "f", "arguments": "{}"}));
        assert_eq!((choice["message"].get("tool_calls"), &choice["finish_reason"]), (None, &json!("function_call")));
        let chunk = common.part(0, &call(), false, &mut 0).expect("a chunk");
        assert_eq!(chunk["choices"][0]["delta"]["function_call"]["name"], "f");
    }
}
