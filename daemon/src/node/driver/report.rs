//! Reports: the node's state, its memory and its all-reduces by layer since the last report.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use shared::{
    ids::{LayerIndex, Rank, RequestId},
    latency::Histogram,
    protocol::BUILD,
    telemetry::{LayerSync, NodeReport, SyncKind, SyncRecord},
    units::Nanoseconds,
};

use crate::{
    collective::SyncRing,
    health::memory::Memory,
    node::{Node, SessionId},
};

/// Somebody who gets reports at an interval.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) session: SessionId,
    pub(super) id: RequestId,
    pub(super) interval: Duration,
    pub(super) next: Instant,
    pub(super) cursor: u64,
}

/// Composes a report.
pub(super) fn report(
    (node, name, kernels): (&Node, &str, &str),
    memory: Memory,
    ring: Option<&SyncRing>,
    cursor: &mut u64,
) -> NodeReport {
    NodeReport {
        name: name.into(),
        build: BUILD.into(),
        kernels: kernels.into(),
        state: node.state(),
        epoch: node.epoch(),
        topology: node.topology(),
        fault: node.fault(),
        load: node.load(),
        shard: node.shard(),
        memory_resident: memory.resident,
        memory_available: memory.available,
        memory_total: memory.total,
        requests: node.request_count(),
        tokens: node.tokens(),
        layers: ring.map_or(Vec::new(), |ring| layers(ring, cursor)),
    }
}

#[derive(Default)]
struct Sums {
    latency: Histogram,
    compute: u64,
    wait: u64,
    wire: u64,
    slowest: BTreeMap<Rank, u32>,
}

fn layers(ring: &SyncRing, cursor: &mut u64) -> Vec<LayerSync> {
    let mut sums: BTreeMap<(LayerIndex, SyncKind), Sums> = BTreeMap::new();
    ring.read_since(cursor, |record: SyncRecord| {
        let sum = sums.entry((record.layer, record.kind)).or_default();
        sum.latency.record(Nanoseconds(record.wait.0 + record.wire.0));
        sum.compute += record.compute.0;
        sum.wait += record.wait.0;
        sum.wire += record.wire.0;
        *sum.slowest.entry(record.slowest).or_default() += 1;
    });
    let layer = |((layer, kind), sum): ((LayerIndex, SyncKind), Sums)| {
        let count = sum.latency.count().max(1);
        let quantile = |quantile| sum.latency.quantile(quantile).unwrap_or_default();
        let slowest = sum.slowest.into_iter().max_by_key(|(_, count)| *count).map_or(Rank(0), |(rank, _)| rank);
        LayerSync {
            layer,
            kind,
            count: count as u32,
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            compute: Nanoseconds(sum.compute / count),
            wait: Nanoseconds(sum.wait / count),
            wire: Nanoseconds(sum.wire / count),
            slowest,
        }
    };
    sums.into_iter().map(layer).collect()
}
