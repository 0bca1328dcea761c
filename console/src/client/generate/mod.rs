//! One generation on a head: events as they come, cancel when asked to. If the head is lost or the topology changes, a
//! head that serves the same model continues the answer.
use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    chat::AnswerForm,
    fault::{Fault, FaultKind, Loss},
};
use protocol::{
    losses::Losses,
    message::{Generate, Prompt, RequestBody, ResponseBody, TokenEvent},
};
use tokio::{
    sync::mpsc::Sender,
    time::{sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{assign::report, event::GenerateEvent, resume, session::Session};

/// A head that sends nothing for this long is asked for a report, because long prefills and queueing are silent,
/// too.
const SILENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 500 });
/// Time limit for that report in milliseconds, the same as between nodes. `BRAMBLE_SILENT_MS` overrides it for slow
/// machines.
const SILENT_MS: u64 = if cfg!(test) { 3000 } else { 2000 };
/// Time limit for a cancelled request to end.
const CANCEL: Duration = Duration::from_secs(10);
/// Searches longer than this are reported.
const MOMENT: Duration = Duration::from_secs(1);
/// Longest search for a head that continues the answer; the same as a gateway's default.
const RESUME: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });

/// Runs a request to its end on the first of the nodes. Every event goes to `events`; the last one is `Finished` or
/// `Failed`. If that node is lost, or the topology changes, any other node that is a head with the model of the request
/// continues the answer; no text is sent twice. A request without a model ends with its first node.
pub async fn generate(
    nodes: &[Arc<Session>],
    request: Generate,
    cancel: &CancellationToken,
    events: &Sender<GenerateEvent>,
) {
    let Some(mut session) = nodes.first().cloned() else { return };
    let (model, numeric) = (request.model.as_deref().copied(), session.identity.numeric);
    let mut answer = PartialAnswer { request, has_begun: false, rest: None, losses: Losses::default() };
    // The first fault since the latest token; later faults are its consequences.
    let mut lost: Option<(Fault, Instant)> = None;
    loop {
        let tokens = answer.request.resumed.len();
        let fault = match run(&session, &mut answer, cancel, events).await {
            Ok(()) => return,
            Err(fault) => fault,
        };
        if answer.request.resumed.len() > tokens {
            lost = None;
        }
        if let Err(end) = answer.losses.fail(&fault) {
            return tell(events, GenerateEvent::Failed(end)).await;
        }
        let is_again = lost.is_some();
        let is_over = !is_again && answer.is_refused(&fault);
        let (first, since) = lost.get_or_insert_with(|| (fault, Instant::now()));
        let Some(model) = model.filter(|_| !is_over) else {
            return tell(events, GenerateEvent::Failed(first.clone())).await;
        };
        let searching = async {
            if is_again {
                // A head that reports that it serves refused the request a moment ago.
                sleep(resume::PAUSE).await;
            }
            resume::head(nodes, &session.address, &model, numeric).await
        };
        let Some(head) = wait(searching, *since + RESUME, first, cancel, events).await else {
            return tell(events, GenerateEvent::Failed(first.clone())).await;
        };
        session = Arc::clone(&head.session);
        let (fault, resume::ServingHead { epoch, topology, member, .. }) = (first.clone(), head);
        tell(events, GenerateEvent::Moved { fault, epoch, topology, head: member }).await;
    }
}

/// Waits for a head until a deadline, and reports the wait if it exceeds [`MOMENT`]. `None` without a head, or if
/// the request is cancelled.
async fn wait(
    searching: impl Future<Output = Option<resume::ServingHead>>,
    deadline: Instant,
    fault: &Fault,
    cancel: &CancellationToken,
    events: &Sender<GenerateEvent>,
) -> Option<resume::ServingHead> {
    let mut searching = pin!(timeout_at(deadline.into(), searching));
    let mut moment = pin!(sleep(MOMENT));
    let mut is_told = false;
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return None,
            head = &mut searching => return head.ok().flatten(),
            () = &mut moment, if !is_told => {
                is_told = true;
                let seconds = deadline.saturating_duration_since(Instant::now()).as_secs() as u32;
                tell(events, GenerateEvent::Waits { fault: fault.clone(), seconds }).await;
            }
        }
    }
}

/// A request, and the part of its answer that has arrived.
struct PartialAnswer {
    request: Generate,
    has_begun: bool,
    /// Text without a token, held back until the end, because a head that continues the answer would send it again.
    rest: Option<TokenEvent>,
    losses: Losses,
}

impl PartialAnswer {
    /// Whether the node refused the request before it started.
    fn is_refused(&self, fault: &Fault) -> bool {
        let refuses = matches!(
            fault.kind,
            FaultKind::NotHead
                | FaultKind::Draining
                | FaultKind::Excluded { .. }
                | FaultKind::QueueFull { .. }
                | FaultKind::NotServing { .. }
        );
        !self.has_begun && refuses
    }
}

async fn run(
    session: &Session,
    answer: &mut PartialAnswer,
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
            // Process received messages first, so that only a silent head is suspected.
            biased;
            body = reply.received() => body?,
            () = cancel.cancelled(), if !cancelled => {
                cancelled = true;
                overdue.set(sleep(CANCEL));
                session.cancel(reply.id).await?;
                continue;
            }
            () = &mut overdue, if cancelled => {
                let kind = FaultKind::Timeout { what: "the cancellation".into(), seconds: CANCEL.as_secs() as u32 };
                return Err(Fault::new(&session.identity.name, kind));
            }
            fault = &mut silent => return Err(fault),
        };
        silent.set(silence(session));
        match body {
            ResponseBody::Started { prompt_token_ids, form, .. } => {
                answer.request.prompt = Prompt::Tokens(prompt_token_ids.clone());
                if !std::mem::replace(&mut answer.has_begun, true) {
                    tell(events, GenerateEvent::Started { prompt_token_ids }).await;
                    if form != AnswerForm::default() {
                        tell(events, GenerateEvent::Form(form)).await;
                    }
                }
            }
            ResponseBody::Token(token) => match token.id {
                Some(id) => {
                    answer.losses.token();
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
                let kind = FaultKind::Malformed { reason: format!("unexpected response {name}") };
                return Err(Fault::new(&session.identity.name, kind));
            }
        }
    }
}

/// Completes when the node does not answer a request for a report: it is hung, or the network to it is down.
pub(super) async fn silence(session: &Session) -> Fault {
    loop {
        sleep(SILENCE).await;
        match timeout(patience(), report(session)).await {
            Ok(Ok(_)) => {}
            Ok(Err(Fault { kind: FaultKind::Timeout { .. }, .. })) | Err(_) => {
                return Fault::new(&session.identity.name, FaultKind::NodeLost { how: Loss::Silent });
            }
            Ok(Err(fault)) => return fault,
        }
    }
}

fn patience() -> Duration {
    let set = std::env::var("BRAMBLE_SILENT_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(set.unwrap_or(SILENT_MS))
}

/// Sends an event. A receiver that is gone is ignored: the request continues to its end, so that the head stays in
/// a clean state.
async fn tell(events: &Sender<GenerateEvent>, event: GenerateEvent) {
    let _ = events.send(event).await;
}

#[cfg(test)]
mod tests;
