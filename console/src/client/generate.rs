//! One generation on a head: events as they come, cancel when asked to. Where the head is lost, another replica's goes on.
use std::{pin::pin, sync::Arc, time::Duration};

use shared::protocol::{
    error::{Fault, FaultClass, FaultKind, Loss},
    message::{Generate, Prompt, RequestBody, ResponseBody, TokenEvent},
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

/// Runs a request to its end on the first of the nodes; every event goes to `events`, the last is `Finished` or `Failed`. If that one is
/// lost, the first other one that serves goes on with what is there of the answer, and no text comes twice.
pub async fn generate(
    nodes: &[Arc<Session>],
    request: Generate,
    cancel: &CancellationToken,
    events: &Sender<GenerateEvent>,
) {
    let mut answer = Answer { request, has_begun: false, rest: None };
    let mut lost: Option<Fault> = None;
    for session in nodes {
        let fault = match run(session, &mut answer, cancel, events).await {
            Ok(()) => return,
            Err(fault) => fault,
        };
        let is_loss = matches!(fault.kind.class(), FaultClass::Lost | FaultClass::Unreachable);
        // Who serves nothing, or is no head, says so at once: what was lost before stays the reason.
        let may_go_on = !cancel.is_cancelled() && (is_loss || lost.is_some());
        lost.get_or_insert(fault);
        if !may_go_on {
            break;
        }
    }
    if let Some(fault) = lost {
        tell(events, GenerateEvent::Failed(fault)).await;
    }
}

/// A request, and what is there of its answer.
struct Answer {
    request: Generate,
    has_begun: bool,
    /// Text without a token, until the end is there, too: whoever goes on would tell it again.
    rest: Option<TokenEvent>,
}

async fn run(
    session: &Session,
    answer: &mut Answer,
    cancel: &CancellationToken,
    events: &Sender<GenerateEvent>,
) -> Result<(), Fault> {
    answer.rest = None;
    let mut reply = session.ask(RequestBody::Generate(Box::new(answer.request.clone()))).await?;
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
                answer.request.prompt = Prompt::Tokens(prompt_token_ids.clone());
                if !std::mem::replace(&mut answer.has_begun, true) {
                    tell(events, GenerateEvent::Started { prompt_token_ids }).await;
                }
            }
            ResponseBody::Token(token) => match token.id {
                Some(id) => {
                    answer.request.resumed.push(id);
                    tell(events, GenerateEvent::Token(token)).await;
                }
                None => answer.rest = Some(token),
            },
            ResponseBody::Finished(finished) => {
                if let Some(rest) = answer.rest.take() {
                    tell(events, GenerateEvent::Token(rest)).await;
                }
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
