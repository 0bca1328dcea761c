//! Model files of nodes, over a session: a request with its progress and response.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use protocol::{
    message::{RequestBody, ResponseBody},
    models::{ModelFile, ModelsRequest, ModelsResponse, Step},
    session::Session,
};

use crate::identify::unexpected;

/// Longest time without a message from the node: it may have to retry a download server several times.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time limit for a list of files: the node reads the header of each, perhaps while its disk is busy.
const LIST: Duration = Duration::from_secs(20);

/// Progress callback: step, bytes done, total bytes if known.
pub type ModelProgress<'a> = dyn Fn(Step, Bytes, Option<Bytes>) + Sync + 'a;

/// Sends a request to a node and waits for the final response.
///
/// # Errors
/// The node refuses or fails, or is silent for too long.
pub async fn ask(session: &Session, request: ModelsRequest, told: &ModelProgress<'_>) -> Result<ModelsResponse, Fault> {
    let mut reply = session.ask(RequestBody::Models(Box::new(request))).await?;
    loop {
        match reply.next("progress with model files", PATIENCE).await? {
            ResponseBody::Models(response) => match *response {
                ModelsResponse::Working { step, done, total } => told(step, done, total),
                other => return Ok(other),
            },
            other => return Err(unexpected(session, &other)),
        }
    }
}

/// Like [`ask`], for requests whose response is a file.
///
/// # Errors
/// See [`ask`].
pub async fn stored(session: &Session, request: ModelsRequest, told: &ModelProgress<'_>) -> Result<ModelFile, Fault> {
    match ask(session, request, told).await? {
        ModelsResponse::Stored(file) => Ok(file),
        other => Err(odd(session, &other)),
    }
}

/// The model files of a node.
///
/// # Errors
/// The node refuses or fails, or does not answer for 20 s.
pub async fn list(session: &Session) -> Result<Vec<ModelFile>, Fault> {
    let mut reply = session.ask(RequestBody::Models(Box::new(ModelsRequest::List))).await?;
    match reply.next("a list of model files", LIST).await? {
        ResponseBody::Models(response) => match *response {
            ModelsResponse::Listed(files) => Ok(files),
            other => Err(odd(session, &other)),
        },
        other => Err(unexpected(session, &other)),
    }
}

/// The fault of a response that does not fit its request.
pub fn odd(session: &Session, response: &ModelsResponse) -> Fault {
    let kind = FaultKind::Malformed { reason: format!("unexpected response {response:?}") };
    Fault::new(&session.identity.name, kind)
}
