//! Data of the Sync page: the all-reduces of all ranks, now or at a recent moment. Bounded. Pure.
use std::{collections::VecDeque, time::Duration};

use common::{ids::MemberIndex, units::Nanoseconds};
use telemetry::{Health, HopSync, LayerSync, StageTime, SyncKind, slow_stage};

use crate::state::{
    State,
    clean::clean_line,
    lateness::{RankRow, ranks, straggler},
    node::{Layer, Node},
};

/// Interval between two snapshots.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of snapshots.
pub const KEPT_MAX: usize = 300;
/// Maximum number of layers in all snapshots together: 16 ranks of 32 layers last for two minutes, in 9 MB.
const LAYERS_MAX: usize = 64 << 10;

/// A figure of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Median of peer wait plus transfer.
    P50,
    /// 95th percentile of peer wait plus transfer.
    P95,
    /// 99th percentile of peer wait plus transfer.
    P99,
    /// Mean compute time.
    Own,
    /// Mean peer wait.
    Wait,
    /// Mean transfer time.
    Wire,
}

impl Metric {
    /// In the order of the columns.
    pub const ALL: [Self; 6] = [Self::P50, Self::P95, Self::P99, Self::Own, Self::Wait, Self::Wire];

    /// The column title.
    pub fn title(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Own => "comp",
            Self::Wait => "wait",
            Self::Wire => "net",
        }
    }

    /// The next figure, wrapping around.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|metric| *metric == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// The value of this figure for an all-reduce.
    pub fn of(self, sync: &LayerSync) -> Nanoseconds {
        match self {
            Self::P50 => sync.p50,
            Self::P95 => sync.p95,
            Self::P99 => sync.p99,
            Self::Own => sync.compute,
            Self::Wait => sync.wait,
            Self::Wire => sync.wire,
        }
    }
}

/// Hand-overs from one stage of a pipeline to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Boundary {
    /// The sending node.
    pub from: String,
    /// The receiving node.
    pub to: String,
    /// Its latest hand-overs.
    pub sync: HopSync,
}

/// Finds the slow stage of a pipeline with one rank per stage: the node's list index, and the factor by which it
/// computes longer for its weights than the other stages.
pub fn slow_pipeline(state: &State) -> Option<(usize, f64)> {
    let (topology, _) = state.cluster.topology()?;
    let replicas = (0..topology.layout.replicas).filter(|replica| topology.layout.ranks_of(*replica) == 1);
    replicas
        .filter_map(|replica: u16| {
            let members = topology.layout.members(replica);
            let stages: Vec<StageTime> = members
                .clone()
                .map(|member: usize| state.cluster.node_of(member).map_or_else(StageTime::default, Node::stage_time))
                .collect();
            let (stage, factor) = slow_stage(&stages)?;
            Some((state.cluster.place_of(members.start + stage)?, factor))
        })
        .max_by(|one, two| one.1.total_cmp(&two.1))
}

/// The boundaries of all pipelines, in the order in which a token passes them.
fn boundaries(state: &State) -> Vec<Boundary> {
    let Some((topology, _)) = state.cluster.topology() else { return Vec::new() };
    let name = |member: usize| topology.members.get(member).map_or("?", |member| member.name.as_str());
    let mut found: Vec<_> = (0..topology.members.len())
        .flat_map(|to: usize| {
            let place = topology.place(MemberIndex(to as u16));
            let first = topology.layout.members(place.replica).start;
            let hops = state.cluster.node_of(to).map_or_else(Vec::new, |node| node.hops.clone());
            hops.into_iter().map(move |sync: HopSync| {
                let (from, to) = (clean_line(name(first + sync.from.index())), clean_line(name(to)));
                // Tokens return to the head last.
                ((place.replica, sync.from), Boundary { from, to, sync })
            })
        })
        .collect();
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().map(|(_, boundary)| boundary).collect()
}

/// The all-reduces of all ranks at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncPicture {
    /// Time since the start of the dashboard.
    pub at: Duration,
    /// The ranks with their names, worst straggler first.
    pub ranks: Vec<(RankRow, String)>,
    /// The layers of each of these ranks.
    pub layers: Vec<Vec<Layer>>,
    /// The boundaries between stages, with sender and receiver.
    pub boundaries: Vec<Boundary>,
    /// The straggler's index among these ranks, and a sentence with its effect and cause.
    pub straggler: Option<(usize, String)>,
}

impl SyncPicture {
    /// The current snapshot.
    pub fn take(state: &State) -> Self {
        let rows = ranks(state);
        let node = |row: &RankRow| row.node.map(|node| &state.cluster.nodes[node]);
        // There is no straggler while nothing is computed.
        let late = straggler(&rows).filter(|_| state.layers_move());
        let late = late.and_then(|late| rows.iter().position(|row| row.member == late.member));
        let late = late.map(|place| {
            (
                place,
                format!("delays the others: {:.0} % of their time only its part is missing", 100.0 * rows[place].late),
            )
        });
        // Stages with one rank have no all-reduces to be late in.
        let late = late.or_else(|| {
            let (node, factor) = slow_pipeline(state).filter(|_| state.layers_move())?;
            let place = rows.iter().position(|row| row.node == Some(node))?;
            Some((
                place,
                format!("is the slow stage: it computes {factor:.2} times as long for its weights as the others"),
            ))
        });
        let straggler = late.map(|(place, how)| {
            let health = |row: &RankRow| Some(&node(row)?.report.as_ref()?.health);
            let others = rows.iter().enumerate().filter(|(other, _)| *other != place);
            let others: Vec<&Health> = others.filter_map(|(_, row)| health(row)).collect();
            let why = health(&rows[place]).map_or_else(|| "it does not report".to_owned(), |it| cause(it, &others));
            (place, format!("{} {how}; {why}", node(&rows[place]).map_or("a node", |node| node.name())))
        });
        let layers = rows.iter().map(|row| node(row).map_or_else(Vec::new, |node| node.layers.clone())).collect();
        let ranks = rows.into_iter().map(|row| {
            let name = node(&row).map_or("not named", |node| node.name());
            (row, name.to_owned())
        });
        Self { at: state.now, ranks: ranks.collect(), layers, boundaries: boundaries(state), straggler }
    }

    /// Number of layers of the rank that has the most.
    pub fn layer_count(&self) -> usize {
        self.layers.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// An all-reduce of a rank. `row` is twice the layer, plus one for the all-reduce after the feed-forward.
    pub fn sync(&self, rank: usize, row: usize) -> Option<&LayerSync> {
        let layer = self.layers.get(rank)?.get(row / 2)?;
        let kind = if row.is_multiple_of(2) { SyncKind::Attention } else { SyncKind::FeedForward };
        layer.of_kind(kind)
    }

    /// The median of a figure over all ranks and layers.
    pub fn usual(&self, metric: Metric) -> Nanoseconds {
        let layers = self.layers.iter().flatten();
        let mut all: Vec<u64> = layers.flat_map(Layer::both).map(|sync| metric.of(sync).0).collect();
        let middle = all.len() / 2;
        if all.is_empty() { Nanoseconds(0) } else { Nanoseconds(*all.select_nth_unstable(middle).1) }
    }

    /// The share of its peers' time that the worst straggler takes.
    pub fn lateness(&self) -> f64 {
        self.ranks.first().map_or(0.0, |(row, _)| row.late)
    }

    fn size(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }
}

/// The likely reason why peers wait for a node: a finding of its machine compared with `others`, or the causes that are
/// ruled out.
pub fn cause(health: &Health, others: &[&Health]) -> String {
    if let Some(cause) = health.cause_beside(others) {
        return format!("its machine says: {cause}");
    }
    match health.run_queue {
        Some(threads) => format!(
            "no cause is known: its engine waited {:.0} % of the time for a core, its clock is not lowered; was it stopped, or is its \
             share too large?",
            100.0 * threads.waited
        ),
        None => "no cause is known; is its share too large?".into(),
    }
}

/// Snapshots of the last minutes, and the selected one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncHistory {
    kept: VecDeque<SyncPicture>,
    /// Number of dropped snapshots.
    gone: usize,
    /// The selected snapshot, counted from the first one ever; `None` = live.
    at: Option<usize>,
    layers: usize,
}

impl SyncHistory {
    /// Whether a snapshot is due: all-reduces have arrived since the last one.
    pub fn is_due(&self, now: Duration, arrived: Option<Duration>) -> bool {
        let last = self.kept.back().map(|picture| picture.at);
        last.map_or(arrived.is_some(), |last: Duration| now >= last + INTERVAL && arrived.is_some_and(|at| at > last))
    }

    /// Adds a snapshot and drops the oldest beyond the limits.
    pub fn keep(&mut self, picture: SyncPicture) {
        self.layers += picture.size();
        self.kept.push_back(picture);
        while self.kept.len() > KEPT_MAX || (self.layers > LAYERS_MAX && self.kept.len() > 1) {
            if let Some(oldest) = self.kept.pop_front() {
                self.layers -= oldest.size();
                self.gone += 1;
            }
        }
    }

    /// Selects a snapshot `by` steps newer (older if negative); beyond the newest is live.
    pub fn turn(&mut self, by: isize) {
        let newest = self.gone + self.kept.len();
        let place = self.at.unwrap_or(newest).saturating_add_signed(by).max(self.gone);
        self.at = (place < newest).then_some(place);
    }

    /// Returns to live.
    pub fn live(&mut self) {
        self.at = None;
    }

    /// The selected snapshot; `None` = live. If it has been dropped, the oldest one that is kept.
    pub fn shown(&self) -> Option<&SyncPicture> {
        self.place().and_then(|place| self.kept.get(place))
    }

    /// Index of the selected snapshot among those kept.
    pub fn place(&self) -> Option<usize> {
        self.at.map(|at| at.saturating_sub(self.gone))
    }

    /// All snapshots, oldest first.
    pub fn kept(&self) -> &VecDeque<SyncPicture> {
        &self.kept
    }
}

/// Adds a snapshot if one is due.
pub fn record(state: &mut State) {
    let arrived = state.cluster.nodes.iter().filter_map(|node| node.layers_at).max();
    if state.cluster.sync.is_due(state.now, arrived) {
        let picture = SyncPicture::take(state);
        state.cluster.sync.keep(picture);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{LAYERS, Story};
    use telemetry::NodeState;

    #[test]
    fn straggler_is_first_with_its_cause() {
        let story = Story::generating();
        let picture = SyncPicture::take(&story.state);
        let (place, why) = picture.straggler.clone().expect("node 2 is the straggler");
        assert_eq!((place, picture.ranks[0].1.as_str()), (0, "pi2"));
        assert!(why.contains("no cause is known"), "{why}");
        assert_eq!(picture.layer_count(), LAYERS as usize);
        let sync = picture.sync(1, 5).expect("layer 2 after its feed-forward");
        assert_eq!((sync.layer.0, sync.kind), (2, SyncKind::FeedForward));
        assert_eq!((picture.sync(1, 12), picture.sync(9, 0)), (None, None));
        assert!(picture.usual(Metric::P50).0 > 0);
        assert_eq!(SyncPicture::take(&Story::begin().state).usual(Metric::P95), Nanoseconds(0));
    }

    #[test]
    fn one_snapshot_per_second_while_all_reduces_arrive() {
        let mut story = Story::generating();
        for second in 2..10 {
            for quarter in 0..4 {
                story.at(1000 * second + 250 * quarter).all_report(NodeState::Serving, true);
            }
        }
        let kept = story.state.cluster.sync.kept().len();
        assert!((8..=9).contains(&kept), "{kept}");
        story.at(20_000).all_report(NodeState::Ready, false).at(21_000).all_report(NodeState::Ready, false);
        assert_eq!(story.state.cluster.sync.kept().len(), kept);
    }

    #[test]
    fn selected_snapshot_stays_while_new_ones_arrive() {
        let picture =
            |second| SyncPicture { at: Duration::from_secs(second), ..SyncPicture::take(&Story::generating().state) };
        let mut history = SyncHistory::default();
        (1..=10).for_each(|second| history.keep(picture(second)));
        let at = |history: &SyncHistory| history.shown().map(|picture| picture.at.as_secs());
        assert_eq!(at(&history), None);
        history.turn(-3);
        assert_eq!(at(&history), Some(8));
        history.keep(picture(11));
        assert_eq!(at(&history), Some(8), "selection stays while others arrive");
        history.turn(-100);
        assert_eq!(at(&history), Some(1));
        (0..KEPT_MAX as u64).for_each(|second| history.keep(picture(12 + second)));
        assert_eq!((history.kept().len(), history.place()), (KEPT_MAX, Some(0)), "the oldest that is kept");
        history.turn(1_000_000);
        assert_eq!(at(&history), None);
        history.turn(-1);
        history.live();
        assert_eq!(at(&history), None);
    }

    #[test]
    fn history_is_bounded_by_its_layers_too() {
        let mut picture = SyncPicture::take(&Story::generating().state);
        picture.layers = vec![vec![Layer::default(); 1024]; 16];
        let mut history = SyncHistory::default();
        (0..20).for_each(|_| history.keep(picture.clone()));
        assert_eq!(history.kept().len(), 4);
        assert_eq!(history.layers, 4 * 16 * 1024);
    }
}
