//! Streams of records, such as server-sent events: a bounded queue between an answer and the socket of its client.
use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::Response,
};
use futures_core::Stream;
use serde_json::Value;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::timeout,
};

use super::writer::Framing;

/// Most events that may wait for the socket.
const EVENTS_MAX: usize = 256;
/// A client that takes no event for this long is disconnected.
const SLOW: Duration = Duration::from_secs(20);

/// Time from accepting the request until the first bytes of its answer went to the socket.
pub(super) type FirstByte = Arc<OnceLock<Duration>>;

/// The client has disconnected, or reads too slowly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

/// The writing end.
#[derive(Debug)]
pub(super) struct Events {
    framing: Framing,
    sender: Sender<Bytes>,
}

struct Outgoing {
    events: Receiver<Bytes>,
    accepted: Instant,
    first: FirstByte,
}

impl Stream for Outgoing {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.events.poll_recv(context);
        if let Poll::Ready(Some(_)) = &polled {
            let Self { first, accepted, .. } = &*self;
            first.get_or_init(|| accepted.elapsed());
        }
        polled.map(|event| event.map(Ok))
    }
}

/// Creates a streamed response, and its writing end.
pub(super) fn events(accepted: Instant, first: FirstByte, framing: Framing) -> (Events, Response) {
    let (sender, receiver) = channel(EVENTS_MAX);
    let body = Body::from_stream(Outgoing { events: receiver, accepted, first });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(framing.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables buffering in proxies.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (Events { framing, sender }, response)
}

impl Events {
    /// Sends records.
    pub(super) async fn send(&self, objects: &[Value]) -> Result<(), Gone> {
        for object in objects {
            self.raw(self.framing.record(object)).await?;
        }
        Ok(())
    }

    /// Sends the end marker, if the framing has one.
    pub(super) async fn done(&self) -> Result<(), Gone> {
        match self.framing.end() {
            Some(end) => self.raw(end.into()).await,
            None => Ok(()),
        }
    }

    /// Sends bytes that clients ignore, to keep the connection alive.
    pub(super) async fn keep_alive(&self) -> Result<(), Gone> {
        self.raw(self.framing.keep_alive().into()).await
    }

    /// Returns when the client has disconnected.
    pub(super) async fn gone(&self) {
        self.sender.closed().await;
    }

    async fn raw(&self, text: String) -> Result<(), Gone> {
        match timeout(SLOW, self.sender.send(text.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}
