//! Checks whether a member still holds the weights that the topology was committed with: before recovery brings it up
//! again, and before a vote on a topology that the member joins.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{RequestBody, ResponseBody},
    models::{ModelsRequest, ModelsResponse},
    session::Session,
};
use topology::Topology;

/// Longest silence of a member that hashes its file.
const WORD: Duration = Duration::from_secs(60);
/// The wire version since which nodes report the content hash of a model.
const VERSION: u16 = 5;

/// Requests the content hash of a member's file and compares it; the member hashes the file again if it changed. If the
/// hash is unknown, the identity of the file's header is compared.
///
/// # Errors
/// The member holds other weights, cannot read its file, or is silent for too long.
pub(super) async fn check(topology: Topology, session: Arc<Session>) -> Result<(), Fault> {
    let Some(expected) = topology.content.filter(|_| session.version >= VERSION) else {
        return check_identity(topology, &session).await;
    };
    let model = topology.model;
    let ask = ModelsRequest::Content { model: model.clone() };
    let mut reply = session.ask(RequestBody::Models(Box::new(ask))).await?;
    loop {
        let ResponseBody::Models(response) = reply.next("hashing its model file", WORD).await? else {
            return Err(session.unexpected());
        };
        match *response {
            ModelsResponse::Working { .. } => {}
            ModelsResponse::Content(actual) if actual == expected => return Ok(()),
            ModelsResponse::Content(actual) => {
                let kind =
                    FaultKind::ContentDiffers { model, expected: Box::new(expected), actual, holders: String::new() };
                return Err(Fault::new(&session.identity.name, kind));
            }
            _ => return Err(session.unexpected()),
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
        _ => Err(session.unexpected()),
    }
}
