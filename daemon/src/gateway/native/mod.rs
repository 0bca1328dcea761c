//! llama-server's own completion, POST /completion: one prompt, and an answer with the ids and statistics that programs
//! for llama.cpp read. Pure.
mod body;

use common::chat::FinishReason;
use protocol::message::TokenLogprob;
use serde_json::{Value, json};

use self::body::NativeForm;
use super::{
    Gateway,
    answer::Ended,
    choice::{ChoicePart, TokenLogprobs},
    complete::ReceivedRequest,
    error::ApiError,
    outline::Bounds,
    writer::{Demand, Framing, Tally, Writer},
};

/// Reads a body.
///
/// # Errors
/// The first invalid field.
pub(super) fn read(_: &Gateway, body: &[u8], arrival: &ReceivedRequest, bounds: Bounds) -> Result<Demand, ApiError> {
    let (asked, form) = body::read(body, arrival.seed, bounds)?;
    Ok(Demand::Answer(Box::new(asked), Box::new(NativeWriter { form, ..NativeWriter::default() })))
}

/// Writes the answer to one prompt.
#[derive(Default)]
struct NativeWriter {
    form: NativeForm,
    model: String,
    content: String,
    /// All tokens, or in a stream those whose text has not come.
    tokens: Vec<u32>,
    predicted: usize,
    /// Log probabilities for the one object.
    shown: Vec<TokenLogprobs>,
    end: Option<Box<Ended>>,
}

impl NativeWriter {
    /// The end of the answer, without its text.
    fn end(&self, ended: &Ended, tally: &Tally) -> Value {
        let NativeForm { has_stops, is_prompt_only, settings, .. } = &self.form;
        let stop_type = match ended.reason {
            _ if *is_prompt_only => "limit",
            // An end token is sampled, but not a part of the answer.
            FinishReason::Stop if ended.finished.times.sampled_tokens as usize > ended.tokens => "eos",
            FinishReason::Stop if !has_stops => "eos",
            FinishReason::Stop => "word",
            FinishReason::Length | FinishReason::Context => "limit",
            FinishReason::Cancelled => "none",
        };
        json!({
            "index": 0,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": true,
            "stop_type": stop_type,
            "stopping_word": "",
            "model": self.model,
            "tokens_predicted": tally.usage.completion,
            "tokens_evaluated": ended.prompt_tokens,
            "tokens_cached": ended.finished.times.cached_tokens,
            "truncated": false,
            "generation_settings": settings,
            "timings": tally.timings,
        })
    }

    /// The log probabilities of tokens, if they are wanted.
    fn probabilities(&self, shown: &[TokenLogprobs]) -> impl Iterator<Item = Value> {
        let most = self.form.probabilities.unwrap_or_default();
        shown.iter().filter_map(move |one| {
            let mut object = probability(one.own.as_ref()?);
            object["top_logprobs"] = one.top.iter().take(most).map(probability).collect();
            Some(object)
        })
    }
}

impl Writer for NativeWriter {
    fn framing(&self) -> Framing {
        Framing::Endless
    }

    fn prompt_field(&self) -> &'static str {
        "prompt"
    }

    fn begin(&mut self, model: &str, _: &str) {
        self.model = model.into();
    }

    fn stream(&mut self, _: usize, part: ChoicePart, tally: &Tally) -> Vec<Value> {
        match part {
            ChoicePart::Token(id) => {
                self.tokens.push(id);
                self.predicted += 1;
                Vec::new()
            }
            ChoicePart::Content(text, shown) => vec![json!({
                "index": 0,
                "content": text,
                "tokens": std::mem::take(&mut self.tokens),
                "stop": false,
                "id_slot": -1,
                "tokens_evaluated": tally.usage.prompt,
                "tokens_predicted": self.predicted,
                "completion_probabilities": self.probabilities(&shown).collect::<Vec<_>>(),
            })],
            ChoicePart::End(_, ended) => {
                let mut end = self.end(&ended, tally);
                end["tokens"] = std::mem::take(&mut self.tokens).into();
                vec![end]
            }
            _ => Vec::new(),
        }
    }

    fn finish(&mut self, _: &Tally) -> Vec<Value> {
        Vec::new()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.object()]
    }

    fn keep(&mut self, _: usize, part: ChoicePart) {
        match part {
            ChoicePart::Token(id) => self.tokens.push(id),
            ChoicePart::Content(text, shown) => {
                self.content.push_str(&text);
                self.shown.extend(shown);
            }
            ChoicePart::End(_, ended) => self.end = Some(ended),
            _ => {}
        }
    }

    fn whole(&mut self, tally: &Tally) -> Value {
        let ended = self.end.take().unwrap_or_default();
        let mut whole = self.end(&ended, tally);
        whole["content"] = std::mem::take(&mut self.content).into();
        if self.form.with_tokens {
            whole["tokens"] = std::mem::take(&mut self.tokens).into();
        }
        if self.form.probabilities.is_some() {
            let shown = std::mem::take(&mut self.shown);
            whole["completion_probabilities"] = self.probabilities(&shown).collect();
        }
        whole
    }
}

/// A log probability in llama-server's form.
fn probability(token: &TokenLogprob) -> Value {
    let bytes = if token.bytes.is_empty() { token.text.as_bytes() } else { &token.bytes };
    json!({"id": token.id, "token": token.text, "bytes": bytes, "logprob": token.logprob})
}
