//! The gateway's counters in Prometheus text format. Written by hand: one file instead of a package for some twenty
//! lines of `name{label="value"} number`.
use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use common::units::Nanoseconds;
use telemetry::{HopSync, KvUse, NodeReport, NodeState, StoreUse, Warning, window::Culprits};
use topology::Topology;

use super::{admission::Occupancy, answer::Ended};

/// Upper bounds of the histogram buckets for TTFT, in seconds.
const TTFT_S: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0];
/// Upper bounds of the histogram buckets for the time per output token, in seconds.
const TPOT_S: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.6];
/// Upper bounds of the histogram buckets for the time in the queue, in seconds.
const QUEUE_S: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

#[derive(Debug)]
struct Buckets {
    ends: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Buckets {
    fn new(ends: &'static [f64]) -> Self {
        Self { ends, counts: vec![0; ends.len()], sum: 0.0, count: 0 }
    }

    fn record(&mut self, value: f64) {
        if let Some(index) = self.ends.iter().position(|end| value <= *end) {
            self.counts[index] += 1;
        }
        self.sum += value;
        self.count += 1;
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        header(text, name, "histogram", help);
        let mut below = 0;
        for (end, count) in self.ends.iter().zip(&self.counts) {
            below += count;
            line(text, name, "_bucket", &format!("le=\"{end}\""), below as f64);
        }
        line(text, name, "_bucket", "le=\"+Inf\"", self.count as f64);
        line(text, name, "_sum", "", self.sum);
        line(text, name, "_count", "", self.count as f64);
    }
}

#[derive(Debug)]
struct Counts {
    ttft: Buckets,
    tpot: Buckets,
    queued: Buckets,
    /// Number of requests by path and status.
    requests: BTreeMap<(&'static str, u16), u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    stored_tokens: u64,
    drafted_tokens: u64,
    accepted_tokens: u64,
    sampled_tokens: u64,
    resumed: u64,
    cancelled: u64,
}

/// All counters.
#[derive(Debug)]
pub(super) struct Metrics(Mutex<Counts>);

/// Values that are determined at the time of a scrape.
pub(super) struct Moment<'a> {
    pub(super) occupancy: Occupancy,
    /// Answers of this gateway in progress or waiting.
    pub(super) running: u32,
    pub(super) own: Option<&'a NodeReport>,
    /// Stragglers and slow hops of the latest topology.
    pub(super) culprits: Vec<(Arc<Topology>, Culprits)>,
    /// For each replica: name, requests of this gateway there, whether it serves, whether its circuit breaker is open.
    pub(super) replicas: Vec<(String, u32, bool, bool)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self(Mutex::new(Counts {
            ttft: Buckets::new(&TTFT_S),
            tpot: Buckets::new(&TPOT_S),
            queued: Buckets::new(&QUEUE_S),
            requests: BTreeMap::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            stored_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            sampled_tokens: 0,
            resumed: 0,
            cancelled: 0,
        }))
    }
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are consistent even if a task panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that was answered with this status.
    pub(super) fn answered(&self, path: &'static str, status: u16) {
        *self.counts().requests.entry((path, status)).or_default() += 1;
    }

    /// Counts an answer that has ended.
    pub(super) fn ended(&self, ended: &Ended) {
        let mut counts = self.counts();
        let times = &ended.finished.times;
        if let Some(first) = ended.first_token {
            counts.ttft.record(first.as_secs_f64());
            if ended.tokens > 1 {
                let span = ended.last_token.saturating_sub(first).as_secs_f64();
                counts.tpot.record(span / (ended.tokens - 1) as f64);
            }
        }
        counts.queued.record(ended.dispatched.as_secs_f64() + times.dispatched.0 as f64 / 1e9);
        counts.prompt_tokens += ended.prompt_tokens as u64;
        counts.cached_tokens += u64::from(times.cached_tokens);
        counts.stored_tokens += u64::from(times.stored_tokens);
        counts.drafted_tokens += u64::from(times.drafted_tokens);
        counts.accepted_tokens += u64::from(times.accepted_tokens);
        counts.sampled_tokens += ended.tokens as u64;
    }

    /// Counts an answer that lost its replica and continues on another.
    pub(super) fn resumed(&self) {
        self.counts().resumed += 1;
    }

    /// Counts a request whose client disconnected.
    pub(super) fn cancelled(&self) {
        self.counts().cancelled += 1;
    }

    /// All metrics as text.
    pub(super) fn text(&self, moment: &Moment<'_>) -> String {
        let mut text = String::new();
        let counts = self.counts();
        counts.ttft.write(&mut text, "bramble_ttft_seconds", "Time from accepting a request to its first token");
        counts.tpot.write(&mut text, "bramble_tpot_seconds", "Time per output token");
        counts.queued.write(&mut text, "bramble_queue_seconds", "Time waiting for a slot and for the engine");
        header(&mut text, "bramble_requests_total", "counter", "Requests by path and status");
        for ((path, status), count) in &counts.requests {
            line(&mut text, "bramble_requests_total", "", &format!("path=\"{path}\",code=\"{status}\""), *count as f64);
        }
        let refused = |status: u16| {
            counts.requests.iter().filter(|((_, code), _)| *code == status).map(|(_, count)| count).sum::<u64>()
        };
        for (name, help, value) in [
            ("bramble_refused_total", "Requests refused because no slot was free", refused(429)),
            ("bramble_unserved_total", "Requests refused because nothing served", refused(503)),
            ("bramble_prompt_tokens_total", "Prompt tokens", counts.prompt_tokens),
            ("bramble_cached_tokens_total", "Prompt tokens found in the prefix cache", counts.cached_tokens),
            ("bramble_stored_tokens_total", "Cached prompt tokens read from disks or copies", counts.stored_tokens),
            ("bramble_speculative_tokens_total", "Speculative tokens proposed", counts.drafted_tokens),
            ("bramble_accepted_tokens_total", "Speculative tokens accepted", counts.accepted_tokens),
            ("bramble_sampled_tokens_total", "Sampled tokens", counts.sampled_tokens),
            ("bramble_resumed_total", "Answers resumed after a replica was lost", counts.resumed),
            ("bramble_cancelled_total", "Requests whose client disconnected", counts.cancelled),
        ] {
            header(&mut text, name, "counter", help);
            line(&mut text, name, "", "", value as f64);
        }
        drop(counts);
        let Occupancy { waiting, places, taken } = moment.occupancy;
        gauge(&mut text, "bramble_requests_running", "Answers in progress or waiting here", f64::from(moment.running));
        gauge(&mut text, "bramble_queue_length", "Requests waiting for a slot", waiting as f64);
        gauge(&mut text, "bramble_slots", "Slots of all replicas", f64::from(places));
        gauge(&mut text, "bramble_slots_taken", "Slots in use", f64::from(taken));
        replicas(&mut text, &moment.replicas);
        for (topology, found) in &moment.culprits {
            culprits(&mut text, topology, found);
        }
        if let Some(own) = moment.own {
            node(&mut text, own);
        }
        text
    }
}

fn replicas(text: &mut String, replicas: &[(String, u32, bool, bool)]) {
    type Value = fn(&(String, u32, bool, bool)) -> f64;
    let figures: [(&str, &str, Value); 3] = [
        ("bramble_replica_running", "Requests of this gateway running on the replica", |replica| f64::from(replica.1)),
        ("bramble_replica_serving", "Whether the replica takes requests", |replica| f64::from(u8::from(replica.2))),
        ("bramble_replica_out", "Whether the replica's circuit breaker is open after failures", |replica| {
            f64::from(u8::from(replica.3))
        }),
    ];
    for (name, help, value) in figures {
        header(text, name, "gauge", help);
        for replica in replicas {
            line(text, name, "", &format!("head=\"{}\"", escaped(&replica.0)), value(replica));
        }
    }
}

/// Writes a row for each straggler and each slow hop. Labels are members' names and the names of a closed enum.
fn culprits(text: &mut String, topology: &Topology, found: &Culprits) {
    let name = |member: &usize| topology.members.get(*member).map_or_else(String::new, |one| escaped(&one.name));
    header(
        text,
        "bramble_straggler",
        "gauge",
        "1 for a node that delays its peers; cause: the health warning of its machine",
    );
    for (member, cause) in &found.nodes {
        let cause = cause.as_ref().map_or("unknown", Warning::name);
        line(text, "bramble_straggler", "", &format!("node=\"{}\",cause=\"{cause}\"", name(member)), 1.0);
    }
    header(text, "bramble_slow_hop", "gauge", "1 for a hop that takes longer than its bytes need on a link of 1 Gb/s");
    for (from, to) in &found.hops {
        line(text, "bramble_slow_hop", "", &format!("from=\"{}\",to=\"{}\"", name(from), name(to)), 1.0);
    }
}

/// Writes the metrics from this node's own report.
fn node(text: &mut String, report: &NodeReport) {
    header(text, "bramble_node_state", "gauge", "State of the node");
    let states = [
        NodeState::Idle,
        NodeState::Loading,
        NodeState::Prepared,
        NodeState::Connecting,
        NodeState::Ready,
        NodeState::Serving,
        NodeState::Draining,
        NodeState::Faulted,
        NodeState::Benching,
    ];
    let name = escaped(&report.name);
    for state in states {
        let labels = format!("node=\"{name}\",state=\"{}\"", state.name());
        line(text, "bramble_node_state", "", &labels, f64::from(u8::from(report.state == state)));
    }
    let health = &report.health;
    gauge(text, "bramble_node_epoch", "Highest epoch of an assignment seen", report.epoch.0 as f64);
    gauge(text, "bramble_node_requests", "Requests running and waiting on this head", f64::from(report.requests));
    gauge(text, "bramble_node_tokens", "Tokens sampled by this head since its start", report.tokens as f64);
    gauge(text, "bramble_node_resident_bytes", "Resident memory", report.memory_resident.0 as f64);
    gauge(text, "bramble_node_shard_bytes", "Memory of weights and KV cache", report.shard.0 as f64);
    blocks(text, report.kv);
    stored(text, report.store.as_ref());
    if let Some(temperature) = health.temperature {
        gauge(text, "bramble_node_temperature_celsius", "Temperature of the processor", f64::from(temperature.0));
    }
    if let Some(clock) = &health.clock {
        gauge(text, "bramble_node_clock_megahertz", "Clock of the fastest cores", f64::from(clock.current.0));
    }
    if let Some(firmware) = health.firmware {
        gauge(text, "bramble_node_throttled_bits", "Bits of the firmware's get_throttled", f64::from(firmware.0));
    }
    if let Some(memory) = health.memory {
        gauge(
            text,
            "bramble_node_memory_available_bytes",
            "Memory available on the machine",
            memory.available.0 as f64,
        );
        gauge(text, "bramble_node_swap_used_bytes", "Swap in use", memory.swap_used.0 as f64);
    }
    if let Some(load) = health.load {
        gauge(text, "bramble_node_others_cores", "Cores kept busy by other programs", f64::from(load.others));
    }
    // Since the last report: means over the all-reduces of all layers.
    let count: f64 = report.layers.iter().map(|layer| f64::from(layer.count)).sum();
    let mean = |time: fn(&telemetry::LayerSync) -> u64| {
        let sum: f64 = report.layers.iter().map(|layer| f64::from(layer.count) * time(layer) as f64).sum();
        common::latency::ratio(sum, count) / 1e9
    };
    gauge(
        text,
        "bramble_all_reduce_compute_seconds",
        "Mean compute time before an all-reduce since the last report",
        mean(|layer| layer.compute.0),
    );
    gauge(
        text,
        "bramble_all_reduce_wait_seconds",
        "Mean wait for other ranks in an all-reduce since the last report",
        mean(|layer| layer.wait.0),
    );
    gauge(
        text,
        "bramble_all_reduce_wire_seconds",
        "Mean wire time of an all-reduce since the last report",
        mean(|layer| layer.wire.0),
    );
    hops(text, report);
}

/// Writes the hand-overs between stages since the last report, by sending rank.
fn hops(text: &mut String, report: &NodeReport) {
    if report.hops.is_empty() {
        return;
    }
    header(text, "bramble_hop_seconds", "gauge", "Transmission time of hand-overs since the last report");
    for hop in report.hops.iter().filter(|hop| hop.timed > 0) {
        for (quantile, time) in [("0.5", hop.p50), ("0.95", hop.p95), ("0.99", hop.p99)] {
            let labels = format!("from_rank=\"{}\",quantile=\"{quantile}\"", hop.from);
            line(text, "bramble_hop_seconds", "", &labels, time.0 as f64 / 1e9);
        }
    }
    type Time = fn(&HopSync) -> Nanoseconds;
    let means: [(&str, &str, Time); 3] = [
        (
            "bramble_hop_blocked_seconds",
            "Mean wait for the previous stage, without the hop, since the last report",
            |hop| hop.blocked,
        ),
        (
            "bramble_hop_sending_seconds",
            "Mean time to send a hand-over to the next stage since the last report",
            |hop| hop.sending,
        ),
        ("bramble_stage_compute_seconds", "Mean compute time between two hand-overs since the last report", |hop| {
            hop.compute
        }),
    ];
    for (name, help, time) in means {
        header(text, name, "gauge", help);
        for hop in &report.hops {
            line(text, name, "", &format!("from_rank=\"{}\"", hop.from), time(hop).0 as f64 / 1e9);
        }
    }
}

fn blocks(text: &mut String, kv: Option<KvUse>) {
    if let Some(kv) = kv {
        gauge(text, "bramble_kv_blocks", "KV blocks of this head's replica", f64::from(kv.total));
        gauge(text, "bramble_kv_blocks_held", "KV blocks held by sequences", f64::from(kv.held));
        gauge(text, "bramble_kv_blocks_kept", "KV blocks kept in the prefix cache", f64::from(kv.kept));
    }
}

/// Writes the size and use of this node's store of keys and values.
fn stored(text: &mut String, store: Option<&StoreUse>) {
    let Some(store) = store else { return };
    let on = f64::from(u8::from(store.state.is_on()));
    gauge(text, "bramble_kv_store_on", "Whether this node stores keys and values on its disk", on);
    gauge(text, "bramble_kv_store_bytes", "Bytes of stored keys and values", store.bytes.0 as f64);
    gauge(text, "bramble_kv_store_max_bytes", "Most bytes of stored keys and values", store.bytes_max.0 as f64);
    gauge(text, "bramble_kv_store_files", "Files of stored keys and values", f64::from(store.files));
    for (name, help, value) in [
        ("bramble_kv_store_hits_total", "Prompts of which stored keys and values were read", store.hits),
        ("bramble_kv_store_tokens_read_total", "Tokens whose keys and values were read", store.tokens_read),
        ("bramble_kv_store_tokens_written_total", "Tokens whose keys and values were written", store.tokens_written),
        ("bramble_kv_store_files_refused_total", "Damaged or foreign files, deleted", store.files_refused),
    ] {
        header(text, name, "counter", help);
        line(text, name, "", "", value as f64);
    }
}

fn header(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &str, value: f64) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(text, "{name}{suffix}{labels} {value}");
}

fn gauge(text: &mut String, name: &str, help: &str, value: f64) {
    header(text, name, "gauge", help);
    line(text, name, "", "", value);
}

/// Escapes a label's value. Names come from other nodes, possibly of a release that allows control characters: none may
/// end the line or reach a terminal.
fn escaped(text: &str) -> String {
    let mut label = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => label.push_str("\\\\"),
            '"' => label.push_str("\\\""),
            '\n' => label.push_str("\\n"),
            other if other.is_control() => label.push(char::REPLACEMENT_CHARACTER),
            other => label.push(other),
        }
    }
    label
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use collectives::Choice;
    use common::precision::{Exchange, KvFormat};
    use topology::{Layout, Member};

    use super::*;

    #[test]
    fn stragglers_and_slow_hops_are_rows_or_absent() {
        let member = |name: &str| Member {
            name: name.into(),
            address: format!("{name}:9999"),
            weight: 1,
            layers: 0..1,
            cores: vec![0],
            threads: 1,
            spin: false,
        };
        let topology = Topology {
            layout: Layout::alike(1, 2, 1),
            members: vec![member("pi1"), member("p\"2")],
            model: "m.gguf".into(),
            identity: Default::default(),
            content: None,
            unload_after: None,
            draft: None,
            kv: KvFormat::F16,
            exchange: Exchange::F32,
            collective: Choice::Auto,
            context_length: 512,
            slots: 2,
        };
        let rows = |found: Culprits| {
            let mut text = String::new();
            culprits(&mut text, &topology, &found);
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rows(Culprits::default()), Vec::<String>::new());
        let found = Culprits { nodes: vec![(1, None), (0, Some(Warning::SdCard))], hops: vec![(0, 1)] };
        let expected = [
            "bramble_straggler{node=\"p\\\"2\",cause=\"unknown\"} 1",
            "bramble_straggler{node=\"pi1\",cause=\"sd_card\"} 1",
            "bramble_slow_hop{from=\"pi1\",to=\"p\\\"2\"} 1",
        ];
        assert_eq!(rows(found), expected);
    }

    #[test]
    fn every_line_is_valid_and_buckets_add_up() {
        let metrics = Metrics::default();
        for ms in [3, 30, 300, 300_000] {
            let first = Duration::from_millis(ms);
            let ended = Ended { tokens: 3, first_token: Some(first), last_token: first * 2, ..Ended::default() };
            metrics.ended(&ended);
        }
        metrics.answered("/v1/completions", 429);
        let replicas =
            vec![("a\"b".into(), 1, true, false), ("c\\\"} 1\nevil_metric 66\r\u{9b}".into(), 1, true, false)];
        let text = metrics.text(&Moment {
            occupancy: Occupancy::default(),
            running: 2,
            own: None,
            culprits: Vec::new(),
            replicas,
        });
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
        for expected in [
            "bramble_ttft_seconds_bucket{le=\"0.005\"} 1",
            "bramble_ttft_seconds_bucket{le=\"0.5\"} 3",
            "bramble_ttft_seconds_bucket{le=\"80\"} 3",
            "bramble_ttft_seconds_bucket{le=\"+Inf\"} 4",
            "bramble_ttft_seconds_count 4",
            "bramble_requests_total{path=\"/v1/completions\",code=\"429\"} 1",
            "bramble_refused_total 1",
            "bramble_requests_running 2",
            "bramble_replica_running{head=\"a\\\"b\"} 1",
            "bramble_replica_running{head=\"c\\\\\\\"} 1\\nevil_metric 66\u{fffd}\u{fffd}\"} 1",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected} is not in\n{text}");
        }
    }
}
