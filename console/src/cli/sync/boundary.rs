//! The hand-overs between the stages of a pipeline: their times, the slow stage and the slow hop.
use common::{ids::MemberIndex, units::Nanoseconds};
use serde_json::{Value, json};
use telemetry::{HopSync, StageTime, slow_stage};
use topology::Topology;

use super::{Of, Picture};
use crate::view::format::short_time;

/// A hand-over between two stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageBoundary {
    /// The sending member.
    pub(super) from: usize,
    /// The receiving member.
    pub(super) to: usize,
    /// As the receiving member measures it.
    pub(super) sync: HopSync,
}

impl Picture<'_> {
    /// A sentence on the slow hop of a pipeline.
    pub(super) fn slow_hop_sentence(&self) -> Option<String> {
        let hops = self.boundaries.iter().filter_map(|boundary| Some((boundary.sync.slow_hop()?, boundary)));
        let (factor, boundary) = hops.max_by(|one, two| one.0.total_cmp(&two.0))?;
        let (from, to) = (self.name(boundary.from), self.name(boundary.to));
        Some(format!(
            "the hop from {from} to {to} is slow: {} (p50), {factor:.1} times the transfer time of its bytes at \
             1 Gb/s. Check cable, port and switch.",
            short_time(boundary.sync.p50)
        ))
    }

    /// The hand-overs between stages and an empty line; nothing without a pipeline.
    pub(super) fn boundary_lines(&self) -> Vec<String> {
        if self.boundaries.is_empty() {
            return Vec::new();
        }
        let head = format!(
            "{:<25}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>9}  {:>6}",
            "HAND-OVER", "HOP P50", "P95", "P99", "BEFORE", "BEHIND", "OWN", "BYTES", "COUNT"
        );
        let words = "before: waiting for the previous stage; behind: passing the data for the next stage to the \
                     operating system; own: computing in between";
        let mut lines = vec![head];
        lines.extend(self.boundaries.iter().map(|boundary| self.boundary_line(boundary)));
        lines.extend([words.to_owned(), String::new()]);
        lines
    }

    fn boundary_line(&self, boundary: &StageBoundary) -> String {
        let StageBoundary { from, to, sync } = boundary;
        let hop = |time: Nanoseconds| if sync.timed > 0 { short_time(time) } else { "-".to_owned() };
        format!(
            "{:<25}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>9}  {:>6}",
            format!("{} > {}", self.name(*from), self.name(*to)),
            hop(sync.p50),
            hop(sync.p95),
            hop(sync.p99),
            short_time(sync.blocked),
            short_time(sync.sending),
            short_time(sync.compute),
            sync.bytes.0 / u64::from(sync.count.max(1)),
            sync.count
        )
    }

    /// A hand-over as a JSON object.
    pub(super) fn boundary_object(&self, boundary: &StageBoundary) -> Value {
        let StageBoundary { from, to, sync } = boundary;
        let hop = |time: Nanoseconds| (sync.timed > 0).then_some(time.0);
        json!({"from": self.name(*from), "to": self.name(*to), "count": sync.count, "timed": sync.timed,
            "slow": sync.slow_hop(), "p50_ns": hop(sync.p50), "p95_ns": hop(sync.p95), "p99_ns": hop(sync.p99), "mean_ns": hop(sync.hop),
            "blocked_ns": sync.blocked.0, "sending_ns": sync.sending.0, "compute_ns": sync.compute.0, "bytes": sync.bytes.0})
    }
}

/// The slow stage of pipelines whose stages have one rank each. Where stages have several ranks, all-reduces
/// already compare them.
pub(super) fn slow(topology: &Topology, members: &[Of]) -> Option<(usize, f64)> {
    let replicas = (0..topology.layout.replicas).filter(|replica| topology.layout.ranks_of(*replica) == 1);
    let found = replicas.filter_map(|replica| slow_of(topology, members, replica));
    found.max_by(|one, two| one.1.total_cmp(&two.1))
}

/// The slow stage of a replica, and its time relative to the others.
fn slow_of(topology: &Topology, members: &[Of], replica: u16) -> Option<(usize, f64)> {
    let range = topology.layout.members(replica);
    let stages = members.get(range.clone())?.iter();
    let stages: Vec<StageTime> =
        stages.map(|of| StageTime { sync: of.hops.first().copied().unwrap_or_default(), shard: of.shard }).collect();
    slow_stage(&stages).map(|(stage, factor)| (range.start + stage, factor))
}

/// The hand-overs that members received, in the order in which a token passes them.
pub(super) fn boundaries(topology: &Topology, members: &[Of]) -> Vec<StageBoundary> {
    let mut found = Vec::new();
    for (to, member) in members.iter().enumerate() {
        let replica = topology.place(MemberIndex(to as u16)).replica;
        let first = topology.layout.members(replica).start;
        found.extend(member.hops.iter().map(|sync| StageBoundary { from: first + sync.from.index(), to, sync: *sync }));
    }
    found.retain(|boundary| boundary.from < members.len());
    found.sort_by_key(|boundary| (boundary.from, boundary.to));
    found
}
