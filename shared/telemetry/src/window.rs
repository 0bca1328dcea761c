//! Finds the straggler, the slow pipeline stage and the slow hops from the nodes' recent reports. Consoles and
//! `/metrics` share this rule. Pure.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::{
    ids::{MemberIndex, Rank},
    latency::ratio,
    units::{Bytes, Nanoseconds},
};
use topology::Topology;

use super::{
    HopSync, Lateness, LayerSync, NodeReport, StageTime, WINDOW_STEPS, Warning, hop::LATEST, slow_stage, straggler,
};

/// Length of the window, cut to the last [`WINDOW_STEPS`] steps if these take less: on fast nodes several seconds of
/// good steps would hide a rank that has just become slow.
const WINDOW: Duration = Duration::from_secs(5);
/// Most reports that are kept of a node.
pub const REPORTS_MAX: usize = 128;

/// Sums over the all-reduces of one report.
#[derive(Clone, Debug, Default, PartialEq)]
struct Interval {
    at: Duration,
    count: u64,
    /// Compute, wait and wire in nanoseconds.
    times: [u64; 3],
    late: Vec<Lateness>,
}

/// A node's latest all-reduces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    intervals: VecDeque<Interval>,
    /// Hand-overs that it received, as summarised in reports, with their times.
    hops: VecDeque<(Duration, HopSync)>,
}

impl Window {
    /// Records a report; a report without all-reduces is ignored.
    pub fn record(&mut self, at: Duration, report: &NodeReport) {
        self.record_hops(at, &report.hops);
        self.record_steps(at, &report.layers, &report.lateness);
    }

    fn record_steps(&mut self, at: Duration, layers: &[LayerSync], late: &[Lateness]) {
        if layers.is_empty() {
            return;
        }
        let mut interval = Interval { at, late: late.to_vec(), ..Interval::default() };
        for sync in layers {
            let count = u64::from(sync.count);
            interval.count += count;
            let means = [sync.compute, sync.wait, sync.wire];
            interval
                .times
                .iter_mut()
                .zip(means)
                .for_each(|(sum, mean)| *sum = sum.saturating_add(mean.0.saturating_mul(count)));
        }
        self.intervals.push_back(interval);
        let (mut count, per_step) = (self.count(), layers.len() as u64);
        while let Some(first) = self.intervals.front() {
            let is_spare = count - first.count >= u64::from(WINDOW_STEPS) * per_step;
            if !is_spare && self.intervals.len() <= REPORTS_MAX && first.at + WINDOW >= at {
                break;
            }
            count -= first.count;
            self.intervals.pop_front();
        }
    }

    /// Keeps the latest hand-overs of each sender: only as many as a verdict needs, and none older than the window.
    fn record_hops(&mut self, at: Duration, hops: &[HopSync]) {
        self.hops.extend(hops.iter().map(|hop| (at, *hop)));
        let mut counts: BTreeMap<Rank, u32> = BTreeMap::new();
        let mut kept = VecDeque::new();
        for (then, hop) in self.hops.iter().rev().take(REPORTS_MAX) {
            let count = counts.entry(hop.from).or_default();
            if *count < LATEST as u32 && *then + WINDOW >= at {
                *count = count.saturating_add(hop.count);
                kept.push_front((*then, *hop));
            }
        }
        self.hops = kept;
    }

    /// The latest hand-overs by sender, combined as in one report; `p50` is the median of the reports' medians.
    pub fn hops(&self) -> Vec<HopSync> {
        let mut by_sender: BTreeMap<Rank, Vec<&HopSync>> = BTreeMap::new();
        self.hops.iter().for_each(|(_, hop)| by_sender.entry(hop.from).or_default().push(hop));
        by_sender
            .into_iter()
            .map(|(from, mut list)| {
                let sum = |part: fn(&HopSync) -> u64| list.iter().map(|hop| part(hop)).fold(0, u64::saturating_add);
                let (count, timed) = (sum(|hop| hop.count.into()), sum(|hop| hop.timed.into()));
                let (bytes, compute) =
                    (sum(|hop| hop.bytes.0), sum(|hop| hop.compute.0.saturating_mul(hop.count.into())));
                list.retain(|hop| hop.timed > 0);
                list.sort_by_key(|hop| hop.p50);
                let mut before = 0;
                let median = list.iter().find(|hop| {
                    before += u64::from(hop.timed);
                    before.saturating_mul(2) >= timed
                });
                HopSync {
                    from,
                    count: u32::try_from(count).unwrap_or(u32::MAX),
                    timed: u32::try_from(timed).unwrap_or(u32::MAX),
                    bytes: Bytes(bytes),
                    compute: Nanoseconds(compute / count.max(1)),
                    p50: median.map_or(Nanoseconds(0), |hop| hop.p50),
                    ..HopSync::default()
                }
            })
            .collect()
    }

    /// Whether anything was computed since then.
    pub fn is_since(&self, begin: Duration) -> bool {
        let latest = self.intervals.back().map(|interval| interval.at).max(self.hops.back().map(|(at, _)| *at));
        latest.is_some_and(|at| at >= begin)
    }

    /// Number of reports kept.
    pub fn reports(&self) -> usize {
        self.intervals.len()
    }

    /// Forgets everything: another topology runs.
    pub fn clear(&mut self) {
        self.intervals.clear();
        self.hops.clear();
    }

    /// Compute, wait and wire of the all-reduces, in nanoseconds.
    pub fn times(&self) -> [u64; 3] {
        self.intervals.iter().fold([0; 3], |mut sum, interval| {
            sum.iter_mut().zip(interval.times).for_each(|(sum, time)| *sum = sum.saturating_add(time));
            sum
        })
    }

    /// Number of all-reduces.
    pub fn count(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.count).sum()
    }

    /// Adds this node's observations of a rank to `sums`.
    pub fn add(&self, rank: usize, sums: &mut Heard) {
        for late in self.intervals.iter().flat_map(|interval| &interval.late).filter(|late| late.rank.index() == rank) {
            sums.last += u64::from(late.count);
            sums.late = sums.late.saturating_add(late.time.0);
            sums.heard += u64::from(late.heard);
            sums.first = sums.first.saturating_add(late.first.0);
            sums.way = sums.way.saturating_add(late.way.0);
        }
        sums.count += self.count();
        sums.time = self.times().into_iter().fold(sums.time, u64::saturating_add);
    }
}

/// Its peers' observations of a rank, summed over their all-reduces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// Number of the peers' all-reduces.
    pub count: u64,
    /// Total nanoseconds of these.
    pub time: u64,
    /// Number of these in which its part arrived last.
    pub last: u64,
    /// Nanoseconds in which only its part was missing.
    pub late: u64,
    /// All-reduces in which it sent a part.
    pub heard: u64,
    /// Nanoseconds from the peers' enter to its first byte.
    pub first: u64,
    /// Nanoseconds from that byte to its last.
    pub way: u64,
}

/// Sums the observations of a member by the other members of its stage; `window` returns a member's window.
pub fn heard<'a>(topology: &Topology, member: usize, window: impl Fn(usize) -> Option<&'a Window>) -> Heard {
    // Only its own stage observes it, by its rank in the replica.
    let place = topology.place(MemberIndex(member as u16));
    let first = topology.layout.members(place.replica).start;
    let stage = place.group.clone().map(|rank| first + usize::from(rank));
    let observers = stage.filter(|other| *other != member && *other < topology.members.len()).filter_map(window);
    let mut heard = Heard::default();
    observers.for_each(|observer| observer.add(place.rank.index(), &mut heard));
    heard
}

/// The culprits that slow a topology down, as member indices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Culprits {
    /// The straggler of a stage, or the stage that is slow for the size of its weights, each with its machine's warning
    /// if there is one.
    pub nodes: Vec<(usize, Option<Warning>)>,
    /// Sender and receiver of the hand-overs that take too long.
    pub hops: Vec<(usize, usize)>,
}

/// Judges the members' latest reports and windows, both by places; a member without a report is not judged.
pub fn culprits<'a>(
    topology: &Topology,
    reports: &[Option<&'a NodeReport>],
    windows: &[Option<&'a Window>],
) -> Culprits {
    let known = |member: usize| reports.get(member).copied().flatten();
    let window = |member: usize| windows.get(member).copied().flatten();
    let late = |member: usize| {
        let heard = heard(topology, member, window);
        ratio(heard.late as f64, heard.time as f64)
    };
    let late: Vec<f64> = (0..topology.members.len()).map(late).collect();
    let mut found: Vec<usize> = straggler(&late).into_iter().collect();
    let mut hops = Vec::new();
    for replica in 0..topology.layout.replicas {
        let range = topology.layout.members(replica);
        if topology.layout.ranks_of(replica) == 1 {
            let stage = |member: usize| {
                let sync = window(member).and_then(|window| window.hops().first().copied()).unwrap_or_default();
                StageTime { sync, shard: known(member).map_or(Bytes(0), |report| report.shard) }
            };
            let stages: Vec<StageTime> = range.clone().map(stage).collect();
            found.extend(slow_stage(&stages).map(|(stage, _)| range.start + stage));
        }
        for to in range.clone() {
            let slow = window(to).into_iter().flat_map(Window::hops).filter(|hop| hop.slow_hop().is_some());
            hops.extend(slow.map(|hop| (range.start + hop.from.index(), to)).filter(|(from, _)| range.contains(from)));
        }
    }
    let nodes = found.into_iter().map(|member| {
        let others: Vec<_> = (0..reports.len())
            .filter(|other| *other != member)
            .filter_map(known)
            .map(|report| &report.health)
            .collect();
        (member, known(member).and_then(|report| report.health.cause_beside(&others)))
    });
    Culprits { nodes: nodes.collect(), hops }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SyncKind;
    use common::ids::LayerIndex;

    const MOST: Nanoseconds = Nanoseconds(u64::MAX);

    #[test]
    fn reports_with_the_largest_numbers_are_summed_without_a_panic() {
        let layer = LayerSync {
            layer: LayerIndex(0),
            kind: SyncKind::Attention,
            count: u32::MAX,
            p50: MOST,
            p95: MOST,
            p99: MOST,
            compute: MOST,
            wait: MOST,
            wire: MOST,
            slowest: Rank(1),
        };
        let late = Lateness { rank: Rank(1), count: u32::MAX, time: MOST, heard: u32::MAX, first: MOST, way: MOST };
        let hop = HopSync {
            count: u32::MAX,
            timed: u32::MAX,
            p50: MOST,
            hop: MOST,
            compute: MOST,
            bytes: Bytes(u64::MAX),
            ..HopSync::default()
        };
        let mut window = Window::default();
        for ms in 0..3 {
            let at = Duration::from_millis(ms);
            window.record_steps(at, &[layer; 2], &[late; 2]);
            window.record_hops(at, &[HopSync { count: 1, ..hop }, hop]);
        }
        let mut sums = Heard::default();
        (0..2).for_each(|_| window.add(1, &mut sums));
        assert_eq!((sums.late, sums.time), (u64::MAX, u64::MAX));
        assert_eq!(window.hops().first().map(|hop| (hop.count, hop.bytes)), Some((u32::MAX, Bytes(u64::MAX))));
        assert!(hop.network_fraction() <= 1.0 && window.hops()[0].slow_hop().is_some());
    }
}
