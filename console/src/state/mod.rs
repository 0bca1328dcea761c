//! The complete state of the dashboard, in rooms that each own one idea. Independent of terminal, sockets and clock;
//! changed only by `update`.
pub mod alerts;
pub mod chat;
pub mod clean;
pub mod cluster;
pub mod command;
pub mod completion;
pub mod editor;
pub mod events;
pub mod filter;
pub mod generation;
pub mod hints;
pub mod history;
pub mod lateness;
pub mod log;
pub mod models;
pub mod node;
pub mod nodes;
pub mod operation;
pub mod plan;
pub mod preferences;
pub mod pulse;
pub mod request;
pub mod requests;
pub mod result;
pub mod row;
pub mod sampling_form;
pub mod screen;
pub mod status;
pub mod sync;
pub mod table;
pub mod tables;
pub mod tour;
pub mod watch;
pub mod what_if;

use std::time::Duration;

use common::{ids::MemberIndex, latency::ratio};
use telemetry::NodeState;

use self::{
    chat::ChatState,
    models::ModelsState,
    node::{Node, NodeStatus},
    operation::Operations,
    plan::PlanState,
    preferences::Preferences,
    tables::TableState,
};
pub use self::{
    cluster::{AssignmentStatus, ClusterState},
    generation::{GenerateDefaults, GenerationState},
    screen::{COLUMNS_MAX, Extent, ScreenState, TextScroll},
};
pub use crate::keymap::page::{Area, Focus, Page, Panel};
use assignment::desired::DesiredTopology;

/// Past events, for reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// The events of the cluster.
    pub events: events::EventLog,
    /// The log of the node whose page was open last.
    pub log: log::NodeLog,
    /// Alerts that wait for their delivery.
    pub alerts: alerts::Alerts,
    /// The last observed state; differences become events.
    pub watch: watch::Watch,
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
    /// Wall clock at the start, in milliseconds since 1970.
    pub clock_ms: u64,
    /// The nodes and the topology on them.
    pub cluster: ClusterState,
    /// The topology to assign, and the planner.
    pub plan: PlanState,
    /// The models of the nodes and of the catalogue.
    pub models: ModelsState,
    /// Generations from the prompt box.
    pub generation: GenerationState,
    /// The conversations.
    pub chat: ChatState,
    /// The open dialog and the running operator command.
    pub operations: Operations,
    /// What the screen shows.
    pub screen: ScreenState,
    /// How the tables are arranged.
    pub tables: TableState,
    /// Past events.
    pub journal: Journal,
    /// Screen preferences.
    pub preferences: Preferences,
    /// Read-only: no command is issued, no topology assigned and no text generated.
    pub readonly: bool,
    /// Whether quitting was requested.
    pub is_ending: bool,
    /// The frozen screen, shown instead of the live state.
    pub frozen: Option<Frozen>,
}

impl State {
    /// The initial state.
    pub fn new(nodes: &[String], desired: Option<DesiredTopology>, prompt: &str, defaults: GenerateDefaults) -> Self {
        let assignment = if desired.is_some() { AssignmentStatus::WaitsForNodes } else { AssignmentStatus::Nothing };
        Self {
            now: Duration::ZERO,
            clock_ms: 0,
            cluster: ClusterState::new(nodes, assignment),
            plan: PlanState { desired, ..PlanState::default() },
            models: ModelsState::default(),
            chat: ChatState::new(&defaults),
            generation: GenerationState::new(defaults),
            operations: Operations::default(),
            screen: ScreenState::new(prompt),
            tables: TableState::default(),
            journal: Journal::default(),
            preferences: Preferences::default(),
            readonly: false,
            is_ending: false,
            frozen: None,
        }
    }

    /// Parameters of the next answer on the current page: conversations have their own.
    pub fn defaults(&self) -> &GenerateDefaults {
        if self.screen.focus.page == Page::Chat { &self.chat.defaults } else { &self.generation.defaults }
    }

    /// As [`Self::defaults`], to change them.
    pub fn defaults_mut(&mut self) -> &mut GenerateDefaults {
        if self.screen.focus.page == Page::Chat { &mut self.chat.defaults } else { &mut self.generation.defaults }
    }

    /// The state to render: this one, or the frozen one.
    pub fn shown(&self) -> &Self {
        self.frozen.as_ref().map_or(self, |frozen| &frozen.shown)
    }

    /// Copies the view of another state: page, selection, scrolling, typed text.
    pub fn look_as(&mut self, other: &Self) {
        let recording = self.preferences.recording.take();
        let selected = other.screen.selected.min(self.cluster.nodes.len().saturating_sub(1));
        self.screen = ScreenState { selected, ..other.screen.clone() };
        self.tables = other.tables.clone();
        self.generation.pinned = other.generation.pinned.clone();
        self.preferences = Preferences { recording, ..other.preferences.clone() };
    }

    /// Whether a restart or an exclusion is in progress.
    pub fn is_operating(&self) -> bool {
        self.operations.running.is_some() || self.cluster.rolling_runs()
    }

    /// Whether the replica that a node belongs to is serving requests; only its head counts them.
    pub fn is_busy(&self, node: &Node) -> bool {
        let cluster = &self.cluster;
        let Some(((topology, _), member)) = cluster.topology().zip(cluster.member_of(node)) else { return false };
        let replica = topology.place(MemberIndex(member as u16)).replica;
        let heads = topology.layout.heads().filter(|head| topology.place(*head).replica == replica);
        let mut nodes = heads.filter_map(|head| cluster.node_of(head.index()));
        nodes.any(|head| head.status(self.now) == NodeStatus::Reports(NodeState::Serving))
    }

    /// The topology to assign: the requested one, otherwise the one that the nodes held, adapted to the included nodes.
    pub fn assignable(&self) -> Option<DesiredTopology> {
        let (usable, all) = (self.cluster.usable().len(), self.cluster.nodes.len());
        let desired = match (&self.plan.desired, self.cluster.topology()) {
            (Some(desired), _) => desired.clone(),
            (None, Some((topology, _))) if topology.members.len() == usable || usable < all => {
                DesiredTopology::again(topology, usable)
            }
            (None, _) => return None,
        };
        let desired = if usable < all { desired.on(usable) } else { desired };
        (usable > 0).then_some(desired)
    }

    /// Whether all-reduces are arriving.
    pub fn layers_move(&self) -> bool {
        self.cluster.nodes.iter().any(|node| node.layers_move(self.now))
    }

    /// (peer wait + transfer) / total time of the nodes that compute now, by their latest reports with such times.
    pub fn network_fraction(&self) -> Option<f64> {
        let shares = self.cluster.nodes.iter().filter(|node| node.layers_move(self.now)).map(|node| node.latest_share);
        let (network, all) = shares.fold((0.0, 0.0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
        (all > 0.0).then(|| ratio(network, all))
    }

    /// Number of layers of the selected node.
    pub fn layer_count(&self) -> usize {
        self.cluster.nodes.get(self.screen.selected).map_or(0, |node| node.layers.len())
    }
}
