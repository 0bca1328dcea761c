//! One generation on a head: events as they come, cancel when asked to.
use std::time::Duration;

use shared::protocol::{
    error::{Fault, FaultKind},
    message::{Generate, RequestBody, ResponseBody},
};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::{event::GenerateEvent, session::Session};

/// A head says something at least this often, or it counts as gone. Its own watch over the other ranks is much shorter.
const TOKEN: Duration = Duration::from_secs(300);
/// A cancelled request must end within this.
const CANCEL: Duration = Duration::from_secs(10);

/// Runs a request to its end; every event goes to `events`, the last is `Finished` or `Failed`.
pub async fn generate(
    session: &Session,
    request: Generate,
    cancel: &CancellationToken,
    events: &Sender<GenerateEvent>,
) {
    if let Err(fault) = run(session, request, cancel, events).await {
        tell(events, GenerateEvent::Failed(fault)).await;
    }
}

async fn run(
    session: &Session,
    request: Generate,
    cancel: &CancellationToken,
    events: &Sender<GenerateEvent>,
) -> Result<(), Fault> {
    let mut reply = session.ask(RequestBody::Generate(Box::new(request))).await?;
    let mut cancelled = false;
    loop {
        let patience = if cancelled { CANCEL } else { TOKEN };
        let body = tokio::select! {
            body = reply.next("the next token", patience) => body?,
            () = cancel.cancelled(), if !cancelled => {
                cancelled = true;
                session.cancel(reply.id).await?;
                continue;
            }
        };
        match body {
            ResponseBody::Started { prompt_token_ids } => {
                tell(events, GenerateEvent::Started { prompt_token_ids }).await
            }
            ResponseBody::Token(token) => tell(events, GenerateEvent::Token(token)).await,
            ResponseBody::Finished(finished) => {
                tell(events, GenerateEvent::Finished(Box::new(finished))).await;
                return Ok(());
            }
            other => {
                let name: String = format!("{other:?}").chars().take(40).collect();
                let kind = FaultKind::Malformed { reason: format!("unexpected answer {name}") };
                return Err(Fault::new(&session.identity.name, kind));
            }
        }
    }
}

/// Whoever listened may be gone; the request goes on to its end, so that the head is left in order.
async fn tell(events: &Sender<GenerateEvent>, event: GenerateEvent) {
    let _ = events.send(event).await;
}
