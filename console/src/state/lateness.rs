//! Straggler ranking: the ranks sorted by the time that their peers spent waiting for them alone.
use common::{latency::ratio, units::Nanoseconds};
use telemetry::{self, window::heard};

use crate::state::State;

/// A rank with its lateness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankRow {
    /// Index among the members of the topology.
    pub member: usize,
    /// List index of the node; `None` if the member was not named to this console.
    pub node: Option<usize>,
    /// Share of the peers' time in which only this rank's part was missing.
    pub late: f64,
    /// Share of the peers' all-reduces in which its part arrived last.
    pub last: f64,
    /// Mean compute, peer wait and transfer time per all-reduce.
    pub means: [Nanoseconds; 3],
    /// (peer wait + transfer) / total time of this rank.
    pub network: f64,
    /// Mean time from a peer's entry to the first byte of this rank's part, and from there to its last byte.
    pub arrival: [Nanoseconds; 2],
}

/// All ranks of the topology, worst straggler first.
pub fn ranks(state: &State) -> Vec<RankRow> {
    let Some((topology, _)) = state.cluster.topology() else { return Vec::new() };
    let places: Vec<Option<usize>> = (0..topology.members.len()).map(|member| state.cluster.place_of(member)).collect();
    let window = |member: usize| places[member].map(|place| &state.cluster.nodes[place].window);
    let rows = (0..places.len()).map(|member| {
        let heard = heard(topology, member, window);
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
    });
    let mut rows: Vec<RankRow> = rows.collect();
    rows.sort_by(|one, two| two.late.total_cmp(&one.late).then(one.member.cmp(&two.member)));
    rows
}

/// The straggler, if there is one.
pub fn straggler(rows: &[RankRow]) -> Option<&RankRow> {
    let late: Vec<f64> = rows.iter().map(|row| row.late).collect();
    telemetry::straggler(&late).map(|row| &rows[row])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NODES, Story, running};
    use common::{ids::Rank, units::Bytes};
    use telemetry::{
        HopSync, Lateness, NodeReport, NodeState,
        window::{REPORTS_MAX, Window, culprits},
    };
    use topology::Layout;

    #[test]
    fn metrics_name_dashboard_straggler_and_slow_hops() {
        let state = Story::generating().state;
        let (topology, _) = state.cluster.topology().expect("a topology runs");
        let mut windows: Vec<Window> = state.cluster.nodes.iter().map(|node| node.window.clone()).collect();
        let reports: Vec<Option<&NodeReport>> = state.cluster.nodes.iter().map(|node| node.report.as_ref()).collect();
        let of = |windows: &[Window]| culprits(topology, &reports, &windows.iter().map(Some).collect::<Vec<_>>());
        let found = of(&windows);
        assert_eq!(found.nodes.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [2]);
        assert_eq!(found.hops, []);
        assert_eq!(culprits(topology, &reports, &[]).nodes, [], "no straggler while nothing is computed");
        // As few as slow stages report in a quarter of a second.
        let four = HopSync { from: Rank(0), count: 4, timed: 4, bytes: Bytes(4 * 8192), ..HopSync::default() };
        for (time, reports, expected) in [(160_000, 16, vec![]), (760_000, 7, vec![]), (760_000, 8, vec![(0, 1)])] {
            windows[1].clear();
            let report = NodeReport {
                hops: vec![HopSync { p50: Nanoseconds(time), ..four }],
                ..running(1, NodeState::Serving, false)
            };
            (0..reports).for_each(|_| windows[1].record(state.now, &report));
            assert_eq!(of(&windows).hops, expected, "{reports} reports of {time} ns");
            assert!(windows[1].is_since(state.now));
        }
    }

    #[test]
    fn straggler_is_ranked_first() {
        let rows = ranks(&Story::generating().state);
        assert_eq!((rows.len(), rows[0].member, rows[0].node), (NODES, 2, Some(2)));
        assert_eq!(straggler(&rows).map(|row| row.member), Some(2));
        // Node 2 waits for no peer; each of the others waits 3 of every 2+1 parts of its own compute time.
        assert!((rows[0].last - 1.0).abs() < 1e-9 && rows[1].late == 0.0, "{rows:?}");
        assert_eq!(rows[0].means[1], Nanoseconds(0));
        assert!(rows[0].network < rows[1].network);
        assert!(straggler(&ranks(&Story::ready().state)).is_none(), "no rank has waited yet");
        assert!(ranks(&Story::begin().state).is_empty());
    }

    #[test]
    fn rank_that_becomes_slow_is_named_after_64_steps() {
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
    fn lateness_maps_to_the_rank_in_its_own_stage() {
        let mut story = Story::ready();
        for node in 0..NODES {
            let mut report = running(node, NodeState::Serving, true);
            let (topology, hash, _) = report.topology.as_mut().expect("topology runs");
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
    fn old_reports_and_other_topologies_do_not_count() {
        let mut story = Story::generating();
        let before = ranks(&story.state);
        story.at(60_000).all_report(NodeState::Ready, false);
        assert_eq!(ranks(&story.state), before, "unchanged");
        for node in 0..NODES {
            let mut report = running(node, NodeState::Serving, true);
            report.lateness.clear();
            story.report(node, report);
        }
        assert!(ranks(&story.state).iter().all(|row| row.late == 0.0));
        for _ in 0..2 * REPORTS_MAX {
            story.all_report(NodeState::Serving, true);
        }
        assert!(story.state.cluster.nodes.iter().all(|node| node.window.reports() <= REPORTS_MAX));
        let mut report = running(0, NodeState::Ready, false);
        report.epoch = report.epoch.next();
        story.report(0, report);
        assert_eq!(story.state.cluster.nodes[0].window, Window::default());
    }
}
