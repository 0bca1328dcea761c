//! The rest of a refused request's body is read before the refusal is sent: a client that is still writing does not
//! read, and would see a broken connection instead of the refusal. Bounded in time and bytes, and in the number of
//! requests at a time, because it needs no key.
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{StatusCode, header::EXPECT},
};
use hyper::body::{Frame, SizeHint};
use tokio::{sync::Semaphore, time::timeout};

use super::bodies::{BODY_BYTES_MAX, next};

/// How much of a body is read, and for how long.
const REST_BYTES_MAX: usize = BODY_BYTES_MAX;
const REST: Duration = Duration::from_secs(2);
/// A client that sends nothing for so long waits for the answer.
const QUIET: Duration = Duration::from_secs(1);
/// Most bodies that are read at a time; the connections of others close.
const READ_MAX: usize = 8;

/// The turns of bodies to be read.
#[derive(Debug)]
pub(super) struct RestTurns(Semaphore);

impl Default for RestTurns {
    fn default() -> Self {
        Self(Semaphore::new(READ_MAX))
    }
}

/// The body that a handler has not read to its end, once the handler is done.
pub(super) struct UnreadBody(Arc<Mutex<Option<Body>>>);

/// A body that goes back when it is dropped before its end.
struct LentBody {
    body: Body,
    /// Whether it was read to its end, or as far as it arrived.
    is_over: bool,
    /// Whether the client waits for a word before it sends the body.
    is_awaited: bool,
    rest: Arc<Mutex<Option<Body>>>,
}

/// Lends the body of a request to its handler; `None`: it has no body.
pub(super) fn lend(request: Request) -> (Request, Option<UnreadBody>) {
    if request.body().is_end_stream() {
        return (request, None);
    }
    let rest = Arc::<Mutex<Option<Body>>>::default();
    let unread = UnreadBody(Arc::clone(&rest));
    let is_awaited = request.headers().contains_key(EXPECT);
    (request.map(|body| Body::new(LentBody { body, is_over: false, is_awaited, rest })), Some(unread))
}

impl UnreadBody {
    /// Reads the rest if the request is refused and it is one of a few. A body that is too slow has had its time.
    pub(super) async fn drain(self, status: StatusCode, turns: &RestTurns) {
        let is_refused = status.is_client_error() || status.is_server_error();
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(body) = body.filter(|_| is_refused && status != StatusCode::REQUEST_TIMEOUT) else { return };
        let Ok(_turn) = turns.0.try_acquire() else { return };
        let mut parts = body.into_data_stream();
        let reading = async {
            let mut bytes = 0;
            while bytes < REST_BYTES_MAX {
                let Ok(Some(Ok(part))) = timeout(QUIET, next(&mut parts)).await else { return };
                bytes += part.len();
            }
        };
        // Whatever is left is lost with the connection.
        _ = timeout(REST, reading).await;
    }
}

impl HttpBody for LentBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.is_awaited = false;
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.is_over |= matches!(frame, Poll::Ready(None | Some(Err(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        // A client that waits for a word gets the refusal instead.
        if !(self.is_over || self.is_awaited || self.body.is_end_stream()) {
            let body = std::mem::take(&mut self.body);
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
        task::ready,
    };

    use futures_core::Stream;
    use tokio::time::{Instant, Interval, interval};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A body of equal parts.
    struct CountedParts {
        part: Bytes,
        /// Parts that were read, and most that there are.
        read: Arc<AtomicUsize>,
        most: usize,
        /// Whether it stalls instead of its end.
        stalls: bool,
        /// When its parts arrive; `None`: at once.
        ticks: Option<Interval>,
    }

    impl CountedParts {
        fn new(bytes: usize, most: usize) -> Self {
            let part = Bytes::from(vec![b'x'; bytes]);
            Self { part, read: Arc::default(), most, stalls: false, ticks: None }
        }
    }

    impl Stream for CountedParts {
        type Item = Result<Bytes, Infallible>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            if self.read.load(Ordering::Relaxed) == self.most {
                return if self.stalls { Poll::Pending } else { Poll::Ready(None) };
            }
            if let Some(ticks) = &mut self.ticks {
                ready!(ticks.poll_tick(context));
            }
            self.read.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(self.part.clone())))
        }
    }

    /// How many parts are read of a request that ends with this status after its handler has read so many.
    async fn read(
        body: CountedParts,
        status: StatusCode,
        by_handler: usize,
        expects: bool,
        turns: &RestTurns,
    ) -> usize {
        let read = Arc::clone(&body.read);
        let mut request = Request::new(Body::from_stream(body));
        if expects {
            request.headers_mut().insert(EXPECT, "100-continue".parse().expect("a value"));
        }
        let (request, unread) = lend(request);
        let mut parts = request.into_body().into_data_stream();
        for _ in 0..by_handler {
            next(&mut parts).await.expect("a part").expect("it is whole");
        }
        drop(parts);
        let unread = unread.expect("it has a body");
        timeout(PATIENCE, unread.drain(status, turns)).await.expect("it ends");
        read.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn bodies_of_refused_requests_are_read() {
        let turns = RestTurns::default();
        for (status, by_handler, expects, expected) in [
            (StatusCode::UNAUTHORIZED, 0, false, 3),
            (StatusCode::PAYLOAD_TOO_LARGE, 1, false, 3),
            (StatusCode::PAYLOAD_TOO_LARGE, 1, true, 3),
            // Its client sends nothing before it is asked to.
            (StatusCode::UNAUTHORIZED, 0, true, 0),
            (StatusCode::REQUEST_TIMEOUT, 1, false, 1),
            (StatusCode::OK, 0, false, 0),
        ] {
            let found = read(CountedParts::new(3, 3), status, by_handler, expects, &turns).await;
            assert_eq!(found, expected, "{status} {by_handler} {expects}");
        }
        assert!(lend(Request::new(Body::empty())).1.is_none());
    }

    #[tokio::test]
    async fn bodies_that_are_long_slow_or_stalled_are_read_only_in_part() {
        let turns = RestTurns::default();
        let part = 64 << 10;
        let long = CountedParts::new(part, 4 * REST_BYTES_MAX / part);
        assert_eq!(read(long, StatusCode::UNAUTHORIZED, 0, false, &turns).await, REST_BYTES_MAX / part);
        let slow = CountedParts { ticks: Some(interval(QUIET / 20)), ..CountedParts::new(1, usize::MAX) };
        let begun = Instant::now();
        let found = read(slow, StatusCode::UNAUTHORIZED, 0, false, &turns).await;
        assert!(found > 1 && begun.elapsed() >= REST, "{found} parts in {:?}", begun.elapsed());
        let stalled = CountedParts { stalls: true, ..CountedParts::new(1, 3) };
        assert_eq!(read(stalled, StatusCode::UNAUTHORIZED, 0, false, &turns).await, 3);
    }

    #[tokio::test]
    async fn only_a_few_bodies_are_read_at_a_time() {
        let turns = RestTurns::default();
        let others = turns.0.try_acquire_many(READ_MAX as u32).expect("all turns are free");
        assert_eq!(read(CountedParts::new(3, 3), StatusCode::UNAUTHORIZED, 0, false, &turns).await, 0);
        drop(others);
        assert_eq!(read(CountedParts::new(3, 3), StatusCode::UNAUTHORIZED, 0, false, &turns).await, 3);
    }
}
