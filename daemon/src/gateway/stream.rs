//! Server-sent events: a bounded queue between an answer and the socket of its client.
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
pub(super) struct Events(Sender<Bytes>);

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

/// Creates a response of events, and the writing end.
pub(super) fn events(accepted: Instant, first: FirstByte) -> (Events, Response) {
    let (sender, receiver) = channel(EVENTS_MAX);
    let body = Body::from_stream(Outgoing { events: receiver, accepted, first });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables buffering in proxies.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (Events(sender), response)
}

impl Events {
    /// Sends one event.
    pub(super) async fn send(&self, object: &Value) -> Result<(), Gone> {
        self.raw(format!("data: {object}\n\n")).await
    }

    /// Sends the end marker.
    pub(super) async fn done(&self) -> Result<(), Gone> {
        self.raw("data: [DONE]\n\n".into()).await
    }

    /// Sends a comment, which clients ignore, to keep the connection alive.
    pub(super) async fn keep_alive(&self) -> Result<(), Gone> {
        self.raw(": keep-alive\n\n".into()).await
    }

    /// Returns when the client has disconnected.
    pub(super) async fn gone(&self) {
        self.0.closed().await;
    }

    async fn raw(&self, text: String) -> Result<(), Gone> {
        match timeout(SLOW, self.0.send(text.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}
