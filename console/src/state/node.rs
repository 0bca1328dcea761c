//! The dashboard's view of a node: its session, its last report, and the latest all-reduces of each layer.
use std::{collections::VecDeque, time::Duration};

use common::{
    fault::Fault,
    ids::LayerIndex,
    units::{Bytes, Nanoseconds},
};
use protocol::handshake::Identity;
use telemetry::{
    HopSync, LayerSync, LoadProgress, NodeReport, NodeState, StageTime, SyncKind, hop::LATEST, window::Window,
};
use topology::Member;

use crate::state::{clean::clean_line, history::History};

/// A node that has sent nothing for longer than this is stale.
pub const STALE_AFTER: Duration = Duration::from_secs(2);
/// Maximum number of layers kept per node.
pub const LAYERS_MAX: usize = 1024;

/// The session with a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Link {
    /// The first connection attempt is under way.
    Connecting,
    /// Open.
    Open,
    /// The session could not be opened, or it broke; the console keeps reconnecting.
    Lost {
        /// Why.
        fault: Fault,
        /// Whether the session was ever open.
        was_open: bool,
    },
}

/// A node's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// The first connection attempt is under way.
    Connecting,
    /// The node has never answered.
    Away,
    /// The connection was lost.
    Lost,
    /// The session is open, but the node has sent nothing for this many seconds.
    Stale(u64),
    /// The session is open, and no report has arrived yet.
    Silent,
    /// The node reports this state.
    Reports(NodeState),
}

/// The latest two all-reduces of a layer as seen by one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// After the attention.
    pub attention: Option<LayerSync>,
    /// After the feed-forward.
    pub feed_forward: Option<LayerSync>,
}

impl Layer {
    /// The all-reduces that are known.
    pub fn both(&self) -> impl Iterator<Item = &LayerSync> {
        self.attention.iter().chain(&self.feed_forward)
    }

    /// One of the two.
    pub fn of_kind(&self, kind: SyncKind) -> Option<&LayerSync> {
        match kind {
            SyncKind::Attention => self.attention.as_ref(),
            SyncKind::FeedForward => self.feed_forward.as_ref(),
        }
    }

    /// Mean compute, peer wait and transfer time of both all-reduces together.
    pub fn split(&self) -> [Nanoseconds; 3] {
        let sum = |part: fn(&LayerSync) -> Nanoseconds| Nanoseconds(self.both().map(|sync| part(sync).0).sum());
        [sum(|sync| sync.compute), sum(|sync| sync.wait), sum(|sync| sync.wire)]
    }

    /// The all-reduce with the longer peer wait.
    pub fn slower(&self) -> Option<&LayerSync> {
        self.both().max_by_key(|sync| sync.wait)
    }

    /// The worse of the two 95th percentiles.
    pub fn p95(&self) -> Option<Nanoseconds> {
        self.both().map(|sync| sync.p95).max()
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The address given by the operator.
    pub address: String,
    /// The session.
    pub link: Link,
    /// The last report.
    pub report: Option<NodeReport>,
    /// Progress of loading: from the report, or before that from the assignment.
    pub load: Option<LoadProgress>,
    /// All-reduces by layer.
    pub layers: Vec<Layer>,
    /// Latest hand-overs that the node received, one per sender.
    pub hops: Vec<HopSync>,
    /// Number of hand-overs, and nanoseconds of compute between them, of the latest reports.
    computing: VecDeque<(u32, u64)>,
    /// When all-reduces or hand-overs arrived last.
    pub layers_at: Option<Duration>,
    /// Samples of the last minutes.
    pub history: History,
    /// Sums of the latest all-reduces, and the lateness of each rank in them.
    pub window: Window,
    /// The machine that it runs on, and its number of cores for this node.
    pub machine: (String, usize),
    /// Whether its topology broke or its session ended while it served, and it has not served since.
    pub is_interrupted: bool,
    /// [`Self::network_share`] of the latest report with all-reduces or hand-overs.
    pub latest_share: (f64, f64),
    name: Option<String>,
    heard: Duration,
}

impl Node {
    /// A node that has not answered yet.
    pub fn new(address: &str) -> Self {
        Self {
            address: clean_line(address),
            link: Link::Connecting,
            report: None,
            load: None,
            layers: Vec::new(),
            hops: Vec::new(),
            computing: VecDeque::new(),
            layers_at: None,
            history: History::default(),
            window: Window::default(),
            machine: Default::default(),
            is_interrupted: false,
            latest_share: (0.0, 0.0),
            name: None,
            heard: Duration::ZERO,
        }
    }

    /// Its reported name, otherwise its address.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.address)
    }

    /// Whether it is this member of a topology.
    pub fn is(&self, member: &Member) -> bool {
        self.is_named(&member.name, &member.address)
    }

    /// Whether it is the node with this name, which had this address. The address counts only until the node has reported
    /// its name: two nodes may have swapped their addresses.
    pub fn is_named(&self, name: &str, address: &str) -> bool {
        self.name.as_ref().map_or(self.address == address || self.address == name, |own| own == name)
    }

    /// Whether its session is open.
    pub fn is_open(&self) -> bool {
        self.link == Link::Open
    }

    /// The node's condition.
    pub fn status(&self, now: Duration) -> NodeStatus {
        let silent = now.saturating_sub(self.heard);
        match (&self.link, &self.report) {
            (Link::Connecting, _) => NodeStatus::Connecting,
            (Link::Lost { was_open: false, .. }, _) => NodeStatus::Away,
            (Link::Lost { was_open: true, .. }, _) => NodeStatus::Lost,
            (Link::Open, _) if silent > STALE_AFTER => NodeStatus::Stale(silent.as_secs()),
            (Link::Open, None) => NodeStatus::Silent,
            (Link::Open, Some(report)) => NodeStatus::Reports(report.state),
        }
    }

    /// Whether all-reduces are arriving from it.
    pub fn layers_move(&self, now: Duration) -> bool {
        self.layers_at.is_some_and(|at| now.saturating_sub(at) <= STALE_AFTER)
    }

    /// The fault of its session, otherwise the one in its last report.
    pub fn fault(&self) -> Option<&Fault> {
        match &self.link {
            Link::Lost { fault, .. } => Some(fault),
            _ => self.report.as_ref().and_then(|report| report.fault.as_ref()),
        }
    }

    /// The session opened.
    pub fn connected(&mut self, now: Duration, identity: &Identity) {
        self.link = Link::Open;
        self.name = Some(clean_line(&identity.name)).filter(|name| !name.is_empty());
        self.machine = (identity.machine.clone(), identity.cores.len());
        self.heard = now;
        // A restarted node holds nothing of its previous reports.
        self.report = None;
        self.load = None;
    }

    /// The session broke, or could not be opened.
    pub fn disconnected(&mut self, fault: Fault) {
        let was_open = match self.link {
            Link::Connecting => false,
            Link::Open => true,
            Link::Lost { was_open, .. } => was_open,
        };
        self.is_interrupted |=
            self.report.as_ref().is_some_and(|report| report.state.serves() || report.state == NodeState::Draining);
        self.link = Link::Lost { fault, was_open };
        self.load = None;
    }

    /// A report arrived.
    pub fn reported(&mut self, now: Duration, report: NodeReport) {
        self.heard = now;
        self.name = Some(clean_line(&report.name)).filter(|name| !name.is_empty());
        self.load = report.load;
        if self.report.as_ref().is_some_and(|before| before.epoch != report.epoch) {
            self.layers.clear();
            self.hops.clear();
            self.computing.clear();
            self.window.clear();
            self.layers_at = None;
            self.latest_share = (0.0, 0.0);
        }
        let served = self.report.as_ref().is_some_and(|before| before.state.serves());
        match report.state {
            state if state.serves() => self.is_interrupted = false,
            // Without an expected topology, it has nothing to recover.
            NodeState::Idle => self.is_interrupted = report.expected.is_some(),
            NodeState::Faulted | NodeState::Draining => self.is_interrupted = true,
            // The next topology takes the place of one that served until now.
            _ => self.is_interrupted |= served,
        }
        self.window.record(now, &report);
        self.history.record(now, &report);
        let computes = !report.layers.is_empty() || !report.hops.is_empty();
        if computes {
            self.layers_at = Some(now);
        }
        if let Some(hop) = report.hops.first() {
            self.computing.push_back((hop.count, hop.compute.0.saturating_mul(u64::from(hop.count))));
            let mut count: u32 = self.computing.iter().map(|(count, _)| count).sum();
            while let Some((first, _)) = self.computing.front().filter(|(first, _)| count - first >= LATEST as u32) {
                count -= first;
                self.computing.pop_front();
            }
        }
        for hop in &report.hops {
            self.hops.retain(|before| before.from != hop.from);
            self.hops.push(*hop);
        }
        for sync in &report.layers {
            self.record(*sync);
        }
        self.report = Some(report);
        if computes {
            self.latest_share = self.network_share();
        }
    }

    /// Recent compute time of its steps as a stage of a pipeline.
    pub fn stage_time(&self) -> StageTime {
        let (count, time) = self
            .computing
            .iter()
            .fold((0, 0), |(counts, times): (u32, u64), (count, time): &(u32, u64)| (counts + count, times + time));
        let compute = Nanoseconds(time / u64::from(count.max(1)));
        let shard = self.report.as_ref().map_or(Bytes(0), |report| report.shard);
        StageTime { sync: HopSync { count, compute, ..HopSync::default() }, shard }
    }

    /// The assignment reports load progress.
    pub fn loading(&mut self, now: Duration, progress: LoadProgress) {
        self.heard = now;
        self.load = Some(progress);
    }

    /// From the last report's all-reduces and hand-overs, in nanoseconds: (peer wait, transfer and hop latency; the
    /// same plus compute). While a stage waits for another to compute, that time counts for the other stage.
    pub fn network_share(&self) -> (f64, f64) {
        let Some(report) = &self.report else { return (0.0, 0.0) };
        let reduced = report.layers.iter().fold((0.0, 0.0), |(network, all), sync| {
            let count = f64::from(sync.count);
            let (own, away) = (sync.compute.0 as f64 * count, (sync.wait.0 as f64 + sync.wire.0 as f64) * count);
            (network + away, all + own + away)
        });
        // All-reduces already include the compute time.
        let counts_computing = report.layers.is_empty();
        report.hops.iter().fold(reduced, |(network, all), hop| {
            let away = hop.hop.0 as f64 * f64::from(hop.timed);
            let own = if counts_computing { hop.compute.0 as f64 * f64::from(hop.count) } else { 0.0 };
            (network + away, all + own + away)
        })
    }

    fn record(&mut self, sync: LayerSync) {
        let LayerIndex(index) = sync.layer;
        let index = index as usize;
        if index >= LAYERS_MAX {
            return;
        }
        if self.layers.len() <= index {
            self.layers.resize(index + 1, Layer::default());
        }
        match sync.kind {
            SyncKind::Attention => self.layers[index].attention = Some(sync),
            SyncKind::FeedForward => self.layers[index].feed_forward = Some(sync),
        }
    }
}
