//! Takes the body of a request off its connection and parses it, in the same way for all paths: a request that is
//! refused for its head takes no memory, long bodies are parsed on a thread of their own, and the connection stays
//! until the answer.
use axum::{extract::Request, http::header};

use super::{
    Gateway,
    bodies::{Received, SHORT_BYTES},
    complete::ReceivedRequest,
    connections::{Visit, Working},
    error::ApiError,
    outline::Bounds,
    pages,
    pool::Held,
};

/// A request whose body was read.
pub(super) struct Intake<T> {
    pub(super) parsed: T,
    /// The reservation of the body in the budget, to be kept until the answer.
    pub(super) held: Held,
    /// Whether the body was long: its parsed form may need less memory.
    pub(super) is_long: bool,
    pub(super) arrival: ReceivedRequest,
    /// The client waits for this node and not vice versa: its connection must not be evicted.
    pub(super) working: Option<Working>,
}

/// Reads and parses the body of a request. One that needs a slot is refused before its body is read if the queue is full.
///
/// # Errors
/// The body cannot be read, or `parse` refuses it.
pub(super) async fn receive<T: Send + 'static>(
    gateway: &Gateway,
    request: Request,
    needs_slot: bool,
    parse: impl FnOnce(&[u8], &ReceivedRequest, Bounds) -> Result<T, ApiError> + Send + 'static,
) -> Result<Intake<T>, ApiError> {
    let (parts, body) = request.into_parts();
    let arrival = parts.extensions.get::<ReceivedRequest>().cloned();
    let arrival = arrival.expect("every request passes the layer that adds it");
    pages::json(parts.uri.path(), &parts.headers)?;
    // The layer that decodes bodies removes the encodings that it supports.
    let encoding = parts.headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity");
    if let Some(encoding) = encoding {
        return Err(ApiError::unknown_encoding(encoding.to_str().unwrap_or_default()));
    }
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if let Some(waiting) = gateway.admission.is_full().filter(|_| needs_slot) {
        return Err(ApiError::queue_full(waiting, gateway.retry_after()));
    }
    let Received { bytes, held } = gateway.bodies.receive(body, length).await?;
    let working = parts.extensions.get::<Visit>().map(Visit::working);
    // The body names the model.
    let models = gateway.cluster.models();
    let bounds = Bounds { context: models.iter().map(|model| model.topology.context_length as usize).max() };
    let is_long = bytes.len() > SHORT_BYTES;
    let parsed = if is_long {
        let arrival = arrival.clone();
        gateway.parsing.run(bytes.len(), move || parse(&bytes, &arrival, bounds)).await?
    } else {
        parse(&bytes, &arrival, bounds)?
    };
    Ok(Intake { parsed, held, is_long, arrival, working })
}
