//! Ollama's API over the path of chats: reads its bodies, writes its records and errors, and describes the served model
//! in its words.
mod catalog;
mod records;
mod request;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

#[cfg(fuzzing)]
pub(super) use self::catalog::shown;
pub(super) use self::catalog::{running, show, tags, version};
use self::{
    records::{RecordWriter, Shape},
    request::OllamaRequest,
};
use super::{
    Gateway,
    cluster::ServedModel,
    complete::ReceivedRequest,
    error::ApiError,
    outline::{Bounds, Outline},
    request::build,
    writer::{Demand, Writer},
};

/// Reads the body of a chat.
///
/// # Errors
/// The first invalid field.
pub(super) fn chat(_: &Gateway, body: &[u8], arrival: &ReceivedRequest, _: Bounds) -> Result<Demand, ApiError> {
    demand(request::chat(Outline::read(body)?.values(&request::FIELDS)?)?, Shape::Message, arrival)
}

/// Reads the body of a completion.
///
/// # Errors
/// The first invalid field.
pub(super) fn generate(_: &Gateway, body: &[u8], arrival: &ReceivedRequest, _: Bounds) -> Result<Demand, ApiError> {
    demand(request::generate(Outline::read(body)?.values(&request::FIELDS)?)?, Shape::Response, arrival)
}

fn demand(translated: OllamaRequest, shape: Shape, arrival: &ReceivedRequest) -> Result<Demand, ApiError> {
    let OllamaRequest { kind, chat, prompts, name } = translated;
    let mut writer = RecordWriter::new(shape, name, &arrival.id, arrival.created);
    if prompts.is_empty() && chat.get("messages").is_none_or(|messages| messages.as_array().is_none_or(Vec::is_empty)) {
        // It asks for the model to be loaded.
        let name = chat.get("model").and_then(Value::as_str).map(Into::into);
        let loaded = Box::new(move |served: &ServedModel| {
            writer.begin(&served.topology.model, "");
            writer.loaded()
        });
        return Ok(Demand::Known(name, loaded));
    }
    let asked = build(kind, chat, prompts, arrival.seed)?;
    Ok(Demand::Answer(Box::new(asked), Box::new(writer)))
}

/// An error as an object of this API.
pub(super) fn error(error: &ApiError) -> Value {
    json!({"error": error.message()})
}
