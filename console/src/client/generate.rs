//! One generation on a head: events as they come, cancel when asked to.
use std::{pin::pin, time::Duration};

use shared::protocol::{
    error::{Fault, FaultKind, Loss},
    message::{Generate, RequestBody, ResponseBody},
};
use tokio::{
    sync::mpsc::Sender,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{assign::report, event::GenerateEvent, session::Session};

/// A head that says nothing for this long is asked for a report: a long prompt and a queue are silent, too.
const SILENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 500 });
/// It must answer within this, as nodes must among each other; `BRAMBLE_SILENT_MS` says otherwise where all are slow.
const SILENT_MS: u64 = if cfg!(test) { 3000 } else { 2000 };
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
    let mut silent = pin!(silence(session));
    let mut overdue = pin!(sleep(CANCEL));
    let mut cancelled = false;
    loop {
        let body = tokio::select! {
            // What has arrived is taken first: only a head that says nothing is suspected.
            biased;
            body = reply.received() => body?,
            () = cancel.cancelled(), if !cancelled => {
                cancelled = true;
                overdue.set(sleep(CANCEL));
                session.cancel(reply.id).await?;
                continue;
            }
            () = &mut overdue, if cancelled => {
                let kind = FaultKind::Timeout { what: "cancelling".into(), seconds: CANCEL.as_secs() as u32 };
                return Err(Fault::new(&session.identity.name, kind));
            }
            fault = &mut silent => return Err(fault),
        };
        silent.set(silence(session));
        match body {
            ResponseBody::Started { prompt_token_ids, .. } => {
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

/// Ends when the node does not even answer a question: it hangs, or the way to it is cut.
pub(super) async fn silence(session: &Session) -> Fault {
    loop {
        sleep(SILENCE).await;
        let lost = || Fault::new(&session.identity.name, FaultKind::NodeLost { how: Loss::Silent });
        match timeout(patience(), report(session)).await {
            Ok(Ok(_)) => {}
            Ok(Err(Fault { kind: FaultKind::Timeout { .. }, .. })) | Err(_) => return lost(),
            Ok(Err(fault)) => return fault,
        }
    }
}

fn patience() -> Duration {
    let set = std::env::var("BRAMBLE_SILENT_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(set.unwrap_or(SILENT_MS))
}

/// Whoever listened may be gone; the request goes on to its end, so that the head is left in order.
async fn tell(events: &Sender<GenerateEvent>, event: GenerateEvent) {
    let _ = events.send(event).await;
}
