//! Which model a node has.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use models::limits::BLOCK_COUNT_MAX;
use protocol::{
    message::{ModelCard, RequestBody, ResponseBody},
    session::Session,
};

/// Time limit for a report.
pub const REPORT: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });

/// The name of a node in faults.
pub fn error_node(session: &Session) -> String {
    session.identity.name.clone()
}

/// Checks that all nodes speak at least a version of the wire, which `what` needs.
///
/// # Errors
/// A node is older.
pub(crate) fn all_speak(sessions: &[Arc<Session>], version: u16, what: &str) -> Result<(), Fault> {
    let Some(older) = sessions.iter().find(|session| session.version < version) else { return Ok(()) };
    Err(Fault::new(error_node(older), FaultKind::PeerOlder { version: older.version, what: what.into() }))
}

/// The fault of a response that does not fit its request.
pub fn unexpected(session: &Session, body: &ResponseBody) -> Fault {
    let name = format!("{body:?}");
    let reason = format!("unexpected response {}", name.chars().take(40).collect::<String>());
    Fault::new(error_node(session), FaultKind::Malformed { reason })
}

/// The card of a model, as a node reads it.
///
/// # Errors
/// The node has no model of that name, or its card is invalid.
pub async fn identify(session: &Session, model: &str) -> Result<ModelCard, Fault> {
    let mut reply = session.ask(RequestBody::Identify { model: model.into() }).await?;
    match reply.next("reading the model's header", REPORT).await? {
        ResponseBody::Model(card) if is_sound(&card) => Ok(card),
        ResponseBody::Model(card) => {
            let (layers, sizes) = (card.block_count, card.layer_bytes.len());
            let reason = format!("invalid sizes of {model}: {layers} layers, but byte sizes of {sizes}");
            Err(Fault::new(error_node(session), FaultKind::Malformed { reason }))
        }
        other => Err(unexpected(session, &other)),
    }
}

/// Whether the layers can be split. Their number comes from the node, and splitting takes quadratic time. Planning
/// indexes `sizes` by layer.
pub(super) fn is_sound(card: &ModelCard) -> bool {
    let count = card.layer_bytes.len() as u64;
    let is_split = (1..=BLOCK_COUNT_MAX).contains(&count) && count == u64::from(card.block_count);
    is_split && card.sizes().is_ok_and(|sizes| count == sizes.layers.len() as u64)
}
