//! All that can be on the screen. Knows no terminal, no socket and no clock; changed by `update` alone.
pub mod clean;
pub mod cluster;
pub mod command;
pub mod desk;
pub mod editor;
pub mod events;
pub mod filter;
pub mod history;
pub mod lateness;
pub mod log;
pub mod node;
pub mod operation;
pub mod outlook;
pub mod page;
pub mod plan;
pub mod request;
pub mod requests;
pub mod run;
pub mod standing;
pub mod sync;
pub mod table;
pub mod tables;
pub mod terms;
pub mod watch;

pub use page::{Area, Focus, Page, Spot};

use std::time::Duration;

use serde::{Deserialize, Serialize};

use shared::{
    ids::{Epoch, MemberIndex},
    latency::ratio,
    protocol::{error::Fault, message::Generate},
    sampling::SamplingParameters,
    telemetry::{NodeState, Severity},
    topology::{Exclusion, Exclusions, Rolling, Topology, planner::Goal, rolling},
};

use crate::{
    effect::Wanted,
    state::{
        editor::Editor,
        node::{Node, Standing},
        operation::{Dialog, Operation},
        request::Request,
        sync::Metric,
    },
    wanted::{Asked, least_loaded},
};

/// What of a frame scrolls, and how much of it is seen: the view tells the state after drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The tabs of the pages, in their order; empty where a tab is not on the screen.
    pub tabs: [Area; Page::ALL.len()],
    /// Rows of the page's table, without its heading.
    pub table: Area,
    /// The first of its rows that is shown.
    pub table_first: usize,
    /// Rows of it that are shown.
    pub table_height: usize,
    /// Lines of text, wrapped.
    pub text_lines: usize,
    /// Lines of text that the panel shows.
    pub text_height: usize,
    /// Layers that the panel shows.
    pub layers_height: usize,
    /// Rows of the table of layers by ranks.
    pub sync_rows: usize,
    /// Rows of it that are shown.
    pub sync_height: usize,
    /// Lines of the picture of what runs.
    pub picture_lines: usize,
    /// Lines of it that are shown.
    pub picture_height: usize,
    /// Lines of the details of a node.
    pub details_lines: usize,
    /// Lines of them that are shown.
    pub details_height: usize,
    /// Lines of the help page.
    pub help_lines: usize,
    /// Lines of the help page that are shown.
    pub help_height: usize,
}

/// Where an assignment from this console is.
#[derive(Clone, Debug, PartialEq)]
pub enum Assignment {
    /// None was asked for.
    Nothing,
    /// It starts when all nodes that are in have reported.
    WaitsForNodes,
    /// Nodes load.
    Loading,
    /// Nodes switch.
    Committing,
    /// Done.
    Running {
        /// Its epoch.
        epoch: Epoch,
        /// It ran already and was used again.
        reused: bool,
    },
    /// It failed.
    Failed(Fault),
}

/// Which line of the text is the first on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextScroll {
    /// The end is on the screen.
    Follow,
    /// This line is the first.
    At(usize),
}

/// What every generation from the prompt box asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateDefaults {
    /// Most tokens.
    pub max_tokens: u32,
    /// How tokens are drawn. The seed is that of the first generation, the next ones count up from it.
    pub sampling: SamplingParameters,
    /// Texts that end a generation.
    pub stop: Vec<String>,
}

impl GenerateDefaults {
    /// The request for a prompt, which is the `count`-th of this session.
    pub fn request(&self, prompt: &str, count: u64) -> Generate {
        let mut sampling = self.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(count);
        Generate::new(prompt, self.max_tokens, sampling, self.stop.clone())
    }
}

/// A picture that stands still while the cluster goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Frozen {
    /// Since when.
    pub since: Duration,
    /// Events of the cluster since then.
    pub events: u64,
    /// What is shown.
    pub shown: Box<State>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Time since the start, of the last tick.
    pub now: Duration,
    /// The nodes in the order in which they were named.
    pub nodes: Vec<Node>,
    /// What the operator wants to run.
    pub wanted: Option<Wanted>,
    /// What this console was started with, until that is seen to.
    pub asked: Option<Asked>,
    /// How far that is.
    pub assignment: Assignment,
    /// What the last assignment of this console made run.
    pub assigned: Option<Topology>,
    /// The generation.
    pub request: Request,
    /// The epoch that ran when the generation was sent: its times say nothing of another topology.
    pub request_epoch: Option<Epoch>,
    /// Generations sent so far.
    pub requests_sent: u64,
    /// What each generation asks for.
    pub defaults: GenerateDefaults,
    /// Nodes that are out, as far as any node has said.
    pub exclusions: Exclusions,
    /// The rolling restart that the nodes keep, as any of them said last; also one that is over.
    pub rolling: Option<Rolling>,
    /// When its step that is under way was first heard of.
    pub rolling_since: Duration,
    /// What layouts are ranked by.
    pub goal: Goal,
    /// Whether the planner's answer is to be assigned.
    pub assigns_best: bool,
    /// What this dashboard does to nodes.
    pub operation: Option<Operation>,
    /// It only looks: no order is given, nothing is assigned or generated.
    pub readonly: bool,
    /// The result that the next ones are compared with.
    pub pinned: Option<run::Run>,
    /// The form of what generations ask for, while it is open.
    pub form: Option<terms::Form>,
    /// A question that waits for its answer.
    pub dialog: Option<Dialog>,
    /// What the map of the page of all ranks shows of each all-reduce.
    pub sync_metric: Metric,
    /// All-reduces of the last minutes.
    pub sync: sync::History,
    /// The first row that it shows.
    pub sync_scroll: usize,
    /// The prompt box.
    pub editor: Editor,
    /// Which page is shown, and which panel of it keys go to.
    pub spot: Spot,
    /// Whether the help page is open, and its first line.
    pub help: Option<usize>,
    /// The node whose layers are shown.
    pub selected: usize,
    /// What the planner said.
    pub planning: plan::Planning,
    /// The first line of the picture of what runs that is shown.
    pub picture_scroll: usize,
    /// The first line of a node's details that is shown.
    pub details_scroll: usize,
    /// The first layer shown.
    pub layers_scroll: usize,
    /// What of the text is shown.
    pub text_scroll: TextScroll,
    /// What happened so far.
    pub events: events::Log,
    /// Events that are not so bad are left out.
    pub severity_min: Severity,
    /// How all was seen last: what differs becomes an event.
    pub watch: watch::Watch,
    /// How the table of each page is arranged.
    pub arrangements: [table::Arrangement; Page::ALL.len()],
    /// What the clock said at the start: milliseconds since 1970.
    pub clock_ms: u64,
    /// What was on the screen last.
    pub extent: Extent,
    /// An answer to a key that could do nothing, until the next key.
    pub notice: Option<String>,
    /// The end was asked for.
    pub is_ending: bool,
    /// The log of the node whose page was looked at last.
    pub log: log::Log,
    /// How the screen is arranged.
    pub desk: desk::Desk,
    /// The picture that is shown instead, while it stands still.
    pub frozen: Option<Frozen>,
}

impl State {
    /// The state before anything happened.
    pub fn new(nodes: &[String], wanted: Option<Wanted>, prompt: &str, defaults: GenerateDefaults) -> Self {
        let assignment = if wanted.is_some() { Assignment::WaitsForNodes } else { Assignment::Nothing };
        Self {
            now: Duration::ZERO,
            nodes: nodes.iter().map(|address| Node::new(address)).collect(),
            wanted,
            asked: None,
            assignment,
            assigned: None,
            request: Request::nothing(),
            request_epoch: None,
            requests_sent: 0,
            defaults,
            exclusions: Exclusions::default(),
            rolling: None,
            rolling_since: Duration::ZERO,
            goal: Goal::default(),
            assigns_best: false,
            operation: None,
            readonly: false,
            pinned: None,
            form: None,
            dialog: None,
            sync_metric: Metric::P95,
            sync: sync::History::default(),
            sync_scroll: 0,
            editor: Editor::new(prompt),
            spot: Spot::first_of(if prompt.is_empty() { Page::Cluster } else { Page::Generate }),
            help: None,
            selected: 0,
            planning: plan::Planning::Nothing,
            picture_scroll: 0,
            details_scroll: 0,
            layers_scroll: 0,
            text_scroll: TextScroll::Follow,
            events: events::Log::default(),
            severity_min: Severity::Note,
            watch: watch::Watch::default(),
            arrangements: Default::default(),
            clock_ms: 0,
            extent: Extent::default(),
            notice: None,
            log: log::Log::default(),
            is_ending: false,
            desk: desk::Desk::default(),
            frozen: None,
        }
    }

    /// What is on the screen: this, or a picture of before that stands still.
    pub fn shown(&self) -> &Self {
        self.frozen.as_ref().map_or(self, |frozen| &frozen.shown)
    }

    /// Looks at what is known here as somebody looked at another state: page, selection, scrolling, what was typed.
    pub fn look_as(&mut self, other: &Self) {
        let recording = self.desk.recording.take();
        self.sync_metric = other.sync_metric;
        self.form = other.form.clone();
        self.pinned = other.pinned.clone();
        self.sync_scroll = other.sync_scroll;
        self.editor = other.editor.clone();
        self.spot = other.spot;
        self.help = other.help;
        self.selected = other.selected.min(self.nodes.len().saturating_sub(1));
        self.details_scroll = other.details_scroll;
        self.layers_scroll = other.layers_scroll;
        self.severity_min = other.severity_min;
        self.arrangements = other.arrangements.clone();
        self.text_scroll = other.text_scroll;
        self.extent = other.extent;
        self.notice = other.notice.clone();
        self.desk = desk::Desk { recording, ..other.desk.clone() };
    }

    /// The topology that nodes report under the highest epoch, else what was assigned last; whether it runs or not.
    pub fn topology(&self) -> Option<(&Topology, Epoch)> {
        let reports = self.nodes.iter().filter_map(|node| node.report.as_ref());
        let reported = reports.filter_map(|report| report.topology.as_ref().map(|(known, _, _)| (known, report.epoch)));
        let assigned = match &self.assignment {
            Assignment::Running { epoch, .. } => self.assigned.as_ref().map(|topology| (topology, *epoch)),
            _ => None,
        };
        reported.chain(assigned).max_by_key(|(_, epoch)| *epoch)
    }

    /// A node's place among the members of the topology.
    pub fn member_of(&self, node: &Node) -> Option<usize> {
        let (topology, _) = self.topology()?;
        topology.members.iter().position(|member| member.name == node.name() || member.address == node.address)
    }

    /// The place of a member in the list of nodes.
    pub fn place_of(&self, member: usize) -> Option<usize> {
        self.nodes.iter().position(|node| self.member_of(node) == Some(member))
    }

    /// The node of a member.
    pub fn node_of(&self, member: usize) -> Option<&Node> {
        self.place_of(member).map(|place| &self.nodes[place])
    }

    /// Why a node is out; `None` if it is not.
    pub fn exclusion(&self, node: &Node) -> Option<&Exclusion> {
        let by_name = self.exclusions.of(node.name(), &node.address);
        by_name.or_else(|| if node.is_open() { None } else { self.exclusions.at(&node.address) })
    }

    /// Places of the nodes that are not out.
    pub fn usable(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|place| self.exclusion(&self.nodes[*place]).is_none()).collect()
    }

    /// Whether all nodes that are not out have an open session.
    pub fn all_open(&self) -> bool {
        self.usable().into_iter().all(|place| self.nodes[place].is_open())
    }

    /// Whether all nodes that are not out have an open session and have reported on it.
    pub fn all_report(&self) -> bool {
        self.usable().into_iter().all(|place| self.nodes[place].is_open() && self.nodes[place].report.is_some())
    }

    /// Whether a restart or an exclusion is under way.
    pub fn is_operating(&self) -> bool {
        self.operation.is_some() || self.rolling_runs()
    }

    /// Whether the nodes restart one another.
    pub fn rolling_runs(&self) -> bool {
        self.rolling.as_ref().is_some_and(Rolling::is_running)
    }

    /// The rolling restart, unless it is over.
    pub fn open_rolling(&self) -> Option<&Rolling> {
        let is_open = |rolling: &&Rolling| matches!(rolling.phase, rolling::Phase::Runs | rolling::Phase::Paused(_));
        self.rolling.as_ref().filter(is_open)
    }

    /// Whether it is a node's turn in a rolling restart.
    pub fn restarts(&self, node: &Node) -> bool {
        let target = self.rolling.as_ref().filter(|rolling| rolling.is_running()).and_then(Rolling::target);
        target.is_some_and(|(name, address)| name == node.name() || *address == node.address)
    }

    /// Whether the replica that a node is a member of works on requests: only its head counts them.
    pub fn is_busy(&self, node: &Node) -> bool {
        let Some(((topology, _), member)) = self.topology().zip(self.member_of(node)) else { return false };
        let replica = topology.place(MemberIndex(member as u16)).replica;
        let heads = topology.layout.heads().filter(|head| topology.place(*head).replica == replica);
        let mut nodes = heads.filter_map(|head| self.node_of(head.index()));
        nodes.any(|head| head.standing(self.now) == Standing::Reports(NodeState::Serving))
    }

    /// Whether a node is out but still a member of the topology that runs: it takes nothing new.
    pub fn is_cordoned(&self, node: &Node) -> bool {
        self.exclusion(node).is_some() && self.member_of(node).is_some()
    }

    /// Whether an assignment of this console is under way.
    pub fn is_assigning(&self) -> bool {
        matches!(self.assignment, Assignment::Loading | Assignment::Committing)
    }

    /// Whether a request can be sent: every member of some replica is there and serves it.
    pub fn is_ready(&self) -> bool {
        self.ready_head().is_some()
    }

    /// The head that a request goes to, by its place in the list of nodes: of the replicas whose members all serve the one with
    /// the fewest requests.
    pub fn ready_head(&self) -> Option<usize> {
        let (topology, epoch) = self.topology()?;
        let serves = |member: usize| {
            let Some(node) = self.node_of(member).filter(|node| node.is_open()) else { return false };
            match &node.report {
                Some(report) if report.epoch >= epoch => {
                    report.topology.is_some() && matches!(report.state, NodeState::Ready | NodeState::Serving)
                }
                // Committed a moment ago: what it said last is older than that.
                Some(_) => matches!(self.assignment, Assignment::Running { epoch: ours, .. } if ours == epoch),
                None => false,
            }
        };
        let load = |head: MemberIndex| {
            let mut members = topology.layout.members(topology.place(head).replica);
            // A head whose replica has a member that is out takes nothing new.
            let takes = |member: usize| {
                serves(member) && self.node_of(member).is_some_and(|node| self.exclusion(node).is_none())
            };
            let is_ready = !self.is_assigning() && members.all(takes);
            let report = self.node_of(head.index())?.report.as_ref();
            is_ready.then(|| report.map_or(0, |report| report.requests))
        };
        least_loaded(topology, load).and_then(|head| self.place_of(head.index()))
    }

    /// What to assign: what was wanted, else again what the nodes held. With nodes out, on the rest.
    pub fn assignable(&self) -> Option<Wanted> {
        let usable = self.usable().len();
        let again = || {
            let (topology, _) = self.topology()?;
            let count = topology.members.len();
            (count == usable || usable < self.nodes.len()).then(|| Wanted::again(topology, usable))
        };
        let wanted = self.wanted.clone().or_else(again)?;
        let wanted = if usable < self.nodes.len() { wanted.on(usable) } else { wanted };
        (usable > 0).then_some(wanted)
    }

    /// Whether all-reduces arrive.
    pub fn layers_move(&self) -> bool {
        self.nodes.iter().any(|node| node.layers_move(self.now))
    }

    /// Waiting and wire by all of the time: of the finished request, else of what nodes reported last.
    pub fn network_fraction(&self) -> Option<f64> {
        let live = || {
            let shares = self.nodes.iter().map(Node::network_share);
            let (network, all) = shares.fold((0.0, 0.0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
            (all > 0.0).then(|| ratio(network, all))
        };
        self.request.network_fraction().or_else(live)
    }

    /// Layers of the selected node.
    pub fn layer_count(&self) -> usize {
        self.nodes.get(self.selected).map_or(0, |node| node.layers.len())
    }
}
