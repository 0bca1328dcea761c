//! The all-reduces of a run as trace events (Chrome, Perfetto) with a track per rank, and as folded stacks for
//! flame graphs. Clocks of different machines are never compared: the tracks are aligned at the ends of all-reduces,
//! which all ranks reach together.
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use serde_json::{Value, json};
use telemetry::{SyncKind, SyncRecord};

/// The all-reduces of the ranks of a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankRecords<'a> {
    /// Names of the nodes, by rank.
    pub(super) names: &'a [String],
    /// Ranks of a stage.
    pub(super) ranks: usize,
    /// The records of each rank, oldest first.
    pub(super) records: &'a [Vec<SyncRecord>],
}

type RecordKey = (u64, u32, SyncKind);

fn key(record: &SyncRecord) -> RecordKey {
    (record.step, record.layer.0, record.kind)
}

/// The end of an all-reduce by its rank's own clock, in nanoseconds.
fn end(record: &SyncRecord) -> i64 {
    record.exit.0 as i64
}

fn begin(record: &SyncRecord) -> i64 {
    record.enter.0 as i64 - record.compute.0 as i64
}

/// The offset of each rank's clock that aligns the ends of all-reduces within a stage, and keeps every stage from
/// beginning a step before the previous stage has ended it.
fn offsets(records: &RankRecords<'_>) -> Vec<i64> {
    let mut offsets = vec![0; records.records.len()];
    for (stage, ranks) in records.records.chunks(records.ranks.max(1)).enumerate() {
        let first = stage * records.ranks;
        offsets[first] = stage.checked_sub(1).map_or(0, |before| {
            let before = before * records.ranks;
            offsets[before] + behind(&records.records[before], &ranks[0])
        });
        let ends: BTreeMap<RecordKey, i64> = ranks[0].iter().map(|record| (key(record), end(record))).collect();
        for (rank, others) in ranks.iter().enumerate().skip(1) {
            let mut apart: Vec<i64> =
                others.iter().filter_map(|record| Some(ends.get(&key(record))? - end(record))).collect();
            apart.sort_unstable();
            offsets[first + rank] = offsets[first] + apart.get(apart.len() / 2).copied().unwrap_or(0);
        }
    }
    offsets
}

/// How far to move a stage's clock so that none of its steps begins before the previous stage has ended it.
fn behind(front: &[SyncRecord], stage: &[SyncRecord]) -> i64 {
    let mut ends = BTreeMap::new();
    for record in front {
        ends.insert(record.step, end(record));
    }
    let mut begins = BTreeMap::new();
    for record in stage {
        begins.entry(record.step).or_insert(begin(record));
    }
    begins.iter().filter_map(|(step, begin)| Some(ends.get(step)? - begin)).max().unwrap_or(0)
}

/// The trace as an object of the Trace Event Format.
pub(super) fn events(records: &RankRecords<'_>) -> Value {
    let offsets = offsets(records);
    let all = || records.records.iter().zip(&offsets);
    let origin = all().filter_map(|(list, offset)| Some(begin(list.first()?) + offset)).min().unwrap_or(0);
    let mut events = Vec::new();
    for (rank, (list, offset)) in all().enumerate() {
        events.push(json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": rank,
            "args": {"name": format!("rank {rank} {}", records.names[rank])}}));
        for record in list {
            let place = format!("layer {} {}", record.layer, kind(record.kind));
            let mut at = begin(record) + offset - origin;
            let waits = format!("wait for {}", records.names.get(record.slowest.index()).map_or("?", String::as_str));
            let parts = [(place.as_str(), record.compute), (waits.as_str(), record.wait), ("wire", record.wire)];
            for (name, time) in parts.into_iter().filter(|(_, time)| time.0 > 0) {
                events.push(json!({"name": name, "ph": "X", "pid": 0, "tid": rank, "ts": at as f64 / 1e3, "dur": time.0 as f64 / 1e3,
                    "args": {"step": record.step, "tokens": record.tokens, "place": place}}));
                at += time.0 as i64;
            }
        }
    }
    for (rank, offset) in offsets.iter().enumerate() {
        arrivals(records, rank, offset - origin, &mut events);
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

/// A track for each peer of a rank: until its first byte arrived, and until its last. Track numbers follow those of
/// the ranks, so that these tracks are shown below.
fn arrivals(records: &RankRecords<'_>, rank: usize, offset: i64, events: &mut Vec<Value>) {
    let (world, list) = (records.records.len(), &records.records[rank]);
    let tid = |peer: usize| (rank + 1) * world + peer;
    let heard = list.iter().flat_map(|record| &record.arrivals).map(|arrival| arrival.rank.index());
    let peers: BTreeSet<usize> = heard.filter(|peer| *peer < world).collect();
    for peer in &peers {
        let name = format!("rank {rank} {} hears {}", records.names[rank], records.names[*peer]);
        events.push(json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": tid(*peer), "args": {"name": name}}));
    }
    for record in list {
        for arrival in record.arrivals.iter().filter(|arrival| peers.contains(&arrival.rank.index())) {
            let place = format!("layer {} {}", record.layer, kind(record.kind));
            let enter = record.enter.0 as i64 + offset;
            let parts =
                [("until its first byte", 0, arrival.first.0), ("on the way", arrival.first.0, arrival.whole.0)];
            for (name, from, to) in parts.into_iter().filter(|(.., to)| *to > 0) {
                let (ts, dur) = ((enter + from as i64) as f64 / 1e3, to.saturating_sub(from) as f64 / 1e3);
                events.push(
                    json!({"name": name, "ph": "X", "pid": 0, "tid": tid(arrival.rank.index()), "ts": ts, "dur": dur,
                    "args": {"step": record.step, "tokens": record.tokens, "place": place}}),
                );
            }
        }
    }
}

fn kind(kind: SyncKind) -> &'static str {
    match kind {
        SyncKind::Attention => "attention",
        SyncKind::FeedForward => "feed-forward",
    }
}

/// Folded stacks, one `node;phase;layer;all-reduce;part microseconds` per line.
pub(super) fn folded(records: &RankRecords<'_>) -> String {
    let mut sums: BTreeMap<(usize, bool, u32, SyncKind, &str), u64> = BTreeMap::new();
    for (rank, list) in records.records.iter().enumerate() {
        for record in list {
            for (part, time) in [("compute", record.compute), ("wait", record.wait), ("wire", record.wire)] {
                *sums.entry((rank, record.tokens == 1, record.layer.0, record.kind, part)).or_default() += time.0;
            }
        }
    }
    let mut text = String::new();
    for ((rank, is_decode, layer, which, part), time) in sums {
        let (name, phase) = (records.names[rank].replace([';', ' '], "_"), if is_decode { "decode" } else { "batch" });
        let micros = time / 1000;
        writeln!(text, "{name};{phase};layer_{layer};{};{part} {micros}", kind(which)).expect("a string takes all");
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use common::{
        ids::{LayerIndex, Rank},
        units::Nanoseconds,
    };
    use telemetry::Arrival;

    use super::*;

    pub(in crate::cli::profile) fn record(step: u64, layer: u32, enter: u64) -> SyncRecord {
        SyncRecord {
            step,
            enter: Nanoseconds(enter),
            exit: Nanoseconds(enter + 500),
            layer: LayerIndex(layer),
            kind: SyncKind::Attention,
            tokens: 1,
            compute: Nanoseconds(1000),
            wait: Nanoseconds(200),
            wire: Nanoseconds(300),
            slowest: Rank(1),
            last: Rank(1),
            late: Nanoseconds(0),
            arrivals: vec![Arrival { rank: Rank(1), first: Nanoseconds(150), whole: Nanoseconds(450) }],
        }
    }

    #[test]
    fn tracks_align_all_reduce_ends_and_order_stages() {
        // Two stages of two ranks with clocks far apart; a step takes 10 us.
        let of = |layer, clock: u64| (1..=3).map(|step| record(step, layer, clock + step * 10_000)).collect::<Vec<_>>();
        let all = [of(0, 5_000), of(0, 900_000), of(1, 40_000), of(1, 7_000)];
        let names: Vec<String> = (1..=4).map(|node| format!("pi{node}")).collect();
        let records = RankRecords { names: &names, ranks: 2, records: &all };
        let found = offsets(&records);
        assert_eq!(found[1] - found[0], 5_000 - 900_000);
        assert_eq!(found[3] - found[2], 40_000 - 7_000);
        // Stage 0 ends a step 500 ns after its enter; stage 1 enters a step 1000 ns after it begins.
        assert_eq!(end(&all[0][0]) + found[0], begin(&all[2][0]) + found[2]);
        let trace = events(&records);
        let list = trace["traceEvents"].as_array().expect("events");
        // Every rank has arrivals of rank 1 alone; those tracks are numbered after the tracks of the ranks.
        let tracks: Vec<_> = list.iter().filter(|event| event["ph"] == "M").map(|event| &event["tid"]).collect();
        assert_eq!(tracks, [0, 1, 2, 3, 5, 9, 13, 17]);
        let of = |name: &'static str| list.iter().filter(move |event| event["name"] == name && event["tid"] == 5);
        let (first, way) = (of("until its first byte").next(), of("on the way").next());
        let (first, way) = (first.expect("a first byte"), way.expect("the rest"));
        let enter = list.iter().find(|event| event["name"] == "wait for pi2" && event["tid"] == 0).expect("a wait");
        assert_eq!((&first["ts"], &first["dur"], &way["dur"]), (&enter["ts"], &json!(0.15), &json!(0.3)));
        let apart = way["ts"].as_f64().expect("a time") - first["ts"].as_f64().expect("a time");
        assert!((apart - 0.15).abs() < 1e-6, "{apart}");
        assert_eq!(list.iter().filter(|event| event["name"] == "wait for pi2").count(), 12);
        assert!(list.iter().filter(|event| event["ph"] == "X").all(|event| event["ts"].as_f64() >= Some(0.0)));
    }

    #[test]
    fn stacks_are_folded_by_node_phase_layer_and_part() {
        let names = ["pi 1;x".to_owned()];
        let all = [vec![record(1, 3, 0), record(2, 3, 0), SyncRecord { tokens: 8, ..record(3, 4, 0) }]];
        let text = folded(&RankRecords { names: &names, ranks: 1, records: &all });
        assert!(text.contains("pi_1_x;decode;layer_3;attention;compute 2\n"), "{text}");
        assert!(text.contains("pi_1_x;batch;layer_4;attention;compute 1\n"), "{text}");
        assert_eq!(text.lines().count(), 6);
    }
}
