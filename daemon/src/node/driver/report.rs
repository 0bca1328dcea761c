//! Reports: the node's state, its memory and its all-reduces by layer since the last report.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use common::{
    ids::{LayerIndex, Rank, RequestId},
    latency::Histogram,
    units::{Bytes, Nanoseconds},
};
use engine::collective::SyncRing;
use protocol::BUILD;
use telemetry::{
    Health, HopRecord, HopSync, Lateness, LayerSync, Measured, NodeReport, SyncKind, SyncRecord, hop::LATEST,
};

use crate::node::{Node, SessionId};

/// A client that receives reports at an interval.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) session: SessionId,
    pub(super) id: RequestId,
    pub(super) interval: Duration,
    pub(super) next: Instant,
    pub(super) cursors: Cursors,
}

/// Positions up to which a subscription has read the engine's records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursors {
    all_reduces: u64,
    hops: u64,
}

/// Fields of a report that stay constant while the daemon runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants<'a> {
    pub(super) name: &'a str,
    pub(super) instance: u64,
    pub(super) supervised: bool,
    pub(super) recovers: bool,
    pub(super) kernels: &'a str,
}

/// Composes a report.
pub(super) fn report(
    node: &Node,
    constants: Constants<'_>,
    (health, resident): (&Health, Bytes),
    measured: &Measured,
    ring: Option<&SyncRing>,
    cursors: &mut Cursors,
) -> NodeReport {
    let (layers, lateness) = ring.map_or_else(Default::default, |ring| exchanges(ring, &mut cursors.all_reduces));
    NodeReport {
        name: constants.name.into(),
        instance: constants.instance,
        supervised: constants.supervised,
        recovers: constants.recovers,
        unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64),
        build: BUILD.into(),
        kernels: constants.kernels.into(),
        state: node.state(),
        epoch: node.epoch(),
        topology: node.topology(),
        fault: node.fault(),
        load: node.load(),
        shard: node.shard(),
        memory_resident: resident,
        health: health.clone(),
        requests: node.request_count(),
        traces: node.traces(),
        tokens: node.tokens(),
        kv: node.kv(),
        layers,
        lateness,
        desired: node.desired().map(|desired| Box::new(desired.clone())),
        hops: ring.map_or_else(Vec::new, |ring| hops(&ring.hops().since(&mut cursors.hops))),
        collectives: ring.and_then(SyncRing::table).cloned(),
        exclusions: node.exclusions().clone(),
        rolling: node.rolling().cloned(),
        measured: measured.clone(),
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

/// The latest hand-overs, by sending member.
fn hops(records: &[HopRecord]) -> Vec<HopSync> {
    let records = &records[records.len().saturating_sub(LATEST)..];
    let mut found: BTreeMap<Rank, (Histogram, HopSync)> = BTreeMap::new();
    for record in records {
        let (hops, sum) = found.entry(record.from).or_default();
        sum.from = record.from;
        sum.count += 1;
        if let Some(hop) = record.hop {
            hops.record(hop);
            sum.timed += 1;
            sum.hop.0 += hop.0;
        }
        sum.blocked.0 += record.blocked.0;
        sum.compute.0 += record.compute.0;
        sum.sending.0 += record.sending.0;
        sum.bytes.0 += u64::from(record.bytes);
    }
    let mean = |sum: Nanoseconds, count: u32| Nanoseconds(sum.0 / u64::from(count.max(1)));
    let of = |(hops, sum): (Histogram, HopSync)| {
        let quantile = |quantile| hops.quantile(quantile).unwrap_or_default();
        HopSync {
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            hop: mean(sum.hop, sum.timed),
            blocked: mean(sum.blocked, sum.count),
            compute: mean(sum.compute, sum.count),
            sending: mean(sum.sending, sum.count),
            ..sum
        }
    };
    found.into_values().map(of).collect()
}

/// The all-reduces since the cursor, by layer and by the peer rank.
fn exchanges(ring: &SyncRing, cursor: &mut u64) -> (Vec<LayerSync>, Vec<Lateness>) {
    let mut sums: BTreeMap<(LayerIndex, SyncKind), Sums> = BTreeMap::new();
    let mut lateness: BTreeMap<Rank, Lateness> = BTreeMap::new();
    ring.read_since(cursor, |record: &SyncRecord| {
        let sum = sums.entry((record.layer, record.kind)).or_default();
        sum.latency.record(Nanoseconds(record.wait.0 + record.wire.0));
        sum.compute += record.compute.0;
        sum.wait += record.wait.0;
        sum.wire += record.wire.0;
        *sum.slowest.entry(record.slowest).or_default() += 1;
        let mut of = |rank, add: &dyn Fn(&mut Lateness)| {
            add(lateness.entry(rank).or_insert(Lateness { rank, ..Lateness::default() }));
        };
        if record.late.0 > 0 {
            of(record.last, &|late| {
                late.count += 1;
                late.time.0 += record.late.0;
            });
        }
        for arrival in &record.arrivals {
            of(arrival.rank, &|late| {
                late.heard += 1;
                late.first.0 += arrival.first.0;
                late.way.0 += arrival.way().0;
            });
        }
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
    (sums.into_iter().map(layer).collect(), lateness.into_values().collect())
}
