//! One connection: the handshake within its deadline, then a console's requests and responses. All input is untrusted
//! up to here.
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
    units::Nanoseconds,
};
use engine::collective::clocks;
use protocol::{
    connection::{Arrived, Connection, Door, lets_in, receive_hello, send_welcome, tune},
    handshake::{Hello, Purpose, Welcome},
    message::{Finished, MESSAGE_BYTES_MAX, Request, RequestBody, Response, ResponseBody},
    messages::{MessageWriter, split},
    noise::{
        key::Role,
        keyring::{self, Pass},
    },
};
use tokio::{
    net::TcpStream,
    sync::{SemaphorePermit, mpsc::Receiver},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    CONNECTIONS_MAX, Host, VIEWERS_MAX,
    access::{check_hello, check_request},
    audit::Audit,
    limits::HandshakePermit,
};
use crate::node::{
    Event, SessionId,
    driver::{Input, Outbox, Queued, SessionClient},
};

/// Maximum of concurrent answers per session whose first token is timed.
const FIRST_TOKENS_MAX: usize = 256;
/// Deadline of a handshake.
const HANDSHAKE_SECONDS: u64 = 5;
/// Deadline for writing the last message of a handshake.
const WELCOME: Duration = Duration::from_secs(2);
/// Deadline for writing a response.
const WRITE_SECONDS: u64 = 30;
/// Deadline for the rest of a message that has begun.
const REST: Duration = Duration::from_secs(30);
/// Longest message of a viewer, which sends only requests.
const VIEWER_BYTES_MAX: usize = 64 << 10;
/// A viewer without requests and subscriptions is disconnected after this time.
const IDLE: Duration = Duration::from_secs(120);
/// Interval of checks whether a session may continue.
const LOOK: Duration = Duration::from_millis(500);

/// Runs a connection to its end. During its handshake it holds a ticket, which may be cancelled in favour of another
/// connection.
pub(super) async fn run(stream: TcpStream, peer: SocketAddr, host: &Host, ticket: HandshakePermit) {
    if let Err(error) = tune(&stream) {
        tracing::warn!("{peer}: cannot set socket options: {error}");
    }
    let shaking = timeout(Duration::from_secs(HANDSHAKE_SECONDS), shake_hands(stream, peer, host));
    let arrived = tokio::select! {
        arrived = shaking => arrived.unwrap_or_else(|_| {
            let (what, seconds) = ("the handshake".into(), HANDSHAKE_SECONDS as u32);
            Err(FaultKind::Timeout { what, seconds })
        }),
        () = ticket.end.cancelled() => Err(FaultKind::Full { what: "concurrent handshakes".into(), limit: 64 }),
    };
    host.limits().done(&ticket, matches!(arrived, Ok(Some(_))));
    let (mut connection, hello) = match arrived {
        Ok(Some(arrived)) => arrived,
        Ok(None) | Err(FaultKind::SessionLost { .. }) => return,
        Err(kind) => return host.tell_refused(peer, &kind.to_string()),
    };
    let _places = match places(connection.role(), host) {
        Ok(places) => places,
        Err(kind) => return turn_away(&mut connection, host, kind).await,
    };
    match hello.purpose {
        Purpose::Console => {
            let welcome = Welcome::Accepted(host.identity.clone());
            if matches!(timeout(WELCOME, send_welcome(&mut connection, &welcome)).await, Ok(Ok(()))) {
                let guest = SessionClient { role: connection.role(), name: hello.identity.name };
                console(connection, guest, peer, host).await;
            }
        }
        purpose => {
            // The driver welcomes ranks: it has the assignment that they link for.
            let _ = host.inputs.send(Input::Link { connection, purpose, identity: hello.identity }).await;
        }
    }
}

/// Acquires a place for a connection; the limit for viewers leaves places to operators and nodes.
fn places(role: Option<Role>, host: &Host) -> Result<[Option<SemaphorePermit<'_>>; 2], FaultKind> {
    let full = |what: &str, limit: usize| FaultKind::Full { what: what.into(), limit: limit as u32 };
    let of_viewers = match role {
        Some(Role::Viewer) => {
            let place = host.viewers_places.try_acquire();
            Some(place.map_err(|_| full("viewers' connections", VIEWERS_MAX))?)
        }
        _ => None,
    };
    let place = host.places.try_acquire().map_err(|_| full("connections", CONNECTIONS_MAX))?;
    Ok([of_viewers, Some(place)])
}

/// Runs the handshake of an unauthenticated peer; `None` if the connection ends with it.
async fn shake_hands(
    stream: TcpStream,
    peer: SocketAddr,
    host: &Host,
) -> Result<Option<(Connection, Hello)>, FaultKind> {
    let keyring = keyring::own();
    let door = Door { name: &host.identity.name, keyring: &keyring, is_pairing: &|| host.desk.is_open() };
    let (mut connection, hello) = match receive_hello(stream, door).await? {
        Arrived::Hello(connection, hello) => (connection, hello),
        Arrived::Pairing(stream, prologue) => {
            let by = host.desk.serve(stream, peer, &prologue, &host.config).await?;
            tracing::info!("audit: code {by} ({peer}): adopt: ok");
            return Ok(None);
        }
    };
    let checked = hello.identity.check();
    match checked.and_then(|()| check_hello(connection.role(), &hello.purpose, peer, host.config.insecure)) {
        Ok(()) => Ok(Some((connection, hello))),
        Err(kind) => {
            turn_away(&mut connection, host, kind.clone()).await;
            Err(kind)
        }
    }
}

/// Sends the reason for the end of a connection. Peers that are gone or do not read get none.
async fn turn_away(connection: &mut Connection, host: &Host, kind: FaultKind) {
    let refusal = Welcome::Refused(Fault::new(&host.identity.name, kind));
    let _ = timeout(WELCOME, send_welcome(connection, &refusal)).await;
}

async fn console(connection: Connection, guest: SessionClient, peer: SocketAddr, host: &Host) {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    let session = SessionId(LATEST.fetch_add(1, Ordering::Relaxed) + 1);
    let by = format!("{} ({peer})", guest.name);
    let is_viewer = guest.is_viewer();
    let audit = Arc::new(Audit::new(guest.role, &by, &host.viewers_quiet));
    let (responses, outgoing) = Outbox::new(guest, &host.room);
    // Weak, so that the session ends when the driver drops its end.
    let refusals = responses.downgrade();
    if host.inputs.send(Input::SessionOpened(session, responses)).await.is_err() {
        return;
    }
    let pass = connection.pass.clone();
    let role = connection.role();
    let (reader, writer) = split(connection);
    let mut reader = reader.bounded(if is_viewer { VIEWER_BYTES_MAX } else { MESSAGE_BYTES_MAX }, REST);
    let name = host.identity.name.clone();
    let mut writing = tokio::spawn(write(writer, outgoing, Arc::clone(&audit), name));
    let (mut latest, mut watches) = (Instant::now(), false);
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // The writer ends when the driver has closed the session, or when the console stops reading.
        let request = tokio::select! {
            request = reader.receive::<Request>() => request,
            _ = &mut writing => break,
            _ = looks.tick() => match over(pass.as_ref(), latest.elapsed(), is_viewer && !watches) {
                Some(why) => {
                    tracing::info!(by, "session ended: {why}");
                    break;
                }
                None => continue,
            },
        };
        let request = match request {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(kind) => {
                tracing::info!(by, "session ended: {kind}");
                break;
            }
        };
        latest = Instant::now();
        let counts = if lets_in(pass.as_ref()) { Ok(()) } else { Err(FaultKind::KeyDiffers) };
        if let Err(kind) = counts.and_then(|()| check_request(role, &request.body)) {
            audit.refused(request.body.name(), &kind);
            let body = ResponseBody::Failed(Fault::new(&host.identity.name, kind));
            let Some(refusals) = refusals.upgrade() else { break };
            refusals.send(Response { id: request.id, body }).await;
            continue;
        }
        watches |= matches!(request.body, RequestBody::Watch { .. });
        audit.begin(&request);
        let event = Event::Request { session, by: by.clone(), request };
        if host.inputs.send(Input::Event(event)).await.is_err() {
            break;
        }
    }
    let _ = host.inputs.send(Input::Event(Event::SessionClosed(session))).await;
    // Queued responses may still be written; the writer has its own deadline.
    if !writing.is_finished() {
        let _ = writing.await;
    }
    audit.close();
}

/// Why a session must end, even without a request.
fn over(pass: Option<&Pass>, idle: Duration, may_idle_out: bool) -> Option<&'static str> {
    // A revoked key, or a first key of this node, ends earlier sessions.
    if !lets_in(pass) {
        return Some("its key is no longer valid");
    }
    (may_idle_out && idle > IDLE).then_some("it was idle for too long")
}

/// The time at which the first token of each open answer was written to the socket.
#[derive(Debug, Default)]
struct FirstTokens(HashMap<RequestId, Nanoseconds>);

impl FirstTokens {
    /// Records that a response was written at `now`, by the node's clock.
    fn written(&mut self, response: &Response, now: Nanoseconds) {
        match &response.body {
            // Answers beyond the limit are not timed.
            ResponseBody::Token(_) if self.0.len() < FIRST_TOKENS_MAX => {
                self.0.entry(response.id).or_insert(now);
            }
            ResponseBody::Failed(_) => drop(self.0.remove(&response.id)),
            _ => {}
        }
    }

    /// Adds the time of the first token to the final message of an answer.
    fn complete(&mut self, response: &mut Response) {
        if let ResponseBody::Finished(Finished { times, .. }) = &mut response.body
            && let Some(at) = self.0.remove(&response.id)
            && times.received.0 > 0
        {
            times.sent = Nanoseconds(at.0.saturating_sub(times.received.0));
        }
    }
}

async fn write(mut writer: MessageWriter, mut outgoing: Receiver<Queued>, audit: Arc<Audit>, name: String) {
    let mut first = FirstTokens::default();
    while let Some(mut queued) = outgoing.recv().await {
        first.complete(&mut queued.response);
        let response = &queued.response;
        audit.end(response);
        let sent = timeout(Duration::from_secs(WRITE_SECONDS), async {
            match writer.send(response).await {
                // If an older console cannot decode a response, it receives a fault instead, which it always can.
                Err(kind @ FaultKind::PeerOlder { .. }) => {
                    let body = ResponseBody::Failed(Fault::new(&name, kind));
                    writer.send(&Response { id: response.id, body }).await
                }
                sent => sent,
            }
        });
        match sent.await {
            Ok(Ok(())) => first.written(&queued.response, clocks::now()),
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use common::{chat::FinishReason, latency::RequestTimes};
    use protocol::message::TokenEvent;

    use super::*;

    #[test]
    fn final_message_reports_when_first_token_was_sent() {
        let response = |id: u64, body: ResponseBody| Response { id: RequestId(id), body };
        let token = || ResponseBody::Token(TokenEvent { id: Some(1), text: "a".into(), logprobs: Vec::new() });
        let mut first = FirstTokens::default();
        first.written(&response(1, token()), Nanoseconds(1500));
        first.written(&response(1, token()), Nanoseconds(9000));
        first.written(&response(2, token()), Nanoseconds(7000));
        let sent = |first: &mut FirstTokens, id: u64, received: u64| {
            let times = RequestTimes { received: Nanoseconds(received), ..RequestTimes::default() };
            let reason = FinishReason::Stop;
            let end = Finished { reason, times, ranks: Vec::new(), sampling_rounds: 0 };
            let mut last = response(id, ResponseBody::Finished(end));
            first.complete(&mut last);
            let ResponseBody::Finished(Finished { times, .. }) = last.body else { unreachable!("it is an end") };
            times.sent
        };
        assert_eq!(sent(&mut first, 1, 1000), Nanoseconds(500));
        assert_eq!(sent(&mut first, 1, 1000), Nanoseconds(0), "it is reported once");
        assert_eq!(sent(&mut first, 2, 0), Nanoseconds(0), "an engine that reports no time of receipt");
        first.written(&response(3, token()), Nanoseconds(1));
        let fault = Fault::new("pi1", FaultKind::PromptEmpty);
        first.written(&response(3, ResponseBody::Failed(fault)), Nanoseconds(2));
        assert!(first.0.is_empty(), "{first:?}");
    }
}
