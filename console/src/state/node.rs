//! A node as the dashboard knows it: its session, its last report, and the latest all-reduces of each layer.
use std::{collections::VecDeque, time::Duration};

use shared::{
    ids::LayerIndex,
    protocol::{error::Fault, handshake::Identity},
    telemetry::{
        HopSync, LayerSync, LoadProgress, NodeReport, NodeState, StageTime, SyncKind, hop::LATEST, window::Window,
    },
    units::{Bytes, Nanoseconds},
};

use crate::state::{clean::clean_line, history::History};

/// A node that sent nothing for longer than this is stale.
pub const STALE_AFTER: Duration = Duration::from_secs(2);
/// Most layers that are kept of a node.
pub const LAYERS_MAX: usize = 1024;

/// The session with a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Link {
    /// Dialled for the first time.
    Connecting,
    /// Open.
    Open,
    /// It could not be opened, or it broke; it is dialled again.
    Lost {
        /// Why.
        fault: Fault,
        /// Whether it had ever been open.
        was_open: bool,
    },
}

/// What to say about a node in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Dialled for the first time.
    Connecting,
    /// It never answered.
    Away,
    /// It was there and is gone.
    Lost,
    /// Its session is open, but it has sent nothing for so many seconds.
    Stale(u64),
    /// Its session is open, and no report has come yet.
    Silent,
    /// It reports.
    Reports(NodeState),
}

/// A layer's two all-reduces as one rank saw them last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// After the attention.
    pub attention: Option<LayerSync>,
    /// After the feed-forward.
    pub feed_forward: Option<LayerSync>,
}

impl Layer {
    /// Those that are known.
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

    /// Mean of own computing, waiting and wire, both all-reduces together.
    pub fn split(&self) -> [Nanoseconds; 3] {
        let sum = |part: fn(&LayerSync) -> Nanoseconds| Nanoseconds(self.both().map(|sync| part(sync).0).sum());
        [sum(|sync| sync.compute), sum(|sync| sync.wait), sum(|sync| sync.wire)]
    }

    /// The all-reduce that was waited in longer.
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
    /// The address that it was named by.
    pub address: String,
    /// The session.
    pub link: Link,
    /// The last report.
    pub report: Option<NodeReport>,
    /// Progress of a load: from the report, or earlier from the assignment.
    pub load: Option<LoadProgress>,
    /// All-reduces, by layer.
    pub layers: Vec<Layer>,
    /// Hand-overs that it took over, by who handed over, as last seen.
    pub hops: Vec<HopSync>,
    /// Hand-overs and nanoseconds of own computing between them, of the latest reports.
    computing: VecDeque<(u32, u64)>,
    /// When all-reduces or hand-overs arrived last.
    pub layers_at: Option<Duration>,
    /// Its last minutes.
    pub history: History,
    /// Sums of the latest all-reduces, and who was late in them.
    pub window: Window,
    /// Which machine it runs on, and how many cores of it.
    pub machine: (String, usize),
    name: Option<String>,
    heard: Duration,
}

impl Node {
    /// A node that was never heard of.
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
            name: None,
            heard: Duration::ZERO,
        }
    }

    /// The name that it gave itself, else its address.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.address)
    }

    /// Whether its session is open.
    pub fn is_open(&self) -> bool {
        self.link == Link::Open
    }

    /// What to say about it.
    pub fn standing(&self, now: Duration) -> Standing {
        let silent = now.saturating_sub(self.heard);
        match (&self.link, &self.report) {
            (Link::Connecting, _) => Standing::Connecting,
            (Link::Lost { was_open: false, .. }, _) => Standing::Away,
            (Link::Lost { was_open: true, .. }, _) => Standing::Lost,
            (Link::Open, _) if silent > STALE_AFTER => Standing::Stale(silent.as_secs()),
            (Link::Open, None) => Standing::Silent,
            (Link::Open, Some(report)) => Standing::Reports(report.state),
        }
    }

    /// Whether all-reduces arrive from it.
    pub fn layers_move(&self, now: Duration) -> bool {
        self.layers_at.is_some_and(|at| now.saturating_sub(at) <= STALE_AFTER)
    }

    /// Why it is not as it should be.
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
        // A node that was started again holds nothing of what it said before.
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
        }
        self.window.record(now, &report);
        self.history.record(now, &report);
        if !report.layers.is_empty() || !report.hops.is_empty() {
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
    }

    /// What it says of its steps as a stage of a pipeline, of late.
    pub fn stage_time(&self) -> StageTime {
        let sum = |(counts, times): (u32, u64), (count, time): &(u32, u64)| (counts + count, times + time);
        let (count, time) = self.computing.iter().fold((0, 0), sum);
        let compute = Nanoseconds(time / u64::from(count.max(1)));
        let shard = self.report.as_ref().map_or(Bytes(0), |report| report.shard);
        StageTime { sync: HopSync { count, compute, ..HopSync::default() }, shard }
    }

    /// The assignment says how far its load is.
    pub fn loading(&mut self, now: Duration, progress: LoadProgress) {
        self.heard = now;
        self.load = Some(progress);
    }

    /// Of the last report's all-reduces and hand-overs: (waiting for ranks of the stage, wire and hops; the same and own computing) in
    /// nanoseconds. While a stage waits for others to compute, the time is theirs.
    pub fn network_share(&self) -> (f64, f64) {
        let Some(report) = &self.report else { return (0.0, 0.0) };
        let reduced = report.layers.iter().fold((0.0, 0.0), |(network, all), sync| {
            let count = f64::from(sync.count);
            let (own, away) = (sync.compute.0 as f64 * count, (sync.wait.0 as f64 + sync.wire.0 as f64) * count);
            (network + away, all + own + away)
        });
        // With all-reduces the computing is in those already.
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
