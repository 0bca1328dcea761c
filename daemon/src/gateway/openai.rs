//! OpenAI's completions and chats: reads their bodies, and writes chunks or complete answers. Pure.
use serde_json::Value;

use super::{
    Gateway,
    choice::ChoicePart,
    complete::ReceivedRequest,
    error::ApiError,
    object::{Common, Whole},
    outline::Bounds,
    request::{self, Kind},
    writer::{Demand, Framing, Tally, Writer},
};

/// Writes the choices of a completion or a chat.
struct ChoiceWriter {
    common: Common,
    choices: Vec<Whole>,
    /// Bytes of each choice so far.
    offsets: Vec<usize>,
    with_logprobs: bool,
    includes_usage: bool,
}

/// Reads the body of a completion.
///
/// # Errors
/// The first invalid field.
pub(super) fn completion(
    _: &Gateway,
    body: &[u8],
    arrival: &ReceivedRequest,
    bounds: Bounds,
) -> Result<Demand, ApiError> {
    read(Kind::Completion, body, arrival, bounds)
}

/// Reads the body of a chat.
///
/// # Errors
/// The first invalid field.
pub(super) fn chat(_: &Gateway, body: &[u8], arrival: &ReceivedRequest, bounds: Bounds) -> Result<Demand, ApiError> {
    read(Kind::Chat, body, arrival, bounds)
}

fn read(kind: Kind, body: &[u8], arrival: &ReceivedRequest, bounds: Bounds) -> Result<Demand, ApiError> {
    let asked = request::read(kind, body, arrival.seed, bounds)?;
    let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
    let common = Common {
        kind,
        is_legacy: asked.is_legacy,
        id: format!("{prefix}-{}", arrival.id),
        created: arrival.created,
        model: String::new(),
        fingerprint: String::new(),
    };
    let count = asked.choices.len();
    let writer = ChoiceWriter {
        common,
        choices: (0..count).map(|_| Whole::default()).collect(),
        offsets: vec![0; count],
        with_logprobs: asked.reading.logprobs.is_some(),
        includes_usage: asked.includes_usage,
    };
    Ok(Demand::Answer(Box::new(asked), Box::new(writer)))
}

impl Writer for ChoiceWriter {
    fn framing(&self) -> Framing {
        Framing::Events
    }

    fn prompt_field(&self) -> &'static str {
        self.common.kind.prompt_field()
    }

    fn begin(&mut self, model: &str, fingerprint: &str) {
        (self.common.model, self.common.fingerprint) = (model.into(), fingerprint.into());
    }

    fn stream(&mut self, index: usize, part: ChoicePart, tally: &Tally) -> Vec<Value> {
        let mut chunk = self.common.part(index, &part, self.with_logprobs, &mut self.offsets[index]);
        if let Some(chunk) = chunk.as_mut().filter(|_| tally.is_complete) {
            chunk["timings"] = tally.timings.clone();
        }
        chunk.into_iter().collect()
    }

    fn finish(&mut self, tally: &Tally) -> Vec<Value> {
        self.includes_usage.then(|| self.common.usage_chunk(tally.usage)).into_iter().collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.object()]
    }

    fn keep(&mut self, index: usize, part: ChoicePart) {
        self.common.add(index, &mut self.choices[index], part);
    }

    fn whole(&mut self, tally: &Tally) -> Value {
        self.common.whole(&self.choices, self.with_logprobs, tally.usage, tally.timings.clone())
    }
}
