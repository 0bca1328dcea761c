//! The complete state of the dashboard. Independent of terminal, sockets and clock; changed only by `update`.
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
pub mod plan;
pub mod request;
pub mod requests;
pub mod row;
pub mod run;
pub mod standing;
pub mod sync;
pub mod table;
pub mod tables;
pub mod terms;
pub mod watch;

pub use crate::keymap::page::{Area, Focus, Page, Spot};

use std::time::Duration;

use common::{
    fault::Fault,
    ids::{Epoch, MemberIndex},
    latency::ratio,
    sampling::SamplingParameters,
};
use planner::search::Goal;
use protocol::message::Generate;
use serde::{Deserialize, Serialize};
use telemetry::{NodeState, Severity};
use topology::{Exclusion, Exclusions, Rolling, Topology, rolling};

use crate::{
    operator::desired::{TopologyRequest, least_loaded},
    state::{
        editor::Editor,
        node::{Node, Standing},
        operation::{Dialog, Operation},
        request::Request,
        sync::Metric,
    },
    update::effect::DesiredTopology,
};

/// Sizes of the scrollable parts of a frame and their visible parts: the view reports them after rendering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The tabs of the pages in order; empty if a tab is not on the screen.
    pub tabs: [Area; Page::ALL.len()],
    /// The rows of the page's table, without its heading.
    pub table: Area,
    /// Index of its first visible row.
    pub table_first: usize,
    /// Number of its visible rows.
    pub table_height: usize,
    /// Number of wrapped lines of text.
    pub text_lines: usize,
    /// Number of visible lines of text.
    pub text_height: usize,
    /// Number of visible layers.
    pub layers_height: usize,
    /// Number of rows in the table of layers by ranks.
    pub sync_rows: usize,
    /// Number of its visible rows.
    pub sync_height: usize,
    /// Number of lines in the topology diagram.
    pub picture_lines: usize,
    /// Number of its visible lines.
    pub picture_height: usize,
    /// Number of lines in the details of a node.
    pub details_lines: usize,
    /// Number of visible lines of details.
    pub details_height: usize,
    /// Number of lines of the help page.
    pub help_lines: usize,
    /// Number of visible lines of the help page.
    pub help_height: usize,
}

/// Progress of an assignment by this console.
#[derive(Clone, Debug, PartialEq)]
pub enum Assignment {
    /// None was requested.
    Nothing,
    /// It starts once all included nodes have reported.
    WaitsForNodes,
    /// Nodes load.
    Loading,
    /// Nodes switch to the new topology.
    Committing,
    /// Assigned.
    Running {
        /// Its epoch.
        epoch: Epoch,
        /// Whether it was already running and was reused.
        reused: bool,
    },
    /// It failed.
    Failed(Fault),
}

/// Which part of the text is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextScroll {
    /// The end of the text.
    Follow,
    /// The text from this line.
    At(usize),
}

/// Default parameters of generations from the prompt box.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateDefaults {
    /// Maximum number of tokens.
    pub max_tokens: u32,
    /// Sampling parameters. The seed is that of the first generation; later ones count up from it.
    pub sampling: SamplingParameters,
    /// Stop strings.
    pub stop: Vec<String>,
}

impl GenerateDefaults {
    /// The request for a prompt; `count` is the number of earlier generations of this session.
    pub fn request(&self, prompt: &str, count: u64) -> Generate {
        let mut sampling = self.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(count);
        Generate::new(prompt, self.max_tokens, sampling, self.stop.clone())
    }
}

/// A screen that is frozen while the cluster continues.
#[derive(Clone, Debug, PartialEq)]
pub struct Frozen {
    /// When it was frozen.
    pub since: Duration,
    /// Events of the cluster since then.
    pub events: u64,
    /// The frozen state.
    pub shown: Box<State>,
}

/// The state of the dashboard.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Time since the start, as of the last tick.
    pub now: Duration,
    /// The nodes in the order in which they were named.
    pub nodes: Vec<Node>,
    /// The topology that the operator requests.
    pub wanted: Option<DesiredTopology>,
    /// The request that this console was started with, until it is processed.
    pub asked: Option<TopologyRequest>,
    /// Progress of the assignment.
    pub assignment: Assignment,
    /// The topology of this console's last successful assignment.
    pub assigned: Option<Topology>,
    /// The current or last generation.
    pub request: Request,
    /// The epoch when the generation was sent; its times do not apply to other topologies.
    pub request_epoch: Option<Epoch>,
    /// Number of generations sent.
    pub requests_sent: u64,
    /// Default parameters of generations.
    pub defaults: GenerateDefaults,
    /// Exclusions, merged from all reports.
    pub exclusions: Exclusions,
    /// The latest known state of the rolling restart, which the nodes keep; also one that is over.
    pub rolling: Option<Rolling>,
    /// When its current step was first reported.
    pub rolling_since: Duration,
    /// The goal that layouts are ranked by.
    pub goal: Goal,
    /// Whether to assign the planner's best layout once it answers.
    pub assigns_best: bool,
    /// The operation in progress.
    pub operation: Option<Operation>,
    /// Read-only: no command is issued, no topology assigned and no text generated.
    pub readonly: bool,
    /// The pinned result, compared with later ones.
    pub pinned: Option<run::Run>,
    /// The sampling form, while it is open.
    pub form: Option<terms::Form>,
    /// The open dialog.
    pub dialog: Option<Dialog>,
    /// The figure shown in the heat map of the Sync page.
    pub sync_metric: Metric,
    /// All-reduces of the last minutes.
    pub sync: sync::History,
    /// The first visible row of the Sync page.
    pub sync_scroll: usize,
    /// The prompt box.
    pub editor: Editor,
    /// The current page and focus.
    pub spot: Spot,
    /// The first line of the help page, if it is open.
    pub help: Option<usize>,
    /// List index of the node whose layers are shown.
    pub selected: usize,
    /// State of the planner query.
    pub planning: plan::Planning,
    /// The first visible line of the topology diagram.
    pub picture_scroll: usize,
    /// The first visible line of a node's details.
    pub details_scroll: usize,
    /// The first visible layer.
    pub layers_scroll: usize,
    /// The visible part of the text.
    pub text_scroll: TextScroll,
    /// The events so far.
    pub events: events::Log,
    /// Less severe events are hidden.
    pub severity_min: Severity,
    /// The last observed state; differences become events.
    pub watch: watch::Watch,
    /// Sorting, filter and selection of each page's table.
    pub arrangements: [table::Arrangement; Page::ALL.len()],
    /// Wall clock at the start, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Extent of the last frame.
    pub extent: Extent,
    /// A message about the last key, shown until the next key.
    pub notice: Option<String>,
    /// Whether quitting was requested.
    pub is_ending: bool,
    /// The log of the node whose page was open last.
    pub log: log::Log,
    /// Screen preferences.
    pub desk: desk::Desk,
    /// The frozen screen, shown instead of the live state.
    pub frozen: Option<Frozen>,
}

impl State {
    /// The initial state.
    pub fn new(nodes: &[String], wanted: Option<DesiredTopology>, prompt: &str, defaults: GenerateDefaults) -> Self {
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

    /// The state to render: this one, or the frozen one.
    pub fn shown(&self) -> &Self {
        self.frozen.as_ref().map_or(self, |frozen| &frozen.shown)
    }

    /// Copies the view of another state: page, selection, scrolling, typed text.
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

    /// The topology with the highest reported epoch, otherwise the last assigned one; it may not be running.
    pub fn topology(&self) -> Option<(&Topology, Epoch)> {
        let reports = self.nodes.iter().filter_map(|node| node.report.as_ref());
        let reported = reports.filter_map(|report| report.topology.as_ref().map(|(known, _, _)| (known, report.epoch)));
        let assigned = match &self.assignment {
            Assignment::Running { epoch, .. } => self.assigned.as_ref().map(|topology| (topology, *epoch)),
            _ => None,
        };
        reported.chain(assigned).max_by_key(|(_, epoch)| *epoch)
    }

    /// A node's index among the members of the topology.
    pub fn member_of(&self, node: &Node) -> Option<usize> {
        let (topology, _) = self.topology()?;
        topology.members.iter().position(|member| member.name == node.name() || member.address == node.address)
    }

    /// A member's index in the list of nodes.
    pub fn place_of(&self, member: usize) -> Option<usize> {
        self.nodes.iter().position(|node| self.member_of(node) == Some(member))
    }

    /// The node of a member.
    pub fn node_of(&self, member: usize) -> Option<&Node> {
        self.place_of(member).map(|place| &self.nodes[place])
    }

    /// A node's exclusion; `None` if it is included.
    pub fn exclusion(&self, node: &Node) -> Option<&Exclusion> {
        let by_name = self.exclusions.of(node.name(), &node.address);
        by_name.or_else(|| if node.is_open() { None } else { self.exclusions.at(&node.address) })
    }

    /// List indices of the nodes that are not excluded.
    pub fn usable(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|place| self.exclusion(&self.nodes[*place]).is_none()).collect()
    }

    /// Whether every included node has an open session.
    pub fn all_open(&self) -> bool {
        self.usable().into_iter().all(|place| self.nodes[place].is_open())
    }

    /// Whether every included node has an open session and has reported on it.
    pub fn all_report(&self) -> bool {
        self.usable().into_iter().all(|place| self.nodes[place].is_open() && self.nodes[place].report.is_some())
    }

    /// Whether a restart or an exclusion is in progress.
    pub fn is_operating(&self) -> bool {
        self.operation.is_some() || self.rolling_runs()
    }

    /// Whether a rolling restart is in progress.
    pub fn rolling_runs(&self) -> bool {
        self.rolling.as_ref().is_some_and(Rolling::is_running)
    }

    /// The rolling restart, unless it is over.
    pub fn open_rolling(&self) -> Option<&Rolling> {
        let is_open = |rolling: &&Rolling| matches!(rolling.phase, rolling::Phase::Runs | rolling::Phase::Paused(_));
        self.rolling.as_ref().filter(is_open)
    }

    /// Whether the rolling restart is currently at this node.
    pub fn restarts(&self, node: &Node) -> bool {
        let target = self.rolling.as_ref().filter(|rolling| rolling.is_running()).and_then(Rolling::target);
        target.is_some_and(|(name, address)| name == node.name() || *address == node.address)
    }

    /// Whether the replica that a node belongs to is serving requests; only its head counts them.
    pub fn is_busy(&self, node: &Node) -> bool {
        let Some(((topology, _), member)) = self.topology().zip(self.member_of(node)) else { return false };
        let replica = topology.place(MemberIndex(member as u16)).replica;
        let heads = topology.layout.heads().filter(|head| topology.place(*head).replica == replica);
        let mut nodes = heads.filter_map(|head| self.node_of(head.index()));
        nodes.any(|head| head.standing(self.now) == Standing::Reports(NodeState::Serving))
    }

    /// Whether a node is excluded but still a member of the running topology, so that it accepts no new requests.
    pub fn is_cordoned(&self, node: &Node) -> bool {
        self.exclusion(node).is_some() && self.member_of(node).is_some()
    }

    /// Whether an assignment of this console is in progress.
    pub fn is_assigning(&self) -> bool {
        matches!(self.assignment, Assignment::Loading | Assignment::Committing)
    }

    /// Whether a request can be sent: every member of some replica is connected and serves it.
    pub fn is_ready(&self) -> bool {
        self.ready_head().is_some()
    }

    /// The list index of the head for the next request: among the replicas whose members all serve, the one with the
    /// fewest requests.
    pub fn ready_head(&self) -> Option<usize> {
        let (topology, epoch) = self.topology()?;
        let serves = |member: usize| {
            let Some(node) = self.node_of(member).filter(|node| node.is_open()) else { return false };
            match &node.report {
                Some(report) if report.epoch >= epoch => {
                    report.topology.is_some() && matches!(report.state, NodeState::Ready | NodeState::Serving)
                }
                // Committed a moment ago: the last report is older than that.
                Some(_) => matches!(self.assignment, Assignment::Running { epoch: ours, .. } if ours == epoch),
                None => false,
            }
        };
        let load = |head: MemberIndex| {
            let mut members = topology.layout.members(topology.place(head).replica);
            // A head whose replica has an excluded member accepts no new requests.
            let takes = |member: usize| {
                serves(member) && self.node_of(member).is_some_and(|node| self.exclusion(node).is_none())
            };
            let is_ready = !self.is_assigning() && members.all(takes);
            let report = self.node_of(head.index())?.report.as_ref();
            is_ready.then(|| report.map_or(0, |report| report.requests))
        };
        least_loaded(topology, load).and_then(|head| self.place_of(head.index()))
    }

    /// The topology to assign: the requested one, otherwise the one that the nodes held, adapted to the included nodes.
    pub fn assignable(&self) -> Option<DesiredTopology> {
        let usable = self.usable().len();
        let again = || {
            let (topology, _) = self.topology()?;
            let count = topology.members.len();
            (count == usable || usable < self.nodes.len()).then(|| DesiredTopology::again(topology, usable))
        };
        let wanted = self.wanted.clone().or_else(again)?;
        let wanted = if usable < self.nodes.len() { wanted.on(usable) } else { wanted };
        (usable > 0).then_some(wanted)
    }

    /// Whether all-reduces are arriving.
    pub fn layers_move(&self) -> bool {
        self.nodes.iter().any(|node| node.layers_move(self.now))
    }

    /// (peer wait + transfer) / total time: of the finished request, otherwise of the nodes' last reports.
    pub fn network_fraction(&self) -> Option<f64> {
        let live = || {
            let shares = self.nodes.iter().map(Node::network_share);
            let (network, all) = shares.fold((0.0, 0.0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
            (all > 0.0).then(|| ratio(network, all))
        };
        self.request.network_fraction().or_else(live)
    }

    /// Number of layers of the selected node.
    pub fn layer_count(&self) -> usize {
        self.nodes.get(self.selected).map_or(0, |node| node.layers.len())
    }
}
