//! Measures links to other nodes on separate connections, and serves the other end. A node that runs a request refuses
//! to start either.
mod line;
mod measure;
mod serve;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use common::fault::{Fault, FaultKind};
use protocol::network::{BenchNetwork, NETWORK_SECONDS_MAX};
use telemetry::{BenchFound, KnownLink, Measured, NetworkBench, NodeBench, NodeState};
use tokio::{
    sync::{Semaphore, mpsc::channel},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Input,
    bench_task::{BenchSources, BenchStart, BenchTask},
    running::RunningEngine,
};

/// Most incoming measuring links at the same time.
const LINES_MAX: usize = 4;
/// Most measured links that are kept.
const KNOWN_MAX: usize = protocol::network::PEERS_MAX;
/// Capacity of the progress queue.
const PROGRESS_MAX: usize = 8;
/// An engine that made progress within this time counts as busy.
const QUIET: Duration = Duration::from_millis(250);

/// This node's view of its network.
#[derive(Debug)]
pub(super) struct Network {
    /// Permits for incoming measuring links.
    lines: Arc<Semaphore>,
    /// This node's measurements.
    pub(super) measured: Measured,
}

impl Default for Network {
    fn default() -> Self {
        Self { lines: Arc::new(Semaphore::new(LINES_MAX)), measured: Measured::default() }
    }
}

/// Refuses a measurement while this node runs a request or loads: each would slow down the other.
fn check_quiet(sources: BenchSources<'_>) -> Result<(), FaultKind> {
    let state = sources.node.state();
    let works = sources.engine.is_some_and(|engine| engine.has_worked_within(QUIET));
    match state {
        NodeState::Idle | NodeState::Ready | NodeState::Faulted if !works => Ok(()),
        // Only the head has the number of running requests.
        NodeState::Ready | NodeState::Serving => {
            Err(FaultKind::RequestsRun { count: sources.node.request_count().max(1) })
        }
        state => Err(FaultKind::NotIdle { state: state.name().into() }),
    }
}

/// Starts a link measurement; its result arrives as `Event::BenchEnded`.
pub(super) fn start(bench: BenchStart, wanted: BenchNetwork, sources: BenchSources<'_>) -> BenchTask {
    let BenchStart { key, before } = bench;
    let context = sources.context;
    let cancel = CancellationToken::new();
    let (inputs, own, cancelled) = (context.inputs.clone(), context.identity.clone(), cancel.clone());
    // `Benching` is this very bench on an otherwise idle node.
    let is_idle = sources.node.state() == NodeState::Benching;
    let quiet = if is_idle { Ok(()) } else { check_quiet(sources).and_then(|()| sources.node.check_assigning()) };
    let engine = sources.engine.map(RunningEngine::engine);
    let name = context.config.name.clone();
    let task = tokio::spawn(async move {
        if let Some(before) = before {
            before.gone().await;
        }
        let begun = engine.as_ref().map(|engine| engine.progress());
        let (told, mut progress) = channel(PROGRESS_MAX);
        let telling = async {
            while let Some(progress) = progress.recv().await {
                // The send fails only when the driver has ended, which cancels this bench.
                let _ = inputs.send(Input::Event(Event::BenchProgress(key, progress))).await;
            }
        };
        let measuring = async {
            let told = told;
            quiet?;
            measure::measure(&own, &wanted, &told, || {
                let is_busy = engine.as_ref().map(|engine| engine.progress()) != begun;
                if is_busy { Err(FaultKind::RequestsRun { count: 1 }) } else { Ok(()) }
            })
            .await
        };
        let work = async { tokio::join!(measuring, telling).0 };
        let patience = Duration::from_secs(u64::from(NETWORK_SECONDS_MAX));
        let late = FaultKind::Timeout { what: "measuring links".into(), seconds: NETWORK_SECONDS_MAX };
        let found = tokio::select! {
            () = cancelled.cancelled() => return,
            found = timeout(patience, work) => found.unwrap_or(Err(late)),
        };
        let result = found.map(BenchFound::Network).map_err(|kind| Fault::new(&name, kind));
        let _ = inputs.send(Input::Event(Event::BenchEnded(key, result))).await;
    });
    BenchTask::new(key, cancel, task)
}

impl Network {
    /// Stores the results of a bench for the planner.
    pub(super) fn keep(&mut self, found: &BenchFound) {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        match found {
            BenchFound::Network(found) => self.keep_links(found, unix_ms),
            BenchFound::Node(found) => self.measured.speed = Some((Box::new(shortened(found)), unix_ms)),
            BenchFound::Kernels(_) => {}
        }
    }

    fn keep_links(&mut self, found: &NetworkBench, unix_ms: u64) {
        let links = &mut self.measured.links;
        links.retain(|known| !found.links.iter().any(|link| link.peer == known.peer));
        links.extend(found.links.iter().map(|link| KnownLink {
            peer: link.peer.clone(),
            round_trip: link.p50,
            bits_per_second: link.bits_per_second,
            unix_ms,
        }));
        let surplus = links.len().saturating_sub(KNOWN_MAX);
        links.drain(..surplus);
    }
}

/// The results that the planner uses, small enough for every report: bandwidth of all threads, first context, longest
/// prompt.
fn shortened(found: &NodeBench) -> NodeBench {
    NodeBench {
        bandwidth: found.bandwidth.last().copied().into_iter().collect(),
        decode: found.decode.first().copied().into_iter().collect(),
        prefill: found.prefill.iter().max_by_key(|prefill| prefill.tokens).copied().into_iter().collect(),
        rows: Vec::new(),
        ids: Vec::new(),
        skipped: Vec::new(),
        ..found.clone()
    }
}
