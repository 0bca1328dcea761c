//! Anthropic's Messages API over the path of chats: reads its bodies, writes its events and messages, and its errors.
//! Pure.
mod events;
mod request;
#[cfg(test)]
mod tests;

use protocol::texts::TextRequest;
use serde_json::{Value, json};

use self::events::MessageWriter;
use super::{
    Gateway,
    complete::ReceivedRequest,
    conversation,
    error::ApiError,
    outline::{Bounds, Outline},
    request::{Kind, build},
    writer::Demand,
};

/// Reads the body of a message.
///
/// # Errors
/// The first invalid field.
pub(super) fn read(_: &Gateway, body: &[u8], arrival: &ReceivedRequest, _: Bounds) -> Result<Demand, ApiError> {
    let fields = Outline::read(body)?.values(&request::FIELDS)?;
    let asked = build(Kind::Chat, request::chat(fields)?, Vec::new(), arrival.seed)?;
    Ok(Demand::Answer(Box::new(asked), Box::new(MessageWriter::new(&arrival.id))))
}

/// Reads a body whose tokens are counted.
///
/// # Errors
/// The first invalid field.
pub(super) fn count(body: &[u8], _: Bounds) -> Result<TextRequest, ApiError> {
    let fields = Outline::read(body)?.values(&request::FIELDS)?;
    let chat = Box::new(conversation::read(&mut request::chat(fields)?)?.chat);
    Ok(TextRequest::TokenizeChat { chat, with_pieces: false })
}

/// An error as an object of this API.
pub(super) fn error(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message()}})
}
