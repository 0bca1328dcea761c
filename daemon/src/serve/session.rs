//! One connection: the handshake within its deadline, then a console's requests and responses. The last place that
//! distrusts what comes in.
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use shared::protocol::{
    connection::{MessageWriter, receive_hello, send_welcome, split},
    error::FaultKind,
    handshake::{Identity, Purpose, Welcome},
    message::{Request, Response},
};
use tokio::{
    net::TcpStream,
    sync::mpsc::{Receiver, Sender, channel},
    time::timeout,
};

use crate::node::{
    Event, SessionId,
    driver::{Input, RESPONSES_MAX},
};

/// A handshake must be done within this.
const HANDSHAKE_SECONDS: u64 = 5;
/// A response must be written within this.
const WRITE_SECONDS: u64 = 30;

/// Runs a connection to its end.
pub(super) async fn run(mut stream: TcpStream, peer: SocketAddr, inputs: Sender<Input>, identity: Identity) {
    // Without it only latency suffers.
    let _ = stream.set_nodelay(true);
    let hello = match timeout(Duration::from_secs(HANDSHAKE_SECONDS), receive_hello(&mut stream)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(FaultKind::SessionLost { .. })) => return,
        Ok(Err(kind)) => return tracing::info!(%peer, "connection refused: {kind}"),
        Err(_) => return tracing::info!(%peer, "no handshake within {HANDSHAKE_SECONDS} s"),
    };
    match hello.purpose {
        Purpose::Console => {
            if send_welcome(&mut stream, &Welcome::Accepted(identity)).await.is_ok() {
                console(stream, format!("{} ({peer})", hello.identity.name), inputs).await;
            }
        }
        purpose => {
            // The driver welcomes ranks: it knows which assignment they may link for.
            let _ = inputs.send(Input::Link { stream, purpose, identity: hello.identity }).await;
        }
    }
}

async fn console(stream: TcpStream, by: String, inputs: Sender<Input>) {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    let session = SessionId(LATEST.fetch_add(1, Ordering::Relaxed) + 1);
    let (responses, outgoing) = channel(RESPONSES_MAX);
    if inputs.send(Input::SessionOpened(session, responses)).await.is_err() {
        return;
    }
    let (mut reader, writer) = split(stream);
    let mut writing = tokio::spawn(write(writer, outgoing));
    loop {
        // The writer ends when the driver closed the session, or when the console reads no more.
        let request = tokio::select! {
            request = reader.receive::<Request>() => request,
            _ = &mut writing => break,
        };
        match request {
            Ok(Some(request)) => {
                let event = Event::Request { session, by: by.clone(), request };
                if inputs.send(Input::Event(event)).await.is_err() {
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
    let _ = inputs.send(Input::Event(Event::SessionClosed(session))).await;
    // What is queued may still go out; the writer has its own deadline.
    if !writing.is_finished() {
        let _ = writing.await;
    }
}

async fn write(mut writer: MessageWriter, mut outgoing: Receiver<Response>) {
    while let Some(response) = outgoing.recv().await {
        match timeout(Duration::from_secs(WRITE_SECONDS), writer.send(&response)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
