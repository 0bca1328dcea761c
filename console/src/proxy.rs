//! Relays connections to the HTTP API of the first node that answers: bytes as they are and as they come, so that streams are not
//! held up. What answers is asked for all the time; a client hears of nodes that are all away as an error of the OpenAI API.
use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::http::{Api, Request, Url};

/// A node must take a connection within this.
const CONNECT: Duration = Duration::from_secs(2);
/// A node must say how it is within this.
const PROBE: Duration = Duration::from_secs(1);
/// Between two questions of how nodes are.
const PROBE_PAUSE: Duration = Duration::from_secs(2);
/// A client that is refused may send its request for so long.
const REFUSAL: Duration = Duration::from_secs(2);
/// What of such a request is read and thrown away.
const REFUSED_BYTES_MAX: usize = 16 << 20;
/// Bytes that are relayed at once.
const PART_BYTES: usize = 32 << 10;

/// Bounds of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time; more are refused.
    pub connections: usize,
    /// A connection on which nothing moves for so long is closed.
    pub idle: Duration,
}

/// The nodes, `HOST:PORT`, with whether each answered when it was asked last.
#[derive(Debug)]
struct Nodes(Vec<(String, AtomicBool)>);

impl Nodes {
    /// Those that answered first, each part in the order in which they were named.
    fn in_order(&self) -> Vec<&str> {
        let part = |answers: bool| {
            let is_it = move |(_, answered): &&(String, AtomicBool)| answered.load(Ordering::Relaxed) == answers;
            self.0.iter().filter(is_it).map(|(node, _)| node.as_str())
        };
        part(true).chain(part(false)).collect()
    }

    /// Opens a connection to the first node that takes one.
    async fn dial(&self) -> Result<TcpStream, String> {
        let mut reasons = Vec::new();
        for node in self.in_order() {
            match timeout(CONNECT, TcpStream::connect(node)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => reasons.push(format!("{node}: {error}")),
                Err(_) => reasons.push(format!("{node}: no answer within {} s", CONNECT.as_secs())),
            }
        }
        Err(format!("no node can be reached: {}", reasons.join("; ")))
    }
}

/// Relays until it is dropped. `nodes` are `HOST:PORT`; `tell` hears when a node begins or ceases to answer.
pub async fn run(
    listener: TcpListener,
    nodes: Vec<String>,
    limits: Limits,
    tell: impl Fn(String) + Send + 'static,
) -> Infallible {
    let nodes = Arc::new(Nodes(nodes.into_iter().map(|node| (node, AtomicBool::new(true))).collect()));
    let places = Arc::new(Semaphore::new(limits.connections));
    // What is dropped ends with this function.
    let mut tasks = JoinSet::new();
    let probed = Arc::clone(&nodes);
    tasks.spawn(async move { probe(&probed, tell).await });
    loop {
        while tasks.try_join_next().is_some() {}
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                // Too many open files: some connection must end first.
                tracing::warn!("cannot accept: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Refusals are bounded, too: they have a deadline of seconds.
        if tasks.len() > 2 * limits.connections + 64 {
            continue;
        }
        let (nodes, place) = (Arc::clone(&nodes), Arc::clone(&places).try_acquire_owned());
        tasks.spawn(async move {
            let result = match place {
                Ok(_place) => serve(client, &nodes, limits.idle).await,
                Err(_) => {
                    let message = format!("the proxy has {} connections already", limits.connections);
                    refuse(client, 503, "proxy_full", &message).await
                }
            };
            if let Err(error) = result {
                tracing::info!("a connection ended: {error}");
            }
        });
    }
}

async fn serve(client: TcpStream, nodes: &Nodes, idle: Duration) -> io::Result<()> {
    let node = match nodes.dial().await {
        Ok(node) => node,
        Err(message) => return refuse(client, 502, "no_node", &message).await,
    };
    client.set_nodelay(true)?;
    node.set_nodelay(true)?;
    let (client_reader, client_writer) = client.into_split();
    let (node_reader, node_writer) = node.into_split();
    let (moved, last) = watch::channel(Instant::now());
    let up = pump(client_reader, node_writer, &moved, idle);
    let down = pump(node_reader, client_writer, &moved, idle);
    let both = async {
        tokio::pin!(up, down);
        tokio::select! {
            // The answer to a request whose sender said all it has to say is still to come.
            result = &mut up => {
                result?;
                down.await
            }
            // Nobody answers any more: what else the client says is lost on the node.
            result = &mut down => result,
        }
    };
    tokio::select! {
        result = both => result,
        () = stillness(last, idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moved for too long")),
    }
}

/// Ends when nothing has moved in either direction for so long.
async fn stillness(last: watch::Receiver<Instant>, idle: Duration) {
    loop {
        let until = *last.borrow() + idle;
        if until <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
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
        // A reader that takes nothing is as still as a writer that says nothing.
        timeout(idle, to.write_all(&part[..count])).await.map_err(|_| io::ErrorKind::TimedOut)??;
        moved.send_replace(Instant::now());
    }
}

/// Answers with an error, whatever is asked. What the client sends meanwhile is read: a connection closed over unread bytes is reset,
/// and the client would not see the answer.
async fn refuse(mut client: TcpStream, status: u16, code: &str, message: &str) -> io::Result<()> {
    let deadline = Instant::now() + REFUSAL;
    let mut part = vec![0; PART_BYTES];
    // Clients read an answer once they have sent something.
    let mut read = timeout_at(deadline, client.read(&mut part)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let body = json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}}).to_string();
    let reason = if status == 502 { "Bad Gateway" } else { "Service Unavailable" };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
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

/// Asks every node again and again whether it answers. One that is stopped takes connections and says nothing.
async fn probe(nodes: &Nodes, tell: impl Fn(String)) {
    let parse = |(node, _): &(String, AtomicBool)| node.parse::<Url>().ok().map(|url| Api::new(url, None));
    let apis: Vec<Option<Api>> = nodes.0.iter().map(parse).collect();
    loop {
        for ((node, answers), api) in nodes.0.iter().zip(&apis) {
            let Some(api) = api else { continue };
            let request = Request { path: "/health", ..Request::default() };
            // A status of any kind is an answer: a node that holds no shard relays to one that serves.
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
#[path = "proxy_tests.rs"]
mod tests;
