//! The dashboard's pages, the panels that Tab visits on each page, and the focus. Independent of the content of the
//! pages.
use serde::{Deserialize, Serialize};

/// What the screen shows between header and footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Page {
    /// The table of nodes.
    Cluster,
    /// The running topology and the planner's candidates.
    Topology,
    /// All ranks side by side, with the straggler and its waiting peers.
    Sync,
    /// Prompt and generated text.
    Generate,
    /// Requests that run, wait or have finished.
    Requests,
    /// Events of the cluster.
    Events,
    /// One node.
    Node,
    /// Model files on the nodes, and the catalogue.
    Models,
    /// Conversations with the running model.
    Chat,
}

impl Page {
    /// In the order of the number keys.
    pub const ALL: [Self; 9] = [
        Self::Cluster,
        Self::Topology,
        Self::Sync,
        Self::Generate,
        Self::Requests,
        Self::Events,
        Self::Node,
        Self::Models,
        Self::Chat,
    ];

    /// The title in one word.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Topology => "Topology",
            Self::Sync => "Sync",
            Self::Generate => "Generate",
            Self::Requests => "Requests",
            Self::Events => "Events",
            Self::Node => "Node",
            Self::Models => "Models",
            Self::Chat => "Chat",
        }
    }

    /// Its index in [`Page::ALL`]; the number key is one more.
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|page| *page == self).expect("ALL has every page")
    }

    /// The page `distance` positions further, wrapping around.
    pub fn further(self, distance: usize) -> Self {
        Self::ALL[(self.index() + distance) % Self::ALL.len()]
    }

    /// Whether it has a sortable, filterable table.
    pub fn has_table(self) -> bool {
        matches!(self, Self::Cluster | Self::Topology | Self::Requests | Self::Events | Self::Models)
    }

    /// The panels that can have the focus, in the order of the Tab key; the first one has it when the page opens.
    pub fn panels(self) -> &'static [Panel] {
        match self {
            Self::Cluster => &[Panel::Nodes],
            Self::Topology => &[Panel::Candidates, Panel::Picture],
            Self::Sync => &[Panel::Nodes, Panel::Layers],
            Self::Generate => &[Panel::Prompt, Panel::Text],
            Self::Requests => &[Panel::Requests],
            Self::Events => &[Panel::Events],
            Self::Node => &[Panel::Details, Panel::Layers],
            Self::Models => &[Panel::Models],
            Self::Chat => &[Panel::Prompt, Panel::Text, Panel::Conversations],
        }
    }
}

/// The panel that has the focus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Panel {
    /// The prompt box.
    Prompt,
    /// The generated text.
    Text,
    /// The layers of the selected node.
    Layers,
    /// The table of nodes.
    Nodes,
    /// The planner's candidates.
    Candidates,
    /// The topology diagram.
    Picture,
    /// The table of requests.
    Requests,
    /// The table of events.
    Events,
    /// The details of one node.
    Details,
    /// The table of models.
    Models,
    /// The list of conversations.
    Conversations,
    /// The filter of the page's table.
    Filter,
}

/// Where keys are sent: their meaning depends on page and focus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Focus {
    /// The page.
    pub page: Page,
    /// The panel on it.
    pub panel: Panel,
}

impl Focus {
    /// The page with the focus on its first panel.
    pub fn first_of(page: Page) -> Self {
        Self { page, panel: page.panels()[0] }
    }

    /// The panel `distance` positions further on the same page, wrapping around.
    pub fn further(self, distance: usize) -> Self {
        let panels = self.page.panels();
        let at = panels.iter().position(|panel| *panel == self.panel).unwrap_or(0);
        Self { panel: panels[(at + distance) % panels.len()], ..self }
    }

    /// Whether a filter is being typed.
    pub fn is_filter(self) -> bool {
        self.panel == Panel::Filter
    }

    /// Whether letters are text here and have no other meaning.
    pub fn is_typing(self) -> bool {
        matches!(self.panel, Panel::Prompt | Panel::Filter)
    }
}

/// A rectangle on the screen, in cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// Cells from the left.
    pub x: u16,
    /// Lines from the top.
    pub y: u16,
    /// Width in cells.
    pub width: u16,
    /// Height in lines.
    pub height: u16,
}

impl Area {
    /// Whether a cell lies in the rectangle.
    pub fn contains(self, x: u16, y: u16) -> bool {
        x >= self.x && x - self.x < self.width && y >= self.y && y - self.y < self.height
    }
}
