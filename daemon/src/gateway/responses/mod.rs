//! OpenAI's Responses API over the path of chats: reads its bodies, writes its events and objects, and keeps what a later
//! request continues.
mod events;
mod items;
mod request;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use self::{
    events::ResponseWriter,
    request::{ResponsesRequest, translate},
    store::new_id,
};
use super::{
    Gateway,
    choice::ChoicePart,
    complete::ReceivedRequest,
    error::ApiError,
    outline::{Bounds, Outline},
    request::{Kind, build},
    typed_json::Fields,
    writer::{Demand, Framing, Tally, Writer},
};

pub(super) use store::ResponseStore;

/// Reads the body of a request for a response.
///
/// # Errors
/// The first invalid field, or an earlier response that is not kept.
pub(super) fn read(gateway: &Gateway, body: &[u8], arrival: &ReceivedRequest, _: Bounds) -> Result<Demand, ApiError> {
    let fields = Outline::read(body)?.values(&request::FIELDS)?;
    let earlier = match Fields(&fields).text("previous_response_id")? {
        None => Vec::new(),
        Some(id) => gateway.responses.messages(id).ok_or_else(|| ApiError::no_earlier_response(id))?,
    };
    let is_kept = Fields(&fields).get("store") != Some(&Value::Bool(false));
    let ResponsesRequest { chat, messages, echo } = translate(fields, earlier, |id| gateway.responses.item(id))?;
    let asked = build(Kind::Chat, chat, Vec::new(), arrival.seed)?;
    let id = new_id().map_err(|why| ApiError::not_serving("not_serving", why.into(), 1))?;
    let writer = ResponseWriter::new(id, arrival.created, echo);
    let store = is_kept.then(|| Arc::clone(&gateway.responses));
    Ok(Demand::Answer(Box::new(asked), Box::new(KeepingWriter { writer, messages, store })))
}

/// Returns a response that is kept.
pub(super) async fn get(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    gateway.responses.object(&id).map(Json).ok_or_else(|| ApiError::no_such_response(&id))
}

/// Deletes a response that is kept.
pub(super) async fn delete(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if !gateway.responses.delete(&id) {
        return Err(ApiError::no_such_response(&id));
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// Writes a response and keeps it at its end.
struct KeepingWriter {
    writer: ResponseWriter,
    /// The conversation before the answer.
    messages: Vec<Value>,
    /// `None`: it is not kept.
    store: Option<Arc<ResponseStore>>,
}

impl KeepingWriter {
    fn store(&mut self, tally: &Tally) {
        if let Some(store) = self.store.take() {
            self.messages.extend(self.writer.message());
            store.keep(&self.writer.id(), &self.writer.object(tally), &self.messages);
        }
    }
}

impl Writer for KeepingWriter {
    fn framing(&self) -> Framing {
        Framing::Named
    }

    fn prompt_field(&self) -> &'static str {
        "input"
    }

    fn begin(&mut self, model: &str, _: &str) {
        self.writer.begin(model);
    }

    fn stream(&mut self, _: usize, part: ChoicePart, tally: &Tally) -> Vec<Value> {
        self.writer.stream(part, tally)
    }

    fn finish(&mut self, tally: &Tally) -> Vec<Value> {
        self.store(tally);
        self.writer.finish(tally)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        self.writer.fail(error)
    }

    fn alive(&mut self, tally: &Tally) -> Option<Value> {
        self.writer.alive(tally)
    }

    fn keep(&mut self, _: usize, part: ChoicePart) {
        self.writer.keep(part);
    }

    fn whole(&mut self, tally: &Tally) -> Value {
        self.store(tally);
        self.writer.object(tally)
    }
}
