//! Answers to questions about the model's texts: they come from the threads that prepare requests.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{Response, ResponseBody},
    texts::TextRequest,
};
use tokio::time::timeout;

use super::{running::RunningEngine, sessions::OpenSessions};
use crate::node::event::ReplyTo;

/// Longest wait for an answer, behind all that wait before it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers a question with the texts of the running engine.
pub(super) fn answer(to: ReplyTo, request: TextRequest, engine: Option<&RunningEngine>, sessions: &mut OpenSessions) {
    let ReplyTo { session, id } = to;
    let Some(outbox) = sessions.outbox(session).cloned() else { return };
    let asked = outbox.question().and_then(|permit| {
        let texts = engine.and_then(RunningEngine::text).ok_or(FaultKind::NotHead)?;
        Ok((permit, texts.ask(request)?))
    });
    let (permit, answer) = match asked {
        Ok(asked) => asked,
        Err(kind) => return sessions.refuse(session, id, kind),
    };
    let name = sessions.name().to_owned();
    tokio::spawn(async move {
        let answer = match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            // The engine has ended.
            Ok(Err(_)) => Err(FaultKind::Draining),
            Err(_) => {
                Err(FaultKind::Timeout { what: "an answer about texts".into(), seconds: PATIENCE.as_secs() as u32 })
            }
        };
        drop(permit);
        let body = match answer {
            Ok(response) => ResponseBody::Text(Box::new(response)),
            Err(kind) => ResponseBody::Failed(Fault::new(&name, kind)),
        };
        // A session that is gone needs no answer; one that does not read ends by itself.
        outbox.send(Response { id, body }).await;
    });
}
