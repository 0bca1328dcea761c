//! Relays connections to the HTTP API of the first node that answers, byte by byte, so that streams are not delayed.
//! Request heads are parsed, and requests that a web page may have caused are rejected. Nodes are health-checked
//! continuously; if none is reachable, the client receives an error in the format of the OpenAI API.
use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::browser::{BrowserPolicy, check_body};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::http::{Api, BodyReader, HttpRequest, RequestLines, Url};

/// Timeout for connecting to a node.
const CONNECT: Duration = Duration::from_secs(2);
/// Timeout of a health check.
const PROBE: Duration = Duration::from_secs(1);
/// Pause between two rounds of health checks.
const PROBE_PAUSE: Duration = Duration::from_secs(2);
/// Timeout for the first request's head.
const HEAD: Duration = Duration::from_secs(20);
/// Maximum time for receiving and discarding a rejected request.
const REFUSAL: Duration = Duration::from_secs(2);
/// Maximum bytes of a rejected request that are read and discarded.
const REFUSED_BYTES_MAX: usize = 16 << 20;
/// Buffer size of one read, in bytes.
const PART_BYTES: usize = 32 << 10;

/// Limits of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections; more are rejected.
    pub connections: usize,
    /// A connection without data for this long is closed.
    pub idle: Duration,
}

/// An error response of the proxy itself.
#[derive(Debug)]
struct Refused {
    status: u16,
    code: &'static str,
    message: String,
}

/// Why there is no next request.
#[derive(Debug)]
enum NoRequest {
    Broken(io::Error),
    Refused(Refused),
}

impl From<io::Error> for NoRequest {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// The nodes as `HOST:PORT`, with the result of each one's last health check.
#[derive(Debug)]
struct Upstreams(Vec<(String, AtomicBool)>);

impl Upstreams {
    /// Nodes that answered their last health check first, otherwise in the configured order.
    fn in_order(&self) -> Vec<&str> {
        let part = |answers: bool| {
            self.0
                .iter()
                .filter(move |(_, answered): &&(String, AtomicBool)| answered.load(Ordering::Relaxed) == answers)
                .map(|(node, _)| node.as_str())
        };
        part(true).chain(part(false)).collect()
    }

    /// Connects to the first reachable node.
    async fn dial(&self) -> Result<TcpStream, String> {
        let mut reasons = Vec::new();
        for node in self.in_order() {
            match timeout(CONNECT, TcpStream::connect(node)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => reasons.push(format!("{node}: {error}")),
                Err(_) => reasons.push(format!("{node}: no answer within {} s", CONNECT.as_secs())),
            }
        }
        Err(format!("cannot reach any node: {}", reasons.join("; ")))
    }
}

/// Relays connections until the future is dropped. `nodes` are `HOST:PORT`; `policy` decides which requests pass;
/// `tell` is called when a node starts or stops answering.
pub async fn run(
    listener: TcpListener,
    nodes: Vec<String>,
    limits: Limits,
    policy: BrowserPolicy,
    tell: impl Fn(String) + Send + 'static,
) -> Infallible {
    let nodes = Arc::new(Upstreams(nodes.into_iter().map(|node| (node, AtomicBool::new(true))).collect()));
    let (places, policy) = (Arc::new(Semaphore::new(limits.connections)), Arc::new(policy));
    // Tasks in this set are aborted when this function is dropped.
    let mut tasks = JoinSet::new();
    let probed = Arc::clone(&nodes);
    tasks.spawn(async move { probe(&probed, tell).await });
    loop {
        while tasks.try_join_next().is_some() {}
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                // Too many open files: another connection must end first.
                tracing::warn!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Rejections are bounded too: they have a deadline of seconds.
        if tasks.len() > 2 * limits.connections + 64 {
            continue;
        }
        let (nodes, policy, place) = (Arc::clone(&nodes), Arc::clone(&policy), Arc::clone(&places).try_acquire_owned());
        tasks.spawn(async move {
            let result = match place {
                Ok(_place) => serve(client, &nodes, &policy, limits.idle).await,
                Err(_) => {
                    let message = format!("the proxy is at its limit of {} connections", limits.connections);
                    refuse(client, Refused { status: 503, code: "proxy_full", message }, 0).await
                }
            };
            if let Err(error) = result {
                tracing::info!("connection ended: {error}");
            }
        });
    }
}

async fn serve(mut client: TcpStream, nodes: &Upstreams, policy: &BrowserPolicy, idle: Duration) -> io::Result<()> {
    let mut buffer = Vec::new();
    let first = timeout(HEAD, next_request(&mut client, &mut buffer, policy));
    let first = match first.await.map_err(|_| io::ErrorKind::TimedOut)? {
        Ok(Some(first)) => first,
        Ok(None) => return Ok(()),
        Err(NoRequest::Broken(error)) => return Err(error),
        Err(NoRequest::Refused(refused)) => return refuse(client, refused, buffer.len()).await,
    };
    let node = match nodes.dial().await {
        Ok(node) => node,
        Err(message) => return refuse(client, Refused { status: 502, code: "no_node", message }, 1).await,
    };
    client.set_nodelay(true)?;
    node.set_nodelay(true)?;
    // Requests carry the node's address as host; the name of this proxy was checked here.
    let address = node.peer_addr()?.to_string();
    let (client_reader, client_writer) = client.into_split();
    let (node_reader, node_writer) = node.into_split();
    let (moved, last) = watch::channel(Instant::now());
    let forwarding = Forwarding { policy, address: &address, moved: &moved, idle };
    let up = requests(client_reader, node_writer, first, buffer, forwarding);
    let down = pump(node_reader, client_writer, &moved, idle);
    let both = async {
        tokio::pin!(up, down);
        tokio::select! {
            // The client has sent everything; the answer is still to come.
            result = &mut up => {
                result?;
                down.await
            }
            // The node has closed its side; it would ignore anything more from the client.
            result = &mut down => result,
        }
    };
    tokio::select! {
        result = both => result,
        () = stillness(last, idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "no data for too long")),
    }
}

/// Returns when no data has moved in either direction for `idle`.
async fn stillness(last: watch::Receiver<Instant>, idle: Duration) {
    loop {
        let until = *last.borrow() + idle;
        if until <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

/// Parses the next request head from `reader` and removes it from `buffer`; `None`: the client has closed its side.
async fn next_request(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    policy: &BrowserPolicy,
) -> Result<Option<RequestLines>, NoRequest> {
    let refused = |status, code, message| Err(NoRequest::Refused(Refused { status, code, message }));
    loop {
        match RequestLines::parse(buffer) {
            Ok(Some((head, end))) => {
                let asking = head.asking();
                let page = policy.check(&asking).map(drop);
                let is_post = head.is_post();
                let body = if is_post { check_body(head.path(), head.content_type(), &asking) } else { Ok(()) };
                if let Err(refusal) = page.and(body) {
                    return refused(refusal.status(), refusal.code(), refusal.to_string());
                }
                buffer.drain(..end);
                return Ok(Some(head));
            }
            Ok(None) => {}
            Err(why) => return refused(400, "malformed_request", format!("{why}; send an HTTP/1.1 request")),
        }
        if reader.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Target of requests, and their observer.
struct Forwarding<'a> {
    policy: &'a BrowserPolicy,
    /// The node's own address.
    address: &'a str,
    /// When data moved last.
    moved: &'a watch::Sender<Instant>,
    /// Longest time in which no data moves.
    idle: Duration,
}

/// Forwards requests one after another, each with the node's own address as host.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut head: RequestLines,
    mut buffer: Vec<u8>,
    forwarding: Forwarding<'_>,
) -> io::Result<()> {
    let Forwarding { policy, address, moved, idle } = forwarding;
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    loop {
        let mut body = BodyReader::new(head.length);
        let mut part = head.for_node(address);
        loop {
            let taken = body.feed(&buffer, &mut Vec::new()).map_err(wrong)?;
            part.extend(buffer.drain(..taken));
            // A node that accepts no data counts as idle, like a client that sends none.
            timeout(idle, to.write_all(&part)).await.map_err(|_| io::ErrorKind::TimedOut)??;
            moved.send_replace(Instant::now());
            part.clear();
            if body.is_done() {
                break;
            }
            buffer.reserve(PART_BYTES);
            if from.read_buf(&mut buffer).await? == 0 {
                return to.shutdown().await;
            }
        }
        head = match next_request(&mut from, &mut buffer, policy).await {
            Ok(Some(head)) => head,
            Ok(None) => return to.shutdown().await,
            Err(NoRequest::Broken(error)) => return Err(error),
            // An answer may be under way, so the connection is closed instead.
            Err(NoRequest::Refused(refused)) => return Err(wrong(refused.message)),
        };
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    moved: &watch::Sender<Instant>,
    idle: Duration,
) -> io::Result<()> {
    let mut part = vec![0; PART_BYTES];
    loop {
        let count = from.read(&mut part).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        moved.send_replace(Instant::now());
        // A reader that accepts no data counts as idle, like a writer that sends none.
        timeout(idle, to.write_all(&part[..count])).await.map_err(|_| io::ErrorKind::TimedOut)??;
        moved.send_replace(Instant::now());
    }
}

/// Answers with an error. `read` is the number of bytes already read from the client. The rest of the client's data is
/// read as well: closing a connection with unread data resets it, and the client would not see the answer.
async fn refuse(mut client: TcpStream, refused: Refused, mut read: usize) -> io::Result<()> {
    let deadline = Instant::now() + REFUSAL;
    let mut part = vec![0; PART_BYTES];
    if read == 0 {
        // Clients read an answer only after they have sent something.
        read = timeout_at(deadline, client.read(&mut part)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    }
    let Refused { status, code, message } = refused;
    let (reason, kind, retry) = match status {
        502 => ("Bad Gateway", "server_error", "Retry-After: 1\r\n"),
        503 => ("Service Unavailable", "server_error", "Retry-After: 1\r\n"),
        403 => ("Forbidden", "invalid_request_error", ""),
        415 => ("Unsupported Media Type", "invalid_request_error", ""),
        _ => ("Bad Request", "invalid_request_error", ""),
    };
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}}).to_string();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n{retry}Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let writing = async {
        client.write_all(head.as_bytes()).await?;
        client.write_all(body.as_bytes()).await?;
        client.shutdown().await
    };
    timeout_at(deadline, writing).await.map_err(|_| io::ErrorKind::TimedOut)??;
    while read < REFUSED_BYTES_MAX {
        match timeout_at(deadline, client.read(&mut part)).await {
            Ok(Ok(count)) if count > 0 => read += count,
            _ => break,
        }
    }
    Ok(())
}

/// Checks continuously whether every node answers. A stopped process still accepts connections but never answers.
async fn probe(nodes: &Upstreams, tell: impl Fn(String)) {
    let apis: Vec<Option<Api>> = nodes
        .0
        .iter()
        .map(|(node, _): &(String, AtomicBool)| node.parse::<Url>().ok().map(|url| Api::new(url, None)))
        .collect();
    loop {
        for ((node, answers), api) in nodes.0.iter().zip(&apis) {
            let Some(api) = api else { continue };
            let request = HttpRequest { path: "/health", ..HttpRequest::default() };
            // Any status counts as an answer: a node without a shard relays requests to one that serves.
            let answer = match timeout(PROBE, api.send(&request, PROBE)).await {
                Ok(Ok(response)) => response.whole(PROBE).await.map(drop),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(crate::http::HttpError::Timeout {
                    at: node.clone(),
                    what: "its health",
                    seconds: PROBE.as_secs(),
                }),
            };
            if answers.swap(answer.is_ok(), Ordering::Relaxed) != answer.is_ok() {
                tell(answer.err().map_or_else(|| format!("{node} answers again"), |error| error.to_string()));
            }
        }
        sleep(PROBE_PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
