//! The pages of the dashboard, the panels that the Tab key visits on each, and where keys go. Knows nothing of their content.
use serde::{Deserialize, Serialize};

/// What the screen shows between header and footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Page {
    /// The table of nodes.
    Cluster,
    /// What runs where, and what could.
    Topology,
    /// All ranks side by side: who waits for whom.
    Sync,
    /// Prompt and text.
    Generate,
    /// Requests that run, wait and are over.
    Requests,
    /// What happened.
    Events,
    /// One node.
    Node,
}

impl Page {
    /// In the order of the number keys.
    pub const ALL: [Self; 7] =
        [Self::Cluster, Self::Topology, Self::Sync, Self::Generate, Self::Requests, Self::Events, Self::Node];

    /// In one word.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Topology => "Topology",
            Self::Sync => "Sync",
            Self::Generate => "Generate",
            Self::Requests => "Requests",
            Self::Events => "Events",
            Self::Node => "Node",
        }
    }

    /// Its place in [`Page::ALL`]; the number key is one more.
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|page| *page == self).expect("ALL has every page")
    }

    /// The page so many further on, round and round.
    pub fn further(self, distance: usize) -> Self {
        Self::ALL[(self.index() + distance) % Self::ALL.len()]
    }

    /// Whether it has a table that is sorted and filtered.
    pub fn has_table(self) -> bool {
        matches!(self, Self::Cluster | Self::Topology | Self::Requests | Self::Events)
    }

    /// The panels that keys can go to, in the order of the Tab key; the first one has them when the page opens.
    pub fn panels(self) -> &'static [Focus] {
        match self {
            Self::Cluster => &[Focus::Nodes],
            Self::Topology => &[Focus::Candidates, Focus::Picture],
            Self::Sync => &[Focus::Nodes, Focus::Layers],
            Self::Generate => &[Focus::Prompt, Focus::Text],
            Self::Requests => &[Focus::Requests],
            Self::Events => &[Focus::Events],
            Self::Node => &[Focus::Details, Focus::Layers],
        }
    }
}

/// Which panel keys go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Focus {
    /// The prompt box.
    Prompt,
    /// The text.
    Text,
    /// The layers.
    Layers,
    /// The nodes.
    Nodes,
    /// What the planner proposes.
    Candidates,
    /// The picture of the topology.
    Picture,
    /// The requests.
    Requests,
    /// The events.
    Events,
    /// What is known of one node.
    Details,
    /// The filter of the page's table.
    Filter,
}

/// Where keys go: what they mean depends on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// The page.
    pub page: Page,
    /// The panel on it.
    pub focus: Focus,
}

impl Spot {
    /// Where a page begins.
    pub fn first_of(page: Page) -> Self {
        Self { page, focus: page.panels()[0] }
    }

    /// The panel so many further on, on the same page.
    pub fn further(self, distance: usize) -> Self {
        let panels = self.page.panels();
        let at = panels.iter().position(|panel| *panel == self.focus).unwrap_or(0);
        Self { focus: panels[(at + distance) % panels.len()], ..self }
    }

    /// Whether letters are typed here and mean nothing else.
    pub fn is_typing(self) -> bool {
        matches!(self.focus, Focus::Prompt | Focus::Filter)
    }
}

/// A place on the screen, in cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// Cells from the left.
    pub x: u16,
    /// Lines from the top.
    pub y: u16,
    /// Cells.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

impl Area {
    /// Whether a cell belongs to it.
    pub fn contains(self, x: u16, y: u16) -> bool {
        x >= self.x && x - self.x < self.width && y >= self.y && y - self.y < self.height
    }
}
