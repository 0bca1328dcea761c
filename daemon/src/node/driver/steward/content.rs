//! Whether a member still holds the weights that the topology was committed with: asked before it is brought up again, and before a
//! vote on a topology that the member joins.
use std::{sync::Arc, time::Duration};

use shared::{
    protocol::{
        error::{Fault, FaultKind},
        message::{RequestBody, ResponseBody},
        models::{ModelsRequest, ModelsResponse},
        session::Session,
    },
    topology::Topology,
};

use super::peers::unexpected;

/// A member that hashes its file must say something within this.
const WORD: Duration = Duration::from_secs(60);
/// The wire version in which nodes know the content of a model.
const VERSION: u16 = 5;

/// Asks a member for the content of its file, which it hashes if that changed, and compares. Without a known content, the identity of
/// the file's header is compared.
///
/// # Errors
/// It holds other weights, cannot read its file, or does not answer for too long.
pub(super) async fn check(topology: Topology, session: Arc<Session>) -> Result<(), Fault> {
    let Some(expected) = topology.content.filter(|_| session.version >= VERSION) else {
        return check_identity(topology, &session).await;
    };
    let model = topology.model;
    let ask = ModelsRequest::Content { model: model.clone() };
    let mut reply = session.ask(RequestBody::Models(Box::new(ask))).await?;
    loop {
        let ResponseBody::Models(response) = reply.next("hashing its model file", WORD).await? else {
            return Err(unexpected(&session));
        };
        match *response {
            ModelsResponse::Working { .. } => {}
            ModelsResponse::Content(actual) if actual == expected => return Ok(()),
            ModelsResponse::Content(actual) => {
                let kind =
                    FaultKind::ContentDiffers { model, expected: Box::new(expected), actual, holders: String::new() };
                return Err(Fault::new(&session.identity.name, kind));
            }
            _ => return Err(unexpected(&session)),
        }
    }
}

async fn check_identity(topology: Topology, session: &Session) -> Result<(), Fault> {
    let (model, expected) = (topology.model, topology.identity);
    let mut reply = session.ask(RequestBody::Identify { model: model.clone() }).await?;
    match reply.next("reading its model file", WORD).await? {
        ResponseBody::Model(card) if card.identity == expected => Ok(()),
        ResponseBody::Model(card) => {
            let kind = FaultKind::ModelDiffers { model, expected, actual: card.identity };
            Err(Fault::new(&session.identity.name, kind))
        }
        _ => Err(unexpected(session)),
    }
}
