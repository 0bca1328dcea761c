//! Lets nodes measure the links between them: one node after another, so that no two measurements share a link.
use std::{collections::HashSet, sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    bench::Bench,
    network::{BenchNetwork, Neighbour},
};
use telemetry::{BenchFound, BenchProgress, NetworkBench};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{assign::reports, bench::bench, session::Session};

/// Extent of a link measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Round trips per link.
    pub pings: u32,
    /// Milliseconds per stream.
    pub stream_ms: u32,
    /// Whether to also measure streams from all nodes to one node at once.
    pub incast: bool,
}

impl Effort {
    /// A short measurement: about a second for up to 8 nodes, and at least 8 ms per link for more nodes.
    pub fn short(nodes: usize) -> Self {
        let links = (nodes * nodes.saturating_sub(1)).max(1) as u32;
        Self { pings: (1000 / links).clamp(8, 64), stream_ms: (800 / links).clamp(8, 60), incast: false }
    }
}

/// How long to try again: a node may still count a request that has just ended.
const SETTLE: Duration = Duration::from_secs(2);
/// Interval between two attempts.
const AGAIN: Duration = Duration::from_millis(250);

/// The results of each node for its links from all others, in the order of the sessions.
///
/// # Errors
/// A node runs a request, cannot reach another node, or speaks an older wire version.
pub async fn measure(
    sessions: &[Arc<Session>],
    effort: Effort,
    tell: &(dyn Fn(&str, &BenchProgress) + Sync),
    cancel: &CancellationToken,
) -> Result<Vec<NetworkBench>, Fault> {
    let begun = Instant::now();
    loop {
        match measure_once(sessions, effort, tell, cancel).await {
            Err(fault) if matches!(fault.kind, FaultKind::RequestsRun { .. }) && begun.elapsed() < SETTLE => {
                sleep(AGAIN).await;
            }
            found => return found,
        }
    }
}

async fn measure_once(
    sessions: &[Arc<Session>],
    effort: Effort,
    tell: &(dyn Fn(&str, &BenchProgress) + Sync),
    cancel: &CancellationToken,
) -> Result<Vec<NetworkBench>, Fault> {
    // A neighbour is identified by its name.
    let mut names = HashSet::new();
    if let Some(twice) = sessions.iter().find(|session| !names.insert(&session.identity.name)) {
        let name = &twice.identity.name;
        let reason = format!("cannot measure links: {name} is given twice, or two nodes have this name");
        return Err(Fault::new(name, FaultKind::ParameterInvalid { reason }));
    }
    // Only the head can report running requests; the other ranks of a topology see only steps.
    for report in reports(sessions).await? {
        if report.requests > 0 {
            return Err(Fault::new(&report.name, FaultKind::RequestsRun { count: report.requests }));
        }
    }
    let mut found = Vec::with_capacity(sessions.len());
    for session in sessions {
        let name = &session.identity.name;
        let others = sessions.iter().filter(|other| !Arc::ptr_eq(other, session));
        let Effort { pings, stream_ms, incast } = effort;
        let wanted = BenchNetwork {
            peers: others
                .map(|other: &Arc<Session>| Neighbour {
                    name: other.identity.name.clone(),
                    address: other.address.clone(),
                })
                .collect(),
            pings,
            stream_ms,
            incast,
        };
        match bench(session, Bench::Network(wanted), &|progress| tell(name, progress), cancel).await? {
            BenchFound::Network(one) => found.push(one),
            BenchFound::Node(_) | BenchFound::Kernels(_) => {
                let reason = "unexpected response: not a link measurement".into();
                return Err(Fault::new(name, FaultKind::Malformed { reason }));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use protocol::network::STREAM_MS;

    use super::*;

    #[test]
    fn short_measurement_of_eight_nodes_takes_little_time() {
        for nodes in 2..=16_u32 {
            let effort = Effort::short(nodes as usize);
            assert!(STREAM_MS.contains(&effort.stream_ms) && effort.pings > 0 && !effort.incast);
            let links = nodes * (nodes - 1);
            // Round trips of 300 us, as over a switch of 1 Gb/s.
            let ms = links * (effort.stream_ms + effort.pings * 3 / 10);
            assert!(nodes > 8 || ms < 1500, "{nodes} nodes: {ms} ms");
        }
    }
}
