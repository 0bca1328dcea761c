//! Reports: the node's state, its memory and its all-reduces by layer since the last report.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use common::{
    ids::{LayerIndex, Rank},
    latency::Histogram,
    units::{Bytes, Nanoseconds},
};
use engine::collective::SyncLog;
use protocol::{BUILD, message::ResponseBody};
use telemetry::{HopRecord, HopSync, Lateness, LayerSync, Measured, NodeReport, SyncKind, SyncRecord, hop::LATEST};

use super::{
    context::DriverContext, cursors::Cursors, running::RunningEngine, sessions::OpenSessions, watching::HealthWatch,
};
use crate::{
    config::Paced,
    health::{Monitor, memory},
    node::{Node, effect::ReportEffect},
};

/// Resident memory is read at most this often.
const MEMORY_AGE: Duration = Duration::from_millis(500);

/// What a report is composed of.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportSources<'a> {
    pub(super) context: &'a DriverContext,
    pub(super) node: &'a Node,
    pub(super) engine: Option<&'a RunningEngine>,
    /// This node's measurements.
    pub(super) measured: &'a Measured,
}

/// Composes reports, and reads what they need from the machine.
#[derive(Debug)]
pub(super) struct Reports {
    pub(super) health: HealthWatch,
    /// Resident memory, and when it was read.
    memory: (Instant, Bytes),
}

impl Reports {
    pub(super) fn new(monitor: Monitor) -> Self {
        Self { health: HealthWatch::new(monitor), memory: (Instant::now(), memory::resident()) }
    }

    pub(super) fn perform(&mut self, effect: ReportEffect, sources: ReportSources<'_>, sessions: &mut OpenSessions) {
        match effect {
            ReportEffect::Current { session, id } => {
                self.memory = (Instant::now(), memory::resident());
                let body = self.report(sources, &mut Cursors::default());
                sessions.respond(session, id, body);
            }
            ReportEffect::Records { session, id } => {
                let mut records = Vec::new();
                if let Some(engine) = sources.engine {
                    engine.ring.read_since(&mut 0, |record| records.push(record.clone()));
                }
                sessions.respond(session, id, ResponseBody::Records(records));
            }
        }
    }

    /// Sends the reports that are due.
    pub(super) fn send_due(&mut self, sources: ReportSources<'_>, sessions: &mut OpenSessions) {
        if self.memory.0.elapsed() > MEMORY_AGE && sessions.has_watchers() {
            self.memory = (Instant::now(), memory::resident());
        }
        sessions.send_reports(Instant::now(), |cursors| self.report(sources, cursors));
    }

    fn report(&self, sources: ReportSources<'_>, cursors: &mut Cursors) -> ResponseBody {
        let ReportSources { context, node, engine, measured } = sources;
        let config = &context.config;
        let ring = engine.map(|engine| &*engine.ring);
        let (layers, lateness) = ring.map_or_else(Default::default, |ring| exchanges(ring, &mut cursors.all_reduces));
        ResponseBody::Report(Box::new(NodeReport {
            name: config.name.clone(),
            instance: context.instance,
            supervised: config.supervised,
            recovers: config.recovery.enabled,
            unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64),
            build: BUILD.into(),
            kernels: config.paced.as_ref().map_or_else(|| context.kernels.name.into(), Paced::kernels),
            state: node.state(),
            epoch: node.epoch(),
            topology: node.topology(),
            fault: node.fault(),
            load: node.load(),
            shard: node.shard(),
            memory_resident: self.memory.1,
            health: self.health.health.clone(),
            requests: node.request_count(),
            traces: node.traces(),
            tokens: node.tokens(),
            kv: node.kv(),
            layers,
            lateness,
            desired: node.desired().map(|desired| Box::new(desired.clone())),
            hops: ring.map_or_else(Vec::new, |ring| hops(&ring.hops().since(&mut cursors.hops))),
            collectives: ring.and_then(SyncLog::table).cloned(),
            exclusions: node.exclusions().clone(),
            rolling: node.rolling().cloned(),
            measured: measured.clone(),
            neighbours: node.neighbours().cloned().collect(),
            unloaded: node.named_unloaded(),
            expected: node.expected().map(|expected| Box::new(expected.clone())),
            store: Some(context.kv.usage()),
            memory_max: config.memory_max.map(Bytes),
        }))
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

impl Sums {
    fn of_layer(self, place: (LayerIndex, SyncKind)) -> LayerSync {
        let (layer, kind) = place;
        let count = self.latency.count().max(1);
        let quantile = |quantile| self.latency.quantile(quantile).unwrap_or_default();
        let slowest = self.slowest.iter().max_by_key(|(_, count)| **count).map_or(Rank(0), |(rank, _)| *rank);
        LayerSync {
            layer,
            kind,
            count: count as u32,
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            compute: Nanoseconds(self.compute / count),
            wait: Nanoseconds(self.wait / count),
            wire: Nanoseconds(self.wire / count),
            slowest,
        }
    }
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
    let summaries = found.into_values().map(|(hops, sum)| {
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
    });
    summaries.collect()
}

/// The all-reduces since the cursor, by layer and by the peer rank.
fn exchanges(ring: &SyncLog, cursor: &mut u64) -> (Vec<LayerSync>, Vec<Lateness>) {
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
    let layers = sums.into_iter().map(|(place, sum)| sum.of_layer(place));
    (layers.collect(), lateness.into_values().collect())
}
