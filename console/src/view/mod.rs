//! The state as a picture: what is where at which size. Reads the state, changes nothing.
mod dialog;
mod footer;
pub mod format;
mod header;
mod health;
mod help;
mod layers;
mod nodes;
mod prompt;
mod sync;
mod text;
pub mod theme;
mod topology;
mod widgets;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
};

use crate::{
    state::{Extent, Page, State},
    view::theme::Theme,
};

/// Smallest terminal that is drawn on.
const WIDTH_MIN: u16 = 60;
/// Smallest terminal that is drawn on.
const HEIGHT_MIN: u16 = 16;
/// From this width on the topology stands beside the nodes, and layers show all ranks.
const WIDTH_WIDE: u16 = 110;
/// Cells of the topology beside the layers, and beside the nodes.
const TOPOLOGY_CELLS: u16 = 24;
/// Cells of the table of nodes.
const NODES_CELLS: u16 = 80;

/// Where the panels are.
struct Places {
    header: Rect,
    nodes: Rect,
    topology: Rect,
    layers: Rect,
    text: Rect,
    prompt: Rect,
    footer: Rect,
}

/// Draws a frame and says how much of what scrolls was on it.
pub fn draw(state: &State, theme: &Theme, frame: &mut Frame) -> Extent {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let small = format!("{}x{} is too small: {WIDTH_MIN}x{HEIGHT_MIN} are needed", area.width, area.height);
        frame.render_widget(ratatui::text::Span::styled(small, theme.warn), area);
        return Extent::default();
    }
    let prompt_lines = prompt::height(state, area);
    let places = places(state, area, prompt_lines);
    header::draw(state, theme, frame, places.header);
    let mut extent = Extent::default();
    match state.page {
        Page::Cluster => {
            nodes::draw(state, theme, frame, places.nodes);
            topology::draw(state, theme, frame, places.topology);
            extent.layers_height = layers::draw(state, theme, frame, places.layers);
            (extent.text_lines, extent.text_height) = text::draw(state, theme, frame, places.text);
        }
        Page::Sync => {
            let (top, bottom) = (places.header.bottom(), places.prompt.y);
            let area = Rect { y: top, height: bottom.saturating_sub(top), ..area };
            let shown = sync::draw(state, theme, frame, area);
            (extent.sync_rows, extent.sync_height) = (shown.rows, shown.height);
        }
    }
    prompt::draw(state, theme, frame, places.prompt);
    footer::draw(state, theme, frame, places.footer);
    if let Some(first) = state.help {
        (extent.help_lines, extent.help_height) = help::draw(first, theme, frame, area);
    }
    dialog::draw(state, theme, frame, area);
    extent
}

fn places(state: &State, area: Rect, prompt_lines: u16) -> Places {
    let is_wide = area.width >= WIDTH_WIDE;
    let node_rows = (state.nodes.len() as u16).clamp(1, (area.height / 5).max(2));
    let fixed = 2 + (2 + node_rows) + (1 + prompt_lines) + 1;
    let rest = area.height.saturating_sub(fixed);
    let layer_rows = (state.layer_count() as u16).max(4) + 2;
    let heights = [2, 2 + node_rows, layer_rows.min(rest / 2), 0, 1 + prompt_lines, 1];
    let rows = heights.map(|height| if height == 0 { Constraint::Fill(1) } else { Constraint::Length(height) });
    let [header, nodes, layers, text, prompt, footer] = Layout::vertical(rows).areas(area);
    let beside = |area: Rect, cells: u16| -> [Rect; 2] {
        Layout::horizontal([Constraint::Length(cells), Constraint::Fill(1)]).spacing(1).areas(area)
    };
    if is_wide {
        let [nodes, topology] = beside(nodes, NODES_CELLS);
        Places { header, nodes, topology, layers, text, prompt, footer }
    } else {
        let [layers, topology] = beside(layers, area.width - TOPOLOGY_CELLS - 1);
        Places { header, nodes, topology, layers, text, prompt, footer }
    }
}

#[cfg(test)]
mod snapshot_tests;
