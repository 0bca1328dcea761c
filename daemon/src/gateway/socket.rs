//! The listener: a bounded number of connections (chosen by `connections.rs`), each with a deadline for its request's
//! head, for each write, and for idling.
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper::{Request, body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::connections::{Connections, Visit};
use crate::listening::AcceptFailures;

/// Time limit for a request's head, and for an idle connection.
const HEAD: Duration = Duration::from_secs(20);
/// Limit in bytes for a request's head and for unsent output.
const BUFFER_BYTES: usize = 64 << 10;
/// Write timeout: a client that reads nothing for this long is disconnected.
const WRITE: Duration = Duration::from_secs(20);

/// How long a connection without a request stays open after the stop: its request may be on the way.
const LAST_REQUEST: Duration = Duration::from_millis(200);

/// Longest time for an answer to a client that has closed its half of the connection. A client that has left looks the
/// same until something is written to it, so its answer is cancelled this much later.
const HALF_CLOSED: Duration = Duration::from_secs(5);

/// Accepts connections until `stop`, and those that clients have opened before; open ones continue until they are done.
pub(super) async fn accept(listener: TcpListener, router: Router, open: TaskTracker, stop: CancellationToken) {
    let connections = Arc::<Mutex<Connections>>::default();
    let begin = |stream: TcpStream, peer: SocketAddr| {
        // A connection that is not admitted is closed.
        let Some(visit) = lock(&connections).admit(peer.ip()) else { return };
        let (router, stop, connections) = (router.clone(), stop.clone(), Arc::clone(&connections));
        open.spawn(async move {
            tokio::select! {
                () = serve(stream, Visited { router: TowerToHyperService::new(router), visit: visit.clone() }, stop) => {}
                () = visit.end.cancelled() => {}
            }
            lock(&connections).done(&visit);
        });
    };
    let mut failures = AcceptFailures::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => begin(stream, peer),
            Err(error) => {
                lock(&connections).evict();
                failures.pause("HTTP API", &error).await;
            }
        }
    }
    // The kernel would reset connections that it has already accepted.
    while let Ok(Ok((stream, peer))) = timeout(Duration::ZERO, listener.accept()).await {
        begin(stream, peer);
    }
}

fn lock(connections: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    // The list is consistent even if a task panicked while it held the lock.
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Attaches the connection to each of its requests.
struct Visited {
    router: TowerToHyperService<Router>,
    visit: Visit,
}

impl Service<Request<Incoming>> for Visited {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.visit.clone());
        // Shared because requests can be cloned; the layer around all paths passes it on to the answer.
        request.extensions_mut().insert(Arc::new(self.visit.open()));
        self.router.call(request)
    }
}

async fn serve(stream: TcpStream, service: Visited, stop: CancellationToken) {
    // Best effort: without it, only latency suffers.
    let _ = stream.set_nodelay(true);
    let visit = service.visit.clone();
    let stream = TokioIo::new(Patient { stream, visit: visit.clone(), overdue: None, half_closed: None });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER_BYTES);
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    // A client that disconnects or sends invalid HTTP ends only its connection.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            if !visit.has_request() && timeout(LAST_REQUEST, connection.as_mut()).await.is_ok() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// A socket with a deadline for writes. It reports the end of input late while a request is open: a client may close its
/// half of the connection and still read.
struct Patient {
    stream: TcpStream,
    visit: Visit,
    /// Runs from the end of input.
    half_closed: Option<Pin<Box<Sleep>>>,
    /// Runs while a write waits for the client to read.
    overdue: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// Returns `result`; if it is pending, starts the deadline, otherwise clears it.
    fn watch<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.overdue = None;
            return result;
        }
        let overdue = self.overdue.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE)));
        match overdue.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let is_end = matches!(result, Poll::Ready(Ok(()))) && buffer.filled().len() == length && buffer.remaining() > 0;
        if !is_end || !self.visit.has_request() {
            return result;
        }
        let end = self.half_closed.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED)));
        end.as_mut().poll(context).map(Ok)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, result)
    }
}
