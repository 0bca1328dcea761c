//! Who holds the others up: the ranks in the order of the time that the others spent on waiting for their parts alone.
use std::{collections::VecDeque, time::Duration};

use shared::{
    ids::MemberIndex,
    latency::ratio,
    telemetry::{self, Lateness, NodeReport, WINDOW_STEPS},
    units::Nanoseconds,
};

use crate::state::State;

/// What counts is the last so much time with all-reduces, or the last [`WINDOW_STEPS`] steps where they take less: on fast nodes
/// seconds of good times would hide a rank that has become slow.
const WINDOW: Duration = Duration::from_secs(5);
/// Most reports that are kept of a node.
const REPORTS_MAX: usize = 128;

/// Sums of one report's all-reduces.
#[derive(Clone, Debug, Default, PartialEq)]
struct Interval {
    at: Duration,
    count: u64,
    /// Own computing, waiting, wire in nanoseconds.
    times: [u64; 3],
    late: Vec<Lateness>,
}

/// A node's latest all-reduces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    intervals: VecDeque<Interval>,
}

impl Window {
    /// Takes a report in; one without all-reduces says nothing.
    pub fn record(&mut self, at: Duration, report: &NodeReport) {
        if report.layers.is_empty() {
            return;
        }
        let mut interval = Interval { at, late: report.lateness.clone(), ..Interval::default() };
        for sync in &report.layers {
            let count = u64::from(sync.count);
            interval.count += count;
            let means = [sync.compute, sync.wait, sync.wire];
            interval.times.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean.0.saturating_mul(count));
        }
        self.intervals.push_back(interval);
        let (mut count, per_step) = (self.count(), report.layers.len() as u64);
        while let Some(first) = self.intervals.front() {
            let is_spare = count - first.count >= u64::from(WINDOW_STEPS) * per_step;
            if !is_spare && self.intervals.len() <= REPORTS_MAX && first.at + WINDOW >= at {
                break;
            }
            count -= first.count;
            self.intervals.pop_front();
        }
    }

    /// Forgets everything: another topology runs.
    pub fn clear(&mut self) {
        self.intervals.clear();
    }

    fn times(&self) -> [u64; 3] {
        let add = |mut sum: [u64; 3], interval: &Interval| {
            sum.iter_mut().zip(interval.times).for_each(|(sum, time)| *sum += time);
            sum
        };
        self.intervals.iter().fold([0; 3], add)
    }

    fn count(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.count).sum()
    }

    /// What this node heard of a rank is added to `sums`.
    fn add(&self, rank: usize, sums: &mut Heard) {
        for late in self.intervals.iter().flat_map(|interval| &interval.late).filter(|late| late.rank.index() == rank) {
            sums.last += u64::from(late.count);
            sums.late += late.time.0;
            sums.heard += u64::from(late.heard);
            sums.first = sums.first.saturating_add(late.first.0);
            sums.way = sums.way.saturating_add(late.way.0);
        }
        sums.count += self.count();
        sums.time += self.times().iter().sum::<u64>();
    }
}

/// What others heard of a rank: their all-reduces and nanoseconds in all, those in which it was late, those in which it sent something.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    count: u64,
    time: u64,
    last: u64,
    late: u64,
    heard: u64,
    first: u64,
    way: u64,
}

/// A rank as it stands among the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankRow {
    /// Place among the members of the topology.
    pub member: usize,
    /// Place in the list of nodes; `None` if the member was not named to this console.
    pub node: Option<usize>,
    /// Share of the other ranks' time in which only this rank's part was missing.
    pub late: f64,
    /// Share of the other ranks' all-reduces in which its part was the last.
    pub last: f64,
    /// Mean of own computing, waiting and wire by all-reduce.
    pub means: [Nanoseconds; 3],
    /// (wait + wire) / total of this rank.
    pub network: f64,
    /// Means of the first byte of its parts after the others' enter, and from there to the last byte.
    pub arrival: [Nanoseconds; 2],
}

/// All ranks of the topology, the latest first.
pub fn ranks(state: &State) -> Vec<RankRow> {
    let Some((topology, _)) = state.topology() else { return Vec::new() };
    let places: Vec<Option<usize>> = (0..topology.members.len()).map(|member| state.place_of(member)).collect();
    let window = |member: usize| places[member].map(|place| &state.nodes[place].window);
    let row = |member: usize| {
        // Only its own stage hears of it, by its rank in the replica.
        let place = topology.place(MemberIndex(member as u16));
        let first = topology.layout.members(place.replica).start;
        let stage = place.group.clone().map(|rank| first + usize::from(rank));
        let observers = stage.filter(|other| *other != member && *other < places.len()).filter_map(window);
        let mut heard = Heard::default();
        observers.for_each(|observer| observer.add(place.rank.index(), &mut heard));
        let own = window(member);
        let (times, all_reduces) = own.map_or(([0; 3], 0), |window| (window.times(), window.count()));
        let total: u64 = times.iter().sum();
        RankRow {
            member,
            node: places[member],
            late: ratio(heard.late as f64, heard.time as f64),
            last: ratio(heard.last as f64, heard.count as f64),
            means: times.map(|sum| Nanoseconds(sum / all_reduces.max(1))),
            network: ratio((times[1] + times[2]) as f64, total as f64),
            arrival: [heard.first, heard.way].map(|sum| Nanoseconds(sum / heard.heard.max(1))),
        }
    };
    let mut rows: Vec<RankRow> = (0..places.len()).map(row).collect();
    rows.sort_by(|one, two| two.late.total_cmp(&one.late).then(one.member.cmp(&two.member)));
    rows
}

/// The one rank that holds the others up, if one does.
pub fn straggler(rows: &[RankRow]) -> Option<&RankRow> {
    let late: Vec<f64> = rows.iter().map(|row| row.late).collect();
    telemetry::straggler(&late).map(|row| &rows[row])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NODES, Story, running};
    use shared::{ids::Rank, telemetry::NodeState, topology::Layout};

    #[test]
    fn the_rank_that_the_others_wait_for_is_first_and_named() {
        let rows = ranks(&Story::generating().state);
        assert_eq!((rows.len(), rows[0].member, rows[0].node), (NODES, 2, Some(2)));
        assert_eq!(straggler(&rows).map(|row| row.member), Some(2));
        // Node 2 waits for nobody; each of the others waits 3 of 2+1 parts of its own computing.
        assert!((rows[0].last - 1.0).abs() < 1e-9 && rows[1].late == 0.0, "{rows:?}");
        assert_eq!(rows[0].means[1], Nanoseconds(0));
        assert!(rows[0].network < rows[1].network);
        assert!(straggler(&ranks(&Story::ready().state)).is_none(), "nobody waited yet");
        assert!(ranks(&Story::begin().state).is_empty());
    }

    #[test]
    fn a_rank_that_becomes_slow_on_fast_nodes_is_named_after_64_steps_whatever_was_before() {
        let mut story = Story::generating();
        let steps = |story: &mut Story, late: bool| {
            for node in 0..NODES {
                let mut report = running(node, NodeState::Serving, true);
                report.layers.iter_mut().for_each(|sync| sync.count = 32);
                report.lateness.retain(|_| late);
                report.lateness.iter_mut().for_each(|lateness| lateness.time.0 *= 32);
                story.report(node, report);
            }
        };
        (0..10).for_each(|_| steps(&mut story, false));
        assert!(straggler(&ranks(&story.state)).is_none());
        (0..2).for_each(|_| steps(&mut story, true));
        let rows = ranks(&story.state);
        assert_eq!(straggler(&rows).map(|row| row.member), Some(2), "{rows:?}");
    }

    #[test]
    fn a_rank_is_heard_of_in_its_own_stage_alone_by_its_number_in_the_replica() {
        let mut story = Story::ready();
        for node in 0..NODES {
            let mut report = running(node, NodeState::Serving, true);
            let (topology, hash, _) = report.topology.as_mut().expect("it runs");
            topology.layout = Layout::alike(2, 1, 2);
            *hash = topology.hash();
            report.epoch = report.epoch.next();
            let (first, way) = (Nanoseconds(3_000_000), Nanoseconds(1_000_000));
            let late = Lateness { rank: Rank(1), count: 9, time: Nanoseconds(900_000_000), heard: 1000, first, way };
            report.lateness = if node == 2 { vec![late] } else { Vec::new() };
            story.report(node, report);
        }
        let rows = ranks(&story.state);
        assert_eq!(straggler(&rows).map(|row| row.member), Some(3), "rank 1 of the second replica: {rows:?}");
        assert_eq!(rows[0].arrival, [Nanoseconds(3000), Nanoseconds(1000)]);
        assert!(rows[1..].iter().all(|row| row.late == 0.0 && row.arrival == [Nanoseconds(0); 2]), "{rows:?}");
    }

    #[test]
    fn what_is_older_than_the_window_and_what_another_topology_said_does_not_count() {
        let mut story = Story::generating();
        let before = ranks(&story.state);
        story.at(60_000).all_report(NodeState::Ready, false);
        assert_eq!(ranks(&story.state), before, "as last seen");
        for node in 0..NODES {
            let mut report = running(node, NodeState::Serving, true);
            report.lateness.clear();
            story.report(node, report);
        }
        assert!(ranks(&story.state).iter().all(|row| row.late == 0.0));
        for _ in 0..2 * REPORTS_MAX {
            story.all_report(NodeState::Serving, true);
        }
        assert!(story.state.nodes.iter().all(|node| node.window.intervals.len() <= REPORTS_MAX));
        let mut report = running(0, NodeState::Ready, false);
        report.epoch = report.epoch.next();
        story.report(0, report);
        assert_eq!(story.state.nodes[0].window, Window::default());
    }
}
