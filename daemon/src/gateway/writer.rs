//! The seam between a running request and the APIs that clients speak. Each API reads its own bodies and writes its own
//! objects; admission, limits, routing and cancellation are the same for all of them. Pure.
use std::time::Duration;

use serde_json::Value;

use super::{choice::ChoicePart, cluster::ServedModel, error::ApiError, object::Usage, request::Asked};

/// A request that was read.
pub(super) enum Demand {
    /// An answer of the model, and its form.
    Answer(Box<Asked>, Box<dyn Writer>),
    /// The answer follows from the model's description; the client's name for the model.
    Known(Option<String>, Box<dyn FnOnce(&ServedModel) -> Value + Send>),
}

/// How the records of a stream are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events without names; the last is `[DONE]`.
    Events,
    /// Server-sent events without names and without an end marker.
    Endless,
    /// Server-sent events that are named after the field `type` of their objects.
    Named,
    /// A JSON object a line.
    Lines,
}

/// Counts and times of a running request.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) usage: Usage,
    /// Whether all choices have ended.
    pub(super) is_complete: bool,
    /// Timings of the first choice, once all have ended.
    pub(super) timings: Value,
    /// Time since the request was accepted, at the end of the latest choice.
    pub(super) elapsed: Duration,
}

/// Writes an answer in the form of one API: a stream of records or one object.
pub(super) trait Writer: Send {
    /// How its streams are framed.
    fn framing(&self) -> Framing;

    /// The field of its requests that holds the prompt.
    fn prompt_field(&self) -> &'static str;

    /// Takes the name and the fingerprint of the model, before the first part.
    fn begin(&mut self, model: &str, fingerprint: &str);

    /// The records for a part of the choice with this index.
    fn stream(&mut self, index: usize, part: ChoicePart, tally: &Tally) -> Vec<Value>;

    /// The records after the last part.
    fn finish(&mut self, tally: &Tally) -> Vec<Value>;

    /// The records for an error after the stream has begun.
    fn fail(&mut self, error: &ApiError) -> Vec<Value>;

    /// An event that shows a client in a long silence that its answer is still computed; `None`: it needs none, a comment
    /// keeps the connection alive.
    fn alive(&mut self, _: &Tally) -> Option<Value> {
        None
    }

    /// Takes a part for the one object.
    fn keep(&mut self, index: usize, part: ChoicePart);

    /// The one object.
    fn whole(&mut self, tally: &Tally) -> Value;
}

impl Framing {
    /// The content type of a stream.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Events | Self::Endless | Self::Named => "text/event-stream; charset=utf-8",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// A record as it is sent.
    pub(super) fn record(self, object: &Value) -> String {
        match self {
            Self::Events | Self::Endless => format!("data: {object}\n\n"),
            Self::Named => format!("event: {}\ndata: {object}\n\n", object["type"].as_str().unwrap_or("error")),
            Self::Lines => format!("{object}\n"),
        }
    }

    /// Bytes that keep a silent connection alive; clients ignore them.
    pub(super) fn keep_alive(self) -> &'static str {
        match self {
            Self::Events | Self::Endless | Self::Named => ": keep-alive\n\n",
            // White space before the next object.
            Self::Lines => " ",
        }
    }

    /// The end marker.
    pub(super) fn end(self) -> Option<&'static str> {
        (self == Self::Events).then_some("data: [DONE]\n\n")
    }
}
