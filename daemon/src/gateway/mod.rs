//! The OpenAI API, and others that programs speak, on a separate port. A client of the nodes like a console: it reaches
//! all of them, including its own, only by sessions on port 9999. Owns admission, routing and the clients' view; never schedules or computes, and assigns only in `changes`.
mod admission;
mod answer;
mod anthropic;
mod blocks;
mod bodies;
mod budget;
mod calls;
mod changes;
mod choice;
pub mod cluster;
mod complete;
mod connections;
mod constraint;
pub mod continuation;
mod conversation;
mod embeddings;
mod ended;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod health;
mod http;
mod intake;
mod metrics;
mod models;
mod native;
mod nodes;
mod object;
mod older_heads;
mod ollama;
mod openai;
mod openapi;
mod outline;
mod pages;
mod parsing;
mod paths;
mod pinned;
mod pool;
pub mod queues;
mod reading;
mod request;
mod responses;
pub mod route;
mod sampling;
mod schemas;
mod scores;
mod sessions;
mod settings;
mod socket;
mod stream;
mod texts;
mod thoughts;
mod trace;
mod typed_json;
mod unread;
mod web;
mod writer;

pub use settings::{ApiKey, GatewaySettings, Wanted, check_mode};

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, atomic::AtomicU32},
    time::Duration,
};

use anyhow::Context;
use protocol::{handshake::Identity, recovery::Committed};
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    admission::Admission, bodies::Bodies, changes::LoadTurns, cluster::Cluster, health::LoadProgress, metrics::Metrics,
    parsing::Parsing, responses::ResponseStore, scores::ScoreBudget, sessions::Sessions, texts::TextTurns,
    trace::Traces, unread::RestTurns,
};
use crate::listening;

/// Time limit for the last errors to reach clients at the end of the drain.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// State shared by all requests.
struct Gateway {
    settings: GatewaySettings,
    identity: Identity,
    cluster: Arc<Cluster>,
    admission: Arc<Admission>,
    sessions: Sessions,
    metrics: Metrics,
    traces: Traces,
    loading: Mutex<Option<LoadProgress>>,
    /// Answers in progress.
    running: AtomicU32,
    bodies: Bodies,
    scores: ScoreBudget,
    responses: Arc<ResponseStore>,
    loads: LoadTurns,
    parsing: Parsing,
    texts: TextTurns,
    rests: RestTurns,
    /// Cancelled when answers that are still running must end.
    cut: CancellationToken,
}

impl Gateway {
    /// A gateway without requests.
    fn new(settings: GatewaySettings, identity: Identity, cluster: Arc<Cluster>, cut: CancellationToken) -> Self {
        let (bodies, responses) = (Bodies::new(settings.memory), Arc::new(ResponseStore::new(settings.memory)));
        let scores = ScoreBudget::new(settings.memory);
        Self {
            admission: Arc::new(Admission::new(Arc::clone(&cluster), settings.queue, settings.recovers)),
            settings,
            identity,
            sessions: Sessions::default(),
            metrics: Metrics::default(),
            traces: Traces::default(),
            loading: Mutex::new(None),
            running: AtomicU32::new(0),
            bodies,
            scores,
            responses,
            loads: LoadTurns::default(),
            parsing: Parsing::default(),
            texts: TextTurns::default(),
            rests: RestTurns::default(),
            cut,
            cluster,
        }
    }
}

/// A running gateway.
pub struct RunningGateway {
    connections: TaskTracker,
    stop: CancellationToken,
    cut: CancellationToken,
    tasks: [JoinHandle<()>; 3],
}

/// Binds the address of the API. `None`: the API is off, or the default address is in use.
///
/// # Errors
/// An explicitly configured address cannot be bound.
pub async fn bind(settings: &GatewaySettings) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = settings.listen else { return Ok(None) };
    match listening::listen(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if settings.is_default => {
            tracing::warn!("no HTTP API: cannot listen on {address} ({error}); use another --http ADDR:PORT, or off");
            Ok(None)
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot listen on {address}; use another --http ADDR:PORT, or off"))
        }
    }
}

/// Serves on a bound address. `own` is the address of the node itself, `committed` the topology from before this start.
pub fn serve(
    listener: TcpListener,
    settings: GatewaySettings,
    own: SocketAddr,
    identity: Identity,
    committed: Option<Committed>,
) -> RunningGateway {
    let mut cluster = Cluster::new(dialled(own), settings.peers.clone(), identity.clone(), settings.silent);
    if let Some(committed) = committed.filter(|_| settings.recovers) {
        cluster.expect(committed);
    }
    let cluster = Arc::new(cluster);
    let cut = CancellationToken::new();
    let gateway = Gateway::new(settings, identity, Arc::clone(&cluster), cut.clone());
    let (connections, stop) = (TaskTracker::new(), CancellationToken::new());
    let learning = tokio::spawn(Arc::clone(&gateway.admission).learn());
    let router = http::router(Arc::new(gateway));
    let accepting = tokio::spawn(socket::accept(listener, router, connections.clone(), stop.clone()));
    RunningGateway { connections, stop, cut, tasks: [accepting, learning, tokio::spawn(cluster.watch())] }
}

impl RunningGateway {
    /// Stops accepting connections and waits at most `patience` for running answers to reach their clients; clients
    /// that still wait then get an error.
    pub async fn end(self, patience: Duration) {
        self.stop.cancel();
        let [mut accepting, learning, watching] = self.tasks;
        // It ends once the last connections are counted. Clients that go on connecting do not delay the stop.
        if timeout(LAST_WORDS, &mut accepting).await.is_err() {
            accepting.abort();
        }
        self.connections.close();
        if timeout(patience, self.connections.wait()).await.is_err() {
            tracing::warn!("the drain is over: ending {} HTTP connections with an error", self.connections.len());
            self.cut.cancel();
            // Clients that do not read do not receive it.
            let _ = timeout(LAST_WORDS, self.connections.wait()).await;
        }
        // The last bytes are in the kernel's buffers; a moment lets it send them.
        sleep(Duration::from_millis(10)).await;
        learning.abort();
        watching.abort();
    }
}

/// Address of this node for dialling: loopback if it listens on all interfaces.
pub fn dialled(own: SocketAddr) -> String {
    let ip = match own.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, own.port()).to_string()
}
