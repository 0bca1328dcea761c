//! What the page Sync shows: the all-reduces of all ranks as they are now, or as they were a moment ago. Bounded. Pure.
use std::{collections::VecDeque, time::Duration};

use shared::{
    ids::MemberIndex,
    telemetry::{Health, HopSync, LayerSync, StageTime, SyncKind, slow_stage},
    units::Nanoseconds,
};

use crate::state::{
    State,
    clean::clean_line,
    lateness::{RankRow, ranks, straggler},
    node::{Layer, Node},
};

/// Time between two pictures that are kept.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most pictures that are kept.
pub const KEPT_MAX: usize = 300;
/// Most layers of all kept pictures together: 16 ranks of 32 layers stay for two minutes, in 9 MB.
const LAYERS_MAX: usize = 64 << 10;

/// One number of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Median of waiting and wire.
    P50,
    /// 95th percentile of it.
    P95,
    /// 99th percentile of it.
    P99,
    /// Mean of own computing.
    Own,
    /// Mean of waiting.
    Wait,
    /// Mean of the wire.
    Wire,
}

impl Metric {
    /// In the order of the columns.
    pub const ALL: [Self; 6] = [Self::P50, Self::P95, Self::P99, Self::Own, Self::Wait, Self::Wire];

    /// As a column is called.
    pub fn title(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Own => "own",
            Self::Wait => "wait",
            Self::Wire => "wire",
        }
    }

    /// The one after it, round and round.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|metric| *metric == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// This number of an all-reduce.
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

/// Hand-overs from one stage of a pipeline to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Boundary {
    /// Who hands over.
    pub from: String,
    /// Who takes over.
    pub to: String,
    /// Its latest hand-overs.
    pub sync: HopSync,
}

/// The place among the nodes of the slow stage of a pipeline whose stages are one rank each, and how many times as long as the others it
/// computes for its weights.
pub fn slow_pipeline(state: &State) -> Option<(usize, f64)> {
    let (topology, _) = state.topology()?;
    let replicas = (0..topology.layout.replicas).filter(|replica| topology.layout.ranks_of(*replica) == 1);
    let of_replica = |replica: u16| {
        let members = topology.layout.members(replica);
        let time = |member: usize| state.node_of(member).map_or_else(StageTime::default, Node::stage_time);
        let stages: Vec<StageTime> = members.clone().map(time).collect();
        let (stage, factor) = slow_stage(&stages)?;
        Some((state.place_of(members.start + stage)?, factor))
    };
    replicas.filter_map(of_replica).max_by(|one, two| one.1.total_cmp(&two.1))
}

/// The boundaries of all pipelines, in the order in which a token passes them.
fn boundaries(state: &State) -> Vec<Boundary> {
    let Some((topology, _)) = state.topology() else { return Vec::new() };
    let name = |member: usize| topology.members.get(member).map_or("?", |member| member.name.as_str());
    let of = |to: usize| {
        let place = topology.place(MemberIndex(to as u16));
        let first = topology.layout.members(place.replica).start;
        let hops = state.node_of(to).map_or_else(Vec::new, |node| node.hops.clone());
        let boundary = move |sync: HopSync| {
            let (from, to) = (clean_line(name(first + sync.from.index())), clean_line(name(to)));
            // Tokens come back to the head last.
            ((place.replica, sync.from), Boundary { from, to, sync })
        };
        hops.into_iter().map(boundary)
    };
    let mut found: Vec<_> = (0..topology.members.len()).flat_map(of).collect();
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().map(|(_, boundary)| boundary).collect()
}

/// The all-reduces of all ranks at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// When.
    pub at: Duration,
    /// The ranks, the latest first, with their names.
    pub ranks: Vec<(RankRow, String)>,
    /// Layers of each of these ranks.
    pub layers: Vec<Vec<Layer>>,
    /// The boundaries between stages: who hands over, who takes over.
    pub boundaries: Vec<Boundary>,
    /// The place among these ranks of the one that holds the others up, and in a sentence how and why.
    pub straggler: Option<(usize, String)>,
}

impl Picture {
    /// As it is now.
    pub fn take(state: &State) -> Self {
        let rows = ranks(state);
        let node = |row: &RankRow| row.node.map(|node| &state.nodes[node]);
        // Nobody holds the others up while nothing is computed.
        let late = straggler(&rows).filter(|_| state.layers_move());
        let late = late.and_then(|late| rows.iter().position(|row| row.member == late.member));
        let late = late.map(|place| {
            (
                place,
                format!(
                    "holds the others up: {:.0} % of their time only its part is missing",
                    100.0 * rows[place].late
                ),
            )
        });
        // Stages of one rank have no all-reduces in which they could be late.
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
        let name = |row: &RankRow| node(row).map_or("not named", |node| node.name()).to_owned();
        let ranks = rows.into_iter().map(|row| (row, name(&row))).collect();
        Self { at: state.now, ranks, layers, boundaries: boundaries(state), straggler }
    }

    /// Layers of the rank that has the most.
    pub fn layer_count(&self) -> usize {
        self.layers.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// An all-reduce of a rank: its row is twice the layer, and one more after the feed-forward.
    pub fn sync(&self, rank: usize, row: usize) -> Option<&LayerSync> {
        let layer = self.layers.get(rank)?.get(row / 2)?;
        let kind = if row.is_multiple_of(2) { SyncKind::Attention } else { SyncKind::FeedForward };
        layer.of_kind(kind)
    }

    /// The median over all ranks and layers of a number: what is usual.
    pub fn usual(&self, metric: Metric) -> Nanoseconds {
        let layers = self.layers.iter().flatten();
        let mut all: Vec<u64> = layers.flat_map(Layer::both).map(|sync| metric.of(sync).0).collect();
        let middle = all.len() / 2;
        if all.is_empty() { Nanoseconds(0) } else { Nanoseconds(*all.select_nth_unstable(middle).1) }
    }

    /// The share of the others' time that the latest rank takes.
    pub fn lateness(&self) -> f64 {
        self.ranks.first().map_or(0.0, |(row, _)| row.late)
    }

    fn size(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }
}

/// Why others wait for a node, as its machine says beside theirs, or what it says that it is not.
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

/// Pictures of the last minutes, and which of them is looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    kept: VecDeque<Picture>,
    /// Pictures that gave way.
    gone: usize,
    /// Which is looked at, counted from the first that ever was; `None`: now.
    at: Option<usize>,
    layers: usize,
}

impl History {
    /// Whether a picture is due: all-reduces arrived since the last one.
    pub fn is_due(&self, now: Duration, arrived: Option<Duration>) -> bool {
        let last = self.kept.back().map(|picture| picture.at);
        let is_new = |last: Duration| now >= last + INTERVAL && arrived.is_some_and(|at| at > last);
        last.map_or(arrived.is_some(), is_new)
    }

    /// Keeps a picture; the oldest give way.
    pub fn keep(&mut self, picture: Picture) {
        self.layers += picture.size();
        self.kept.push_back(picture);
        while self.kept.len() > KEPT_MAX || (self.layers > LAYERS_MAX && self.kept.len() > 1) {
            if let Some(oldest) = self.kept.pop_front() {
                self.layers -= oldest.size();
                self.gone += 1;
            }
        }
    }

    /// Another one is looked at: so many newer, or older. Beyond the newest is now.
    pub fn turn(&mut self, by: isize) {
        let newest = self.gone + self.kept.len();
        let place = self.at.unwrap_or(newest).saturating_add_signed(by).max(self.gone);
        self.at = (place < newest).then_some(place);
    }

    /// What is now is looked at.
    pub fn live(&mut self) {
        self.at = None;
    }

    /// The one that is looked at; `None`: now. One that gave way is followed by the oldest that is there.
    pub fn shown(&self) -> Option<&Picture> {
        self.place().and_then(|place| self.kept.get(place))
    }

    /// Place of the one that is looked at among those that are kept.
    pub fn place(&self) -> Option<usize> {
        self.at.map(|at| at.saturating_sub(self.gone))
    }

    /// All that are kept, the oldest first.
    pub fn kept(&self) -> &VecDeque<Picture> {
        &self.kept
    }
}

/// Keeps a picture if one is due.
pub fn record(state: &mut State) {
    let arrived = state.nodes.iter().filter_map(|node| node.layers_at).max();
    if state.sync.is_due(state.now, arrived) {
        let picture = Picture::take(state);
        state.sync.keep(picture);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{LAYERS, Story};
    use shared::telemetry::NodeState;

    #[test]
    fn the_straggler_is_first_with_its_cause_and_numbers_of_each_layer_are_found() {
        let story = Story::generating();
        let picture = Picture::take(&story.state);
        let (place, why) = picture.straggler.clone().expect("node 2 is late");
        assert_eq!((place, picture.ranks[0].1.as_str()), (0, "pi2"));
        assert!(why.contains("no cause is known"), "{why}");
        assert_eq!(picture.layer_count(), LAYERS as usize);
        let sync = picture.sync(1, 5).expect("layer 2 after its feed-forward");
        assert_eq!((sync.layer.0, sync.kind), (2, SyncKind::FeedForward));
        assert_eq!((picture.sync(1, 12), picture.sync(9, 0)), (None, None));
        assert!(picture.usual(Metric::P50).0 > 0);
        assert_eq!(Picture::take(&Story::begin().state).usual(Metric::P95), Nanoseconds(0));
    }

    #[test]
    fn a_picture_a_second_is_kept_while_all_reduces_arrive_and_none_else() {
        let mut story = Story::generating();
        for second in 2..10 {
            for quarter in 0..4 {
                story.at(1000 * second + 250 * quarter).all_report(NodeState::Serving, true);
            }
        }
        let kept = story.state.sync.kept().len();
        assert!((8..=9).contains(&kept), "{kept}");
        story.at(20_000).all_report(NodeState::Ready, false).at(21_000).all_report(NodeState::Ready, false);
        assert_eq!(story.state.sync.kept().len(), kept);
    }

    #[test]
    fn one_looks_back_and_forward_to_now_and_what_is_looked_at_stays() {
        let picture = |second| Picture { at: Duration::from_secs(second), ..Picture::take(&Story::generating().state) };
        let mut history = History::default();
        (1..=10).for_each(|second| history.keep(picture(second)));
        let at = |history: &History| history.shown().map(|picture| picture.at.as_secs());
        assert_eq!(at(&history), None);
        history.turn(-3);
        assert_eq!(at(&history), Some(8));
        history.keep(picture(11));
        assert_eq!(at(&history), Some(8), "it stays while others come");
        history.turn(-100);
        assert_eq!(at(&history), Some(1));
        (0..KEPT_MAX as u64).for_each(|second| history.keep(picture(12 + second)));
        assert_eq!((history.kept().len(), history.place()), (KEPT_MAX, Some(0)), "the oldest that is there");
        history.turn(1_000_000);
        assert_eq!(at(&history), None);
        history.turn(-1);
        history.live();
        assert_eq!(at(&history), None);
    }

    #[test]
    fn history_is_bounded_by_its_layers_too() {
        let mut picture = Picture::take(&Story::generating().state);
        picture.layers = vec![vec![Layer::default(); 1024]; 16];
        let mut history = History::default();
        (0..20).for_each(|_| history.keep(picture.clone()));
        assert_eq!(history.kept().len(), 4);
        assert_eq!(history.layers, 4 * 16 * 1024);
    }
}
