//! One connection: the handshake within its deadline, then a console's requests and responses. The last place that
//! distrusts what comes in.
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use shared::protocol::{
    connection::{Arrived, Connection, Door, MessageWriter, lets_in, receive_hello, send_welcome, split},
    error::{Fault, FaultKind},
    handshake::{Hello, Purpose, Welcome},
    message::{Request, Response, ResponseBody},
    noise::keyring,
};
use tokio::{
    net::TcpStream,
    sync::{
        Semaphore,
        mpsc::{Receiver, channel},
    },
    time::timeout,
};

use super::{
    CONNECTIONS_MAX, Host,
    access::{check_hello, check_request},
    audit::Audit,
    limits::Ticket,
};
use crate::node::{
    Event, SessionId,
    driver::{Input, RESPONSES_MAX},
};

/// A handshake must be done within this.
const HANDSHAKE_SECONDS: u64 = 5;
/// The last word of a handshake must be written within this.
const WELCOME: Duration = Duration::from_secs(2);
/// A response must be written within this.
const WRITE_SECONDS: u64 = 30;

/// Runs a connection to its end. Until its handshake is done it holds a ticket that others may take from it.
pub(super) async fn run(stream: TcpStream, peer: SocketAddr, host: &Host, ticket: Ticket, places: &Semaphore) {
    // Without it only latency suffers.
    let _ = stream.set_nodelay(true);
    let shaking = timeout(Duration::from_secs(HANDSHAKE_SECONDS), shake_hands(stream, peer, host));
    let arrived = tokio::select! {
        arrived = shaking => arrived.unwrap_or_else(|_| {
            let (what, seconds) = ("its handshake".into(), HANDSHAKE_SECONDS as u32);
            Err(FaultKind::Timeout { what, seconds })
        }),
        () = ticket.end.cancelled() => Err(FaultKind::Full { what: "open handshakes".into(), limit: 64 }),
    };
    host.limits().done(&ticket, matches!(arrived, Ok(Some(_))));
    let (mut connection, hello) = match arrived {
        Ok(Some(arrived)) => arrived,
        Ok(None) | Err(FaultKind::SessionLost { .. }) => return,
        Err(kind) => return host.tell_refused(peer, &kind.to_string()),
    };
    let Ok(_place) = places.try_acquire() else {
        let kind = FaultKind::Full { what: "connections".into(), limit: CONNECTIONS_MAX as u32 };
        return turn_away(&mut connection, host, kind).await;
    };
    match hello.purpose {
        Purpose::Console => {
            let welcome = Welcome::Accepted(host.identity.clone());
            if matches!(timeout(WELCOME, send_welcome(&mut connection, &welcome)).await, Ok(Ok(()))) {
                console(connection, format!("{} ({peer})", hello.identity.name), host).await;
            }
        }
        purpose => {
            // The driver welcomes ranks: it knows which assignment they may link for.
            let _ = host.inputs.send(Input::Link { connection, purpose, identity: hello.identity }).await;
        }
    }
}

/// The handshake of a stranger; `None` where nothing is to follow it.
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
            let by = host.desk.serve(stream, &prologue, &host.config).await?;
            tracing::info!("audit: code {by} ({peer}): adopt: ok");
            return Ok(None);
        }
    };
    match check_hello(connection.role(), &hello.purpose, (peer, host.config.insecure)) {
        Ok(()) => Ok(Some((connection, hello))),
        Err(kind) => {
            turn_away(&mut connection, host, kind.clone()).await;
            Err(kind)
        }
    }
}

/// Says why a connection ends. Who is gone, or does not read, needs no reason.
async fn turn_away(connection: &mut Connection, host: &Host, kind: FaultKind) {
    let refusal = Welcome::Refused(Fault::new(&host.identity.name, kind));
    let _ = timeout(WELCOME, send_welcome(connection, &refusal)).await;
}

async fn console(connection: Connection, by: String, host: &Host) {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    let session = SessionId(LATEST.fetch_add(1, Ordering::Relaxed) + 1);
    let (responses, outgoing) = channel(RESPONSES_MAX);
    // Weak: the session ends when the driver drops its end.
    let refusals = responses.downgrade();
    if host.inputs.send(Input::SessionOpened(session, responses)).await.is_err() {
        return;
    }
    let pass = connection.pass.clone();
    let role = connection.role();
    let audit = Arc::new(Audit::new(role, &by));
    let (mut reader, writer) = split(connection);
    let mut writing = tokio::spawn(write(writer, outgoing, Arc::clone(&audit)));
    loop {
        // The writer ends when the driver closed the session, or when the console reads no more.
        let request = tokio::select! {
            request = reader.receive::<Request>() => request,
            _ = &mut writing => break,
        };
        match request {
            Ok(Some(request)) => {
                // A key that was taken back, or a node that has one now, ends what came before.
                let counts = if lets_in(pass.as_ref()) { Ok(()) } else { Err(FaultKind::KeyDiffers) };
                if let Err(kind) = counts.and_then(|()| check_request(role, &request.body)) {
                    audit.refused(request.body.name(), &kind);
                    let body = ResponseBody::Failed(Fault::new(&host.identity.name, kind));
                    let Some(refusals) = refusals.upgrade() else { break };
                    let _ = refusals.send(Response { id: request.id, body }).await;
                    continue;
                }
                audit.begin(&request);
                let event = Event::Request { session, by: by.clone(), request };
                if host.inputs.send(Input::Event(event)).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(kind) => {
                tracing::info!(by, "session ended: {kind}");
                break;
            }
        }
    }
    let _ = host.inputs.send(Input::Event(Event::SessionClosed(session))).await;
    // What is queued may still go out; the writer has its own deadline.
    if !writing.is_finished() {
        let _ = writing.await;
    }
    audit.close();
}

async fn write(mut writer: MessageWriter, mut outgoing: Receiver<Response>, audit: Arc<Audit>) {
    while let Some(response) = outgoing.recv().await {
        audit.end(&response);
        match timeout(Duration::from_secs(WRITE_SECONDS), writer.send(&response)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
