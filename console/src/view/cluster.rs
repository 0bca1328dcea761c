//! The Cluster page: all nodes, and below them the topology diagram and the operator's next step.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};

use crate::{
    state::{
        Extent, State,
        clean::clean_line,
        status::{ClusterStatus, hint, status},
    },
    view::{
        format::wrap_words,
        tables::{self, TableTexts},
        theme::Theme,
        topology,
        widgets::panel::lines,
    },
};

/// From this width the topology is placed to the right of the nodes.
const WIDTH_WIDE: u16 = 170;
/// Width of the topology next to the nodes, in cells.
const TOPOLOGY_CELLS: u16 = 34;
/// Minimum height of the topology diagram below the nodes, in lines.
const TOPOLOGY_LINES: u16 = 6;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let usable = state.cluster.usable();
    let open = usable.iter().filter(|place| state.cluster.nodes[**place].is_open()).count();
    let out = match state.cluster.nodes.len() - usable.len() {
        0 => String::new(),
        out => format!(", {out} out"),
    };
    let remark = format!("{open} of {} connected{out}", usable.len());
    let remark = Span::styled(remark, if open == usable.len() { theme.dim } else { theme.warn });
    let next = next(state, theme, usize::from(area.width));
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(next.len() as u16)]).areas(area);
    lines(frame, below, next);
    let words = TableTexts { title: "Nodes", remark, empty: "No node was named." };
    if area.width >= WIDTH_WIDE {
        let columns = [Constraint::Fill(1), Constraint::Length(TOPOLOGY_CELLS)];
        let [left, right] = Layout::horizontal(columns).spacing(1).areas(above);
        tables::draw(state, theme, frame, left, words, extent);
        return topology::draw(state, theme, frame, right);
    }
    let most = above.height.saturating_sub(TOPOLOGY_LINES).max(3);
    // A filter that is being typed takes a line.
    let rows = (state.cluster.nodes.len() as u16).saturating_add(3).clamp(4, most);
    let [upper, lower] = Layout::vertical([Constraint::Length(rows), Constraint::Fill(1)]).areas(above);
    tables::draw(state, theme, frame, upper, words, extent);
    topology::draw(state, theme, frame, lower);
}

/// The next step; for an empty cluster the steps to a first answer.
fn next(state: &State, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let mut all = Vec::new();
    let mut say = |text: &str, style: Style| {
        let text = clean_line(text);
        let rows = wrap_words(&text, width.saturating_sub(2));
        all.extend(rows.into_iter().map(|range| Line::styled(format!(" {}", &text[range]), style)));
    };
    match status(state) {
        ClusterStatus::Empty => {
            say("No nodes yet. To begin:", theme.plain);
            say("console node discover     lists the nodes of this network", theme.plain);
            say("console key adopt ADDRESS gives a new node the cluster's key", theme.plain);
            say(
                "console --nodes A,B,..    opens this screen on them; console demo tries it on this machine",
                theme.plain,
            );
        }
        ClusterStatus::Refused(fault) => {
            say(&format!("Not assigned: {fault}"), theme.bad);
            say(&hint(state), theme.dim);
        }
        _ => say(&hint(state), theme.dim),
    }
    all
}
