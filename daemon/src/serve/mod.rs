//! Listens on port 9999: one task per connection, first the handshake, then a console's session or the hand-off of a
//! rank's socket. Turns signals into a drain. Decides nothing about assignments or requests.
mod access;
mod announce;
mod audit;
mod desk;
mod limits;
mod pid_file;
mod port;
mod session;

pub use pid_file::PidFile;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use engine::Variant;
use kernels::Kernels;
use protocol::{BUILD, NUMERIC_VERSION, handshake::Identity};
use tokio::{
    io::AsyncReadExt,
    net::TcpListener,
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Semaphore, mpsc::Sender},
};
use tokio_util::task::TaskTracker;

use self::{
    desk::Desk,
    limits::{Limits, Quiet},
};
use crate::{
    config::{Config, DaemonArguments},
    gateway,
    health::machine,
    keys,
    listening::{self, AcceptFailures},
    node::{
        Event,
        driver::{
            Driver, DriverInit, Input, Inputs, ResponseBudget, extend_stop,
            state::{PersistedState, StateFolder},
            steward::StewardDriver,
        },
    },
};

/// Maximum of connections after their handshake.
const CONNECTIONS_MAX: usize = 512;
/// Of these, maximum of viewers.
const VIEWERS_MAX: usize = 256;

/// Longest delay of the exit by answers of other nodes that clients still read.
const GATEWAY_DRAIN: Duration = Duration::from_secs(5);

/// State shared by all connections of a node.
struct Host {
    identity: Identity,
    config: Arc<Config>,
    inputs: Sender<Input>,
    desk: Desk,
    limits: Mutex<Limits>,
    quiet: Mutex<Quiet>,
    /// Rate limit of audit lines about viewers.
    viewers_quiet: Arc<Mutex<Quiet>>,
    /// Permits for connections after their handshake: for all, and for viewers.
    places: Semaphore,
    viewers_places: Semaphore,
    /// Budget for responses that wait for their sockets.
    room: ResponseBudget,
    started: Instant,
}

impl Host {
    /// Logs a refused connection, unless there were too many recently.
    fn tell_refused(&self, peer: SocketAddr, why: &str) {
        // This node's own gateway retries until there is a key.
        if !peer.ip().is_loopback() && peer.ip() == self.config.listen.ip() {
            return tracing::debug!(%peer, "connection refused: {why}");
        }
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        match quiet.may_tell(self.started.elapsed()) {
            Some(0) => tracing::info!(%peer, "connection refused: {why}"),
            Some(left_out) => tracing::info!(%peer, left_out, "connection refused: {why}"),
            None => {}
        }
    }

    /// Each lock is held briefly, and its contents are intact even if a task panicked.
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals to the process. Handled before the port is bound: any process that sees the port open may send one, and an
/// unhandled signal ends the process.
pub struct Signals {
    ends: [Signal; 2],
    hangups: Signal,
}

impl Signals {
    /// # Errors
    /// Signals cannot be handled.
    pub fn listen() -> anyhow::Result<Self> {
        let heard = |kind| signal(kind).context("cannot handle signals");
        let ends = [heard(SignalKind::terminate())?, heard(SignalKind::interrupt())?];
        Ok(Self { ends, hangups: heard(SignalKind::hangup())? })
    }
}

/// Binds the port; if it is in use, the error names the process that holds it.
///
/// # Errors
/// The address cannot be bound.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listening::listen(address).await.with_context(|| match port::holder(address) {
        Some(holder) => format!(
            "cannot listen on {address}: {holder} holds it; stop that process or use another \
         --listen"
        ),
        None => format!("cannot listen on {address}; use another --listen ADDR:PORT"),
    })
}

/// The sockets and the state of the daemon.
pub struct Resources {
    /// Signals that end the daemon or reload its settings.
    pub signals: Signals,
    /// The port for consoles and nodes.
    pub listener: TcpListener,
    /// The port of the HTTP API.
    pub http: Option<TcpListener>,
    /// The state directory.
    pub state: StateFolder,
    /// The records that it held at startup.
    pub persisted: PersistedState,
}

/// Serves until the node exits; returns the exit code. `heartbeats` is a runtime used only for heartbeats. SIGHUP
/// reloads the settings from `arguments`.
///
/// # Errors
/// A thread of the daemon cannot be started.
pub async fn serve(
    config: Config,
    arguments: DaemonArguments,
    resources: Resources,
    kernels: &'static Kernels,
    heartbeats: Handle,
    variant: Variant,
) -> anyhow::Result<i32> {
    let Resources { signals, listener, http, state, persisted } = resources;
    let identity = Identity {
        name: config.name.clone(),
        build: BUILD.into(),
        numeric: NUMERIC_VERSION,
        machine: machine::machine(&config.health_root),
        cores: machine::allowed_cores(),
    };
    let (started, committed) = (Instant::now(), persisted.committed.clone());
    let (own, settings) = (listener.local_addr().unwrap_or(config.listen), config.http.clone());
    let announcing = config.mdns.then(|| tokio::spawn(announce::keep(own, config.name.clone())));
    let config = Arc::new(config);
    let init = DriverInit {
        config: Arc::clone(&config),
        identity: identity.clone(),
        kernels,
        state,
        persisted,
        heartbeats,
        variant,
    };
    let (driver, Inputs { sender: inputs, receiver }) = Driver::new(init).context("cannot start a thread")?;
    let current = driver.settings();
    let steward = StewardDriver::new(current.clone(), identity.clone(), gateway::dialled(own));
    let draining = Arc::<OnceLock<Instant>>::default();
    for signal in signals.ends {
        tokio::spawn(end_at(signal, inputs.clone(), started, Arc::clone(&draining)));
    }
    if arguments.exit_with_parent {
        tokio::spawn(watch_parent());
    }
    tokio::spawn(reload_at(signals.hangups, inputs.clone(), arguments));
    tokio::spawn(keys::keep_expiries(current.clone()));
    let sessions = TaskTracker::new();
    let desk = Desk::new(config.state.clone());
    let host = Arc::new(Host {
        identity: identity.clone(),
        config,
        inputs,
        desk,
        limits: Mutex::default(),
        quiet: Mutex::default(),
        viewers_quiet: Arc::default(),
        places: Semaphore::new(CONNECTIONS_MAX),
        viewers_places: Semaphore::new(VIEWERS_MAX),
        room: ResponseBudget::default(),
        started,
    });
    let accepting = tokio::spawn(accept(listener, host, sessions.clone()));
    let gateway = http.map(|listener| gateway::serve(listener, settings, own, identity, committed));
    let steward = tokio::spawn(steward.run());
    let code = driver.run(receiver).await;
    steward.abort();
    if let Some(announcing) = announcing {
        announcing.abort();
        // Sends its goodbye; the error of the cancelled task is expected.
        let _ = announcing.await;
    }
    if let Some(gateway) = gateway {
        // Answers that other nodes compute have the rest of the drain, too, and some time even if none is left.
        let drain = current.borrow().drain;
        let rest = draining.get().map_or(Duration::ZERO, |begun| drain.saturating_sub(begun.elapsed()));
        let patience = rest.max(drain.min(GATEWAY_DRAIN));
        extend_stop(patience);
        gateway.end(patience).await;
    }
    accepting.abort();
    // The driver has dropped its senders: sessions write their queued messages, then close.
    sessions.close();
    let _ = tokio::time::timeout(Duration::from_secs(1), sessions.wait()).await;
    Ok(code)
}

async fn accept(listener: TcpListener, host: Arc<Host>, sessions: TaskTracker) {
    let mut failures = AcceptFailures::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(ticket) = host.limits().admit(peer.ip(), host.started.elapsed()) else {
                    host.tell_refused(peer, "too many attempts from its address");
                    continue;
                };
                let host = Arc::clone(&host);
                sessions.spawn(async move { session::run(stream, peer, &host, ticket).await });
            }
            Err(error) => failures.pause("node", &error).await,
        }
    }
}

/// Drains on SIGTERM and SIGINT; `draining`: when the drain began.
async fn end_at(mut signals: Signal, inputs: Sender<Input>, started: Instant, draining: Arc<OnceLock<Instant>>) {
    while signals.recv().await.is_some() {
        draining.get_or_init(Instant::now);
        let event = Event::Terminate { now: started.elapsed() };
        // If the driver is gone, the node has exited already.
        let _ = inputs.send(Input::Event(event)).await;
    }
}

/// Reloads the settings on SIGHUP; if they are invalid, the current ones stay in force.
async fn reload_at(mut hangups: Signal, inputs: Sender<Input>, arguments: DaemonArguments) {
    while hangups.recv().await.is_some() {
        let arguments = arguments.clone();
        match tokio::task::spawn_blocking(move || {
            let config = Config::load(arguments)?;
            keys::reload(&config)?;
            anyhow::Ok(config)
        })
        .await
        {
            Ok(Ok(config)) => {
                let _ = inputs.send(Input::Reloaded(Box::new(config))).await;
            }
            Ok(Err(error)) => tracing::error!("cannot reload the settings: {error:#}"),
            Err(error) => tracing::error!("cannot reload the settings: {error}"),
        }
    }
}

/// Ends the process immediately when standard input closes, because the parent has ended, even by kill -9.
async fn watch_parent() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 64];
    while matches!(stdin.read(&mut ignored).await, Ok(count) if count > 0) {}
    tracing::info!("standard input closed: the parent process has ended");
    std::process::exit(0);
}
