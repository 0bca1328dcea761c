//! The Cluster page: the last minutes of the cluster, its nodes with bars and trends, its all-reduces or hand-overs, the
//! requests under way, the latest events, and the operator's next step. Parts that do not fit are left out from below.
mod activity;
mod machines;
mod map;
mod pulse;

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
        tables::{self, TableTexts},
        theme::Theme,
        topology,
        widgets::{panel::lines, paragraph::paragraph},
    },
};

/// From this width the topology is placed to the right of the nodes.
const WIDTH_WIDE: u16 = 170;
/// Width of the topology next to the nodes, in cells.
const TOPOLOGY_CELLS: u16 = 34;
/// From this width events stand next to the all-reduces and requests.
const WIDTH_TWO_COLUMNS: u16 = 100;
/// Smallest and greatest height of the graphs at the top, with their rule.
const PULSE_LINES: (u16, u16) = (4, 16);
/// Lines that requests and events have at least, and before trends take more than one line.
const ACTIVITY_LINES: (u16, u16) = (7, 12);
/// Most lines of a node's trends.
const TREND_LINES_MAX: u16 = 5;

/// Heights of the parts above requests and events, in lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heights {
    pulse: u16,
    nodes: u16,
    machines: u16,
}

impl Heights {
    /// Divides an area so high among so many nodes; `typed` is 1 while a filter is being typed.
    fn of(height: u16, nodes: u16, typed: u16) -> Self {
        if nodes == 0 {
            return Self { pulse: 0, nodes: height, machines: 0 };
        }
        let pulse = if height < 3 * PULSE_LINES.0 { 0 } else { (height / 5).clamp(PULSE_LINES.0, PULSE_LINES.1) };
        let left = height - pulse;
        let table = nodes.saturating_add(2 + typed).min((left * 2 / 3).max(4)).min(left);
        let left = left - table;
        let lines = (left.saturating_sub(ACTIVITY_LINES.1 + 1) / nodes).min(TREND_LINES_MAX);
        // One line of trends for every node is worth more than many events.
        let lines = lines.max((left.saturating_sub(ACTIVITY_LINES.0 + 1) / nodes).min(1));
        let machines = if lines > 0 { 1 + lines * nodes } else { 0 };
        Self { pulse, nodes: table, machines }
    }
}

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let next = next(state, theme, usize::from(area.width));
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(next.len() as u16)]).areas(area);
    lines(frame, below, next);
    let typed = u16::from(state.screen.focus.is_filter());
    let heights = Heights::of(above.height, state.cluster.nodes.len() as u16, typed);
    let parts = [heights.pulse, heights.nodes, heights.machines].map(Constraint::Length);
    let parts = parts.into_iter().chain([Constraint::Fill(1)]);
    let [graphs, table, trends, rest] = Layout::vertical(parts).areas(above);
    pulse::draw(state, theme, frame, graphs);
    draw_nodes(state, theme, frame, table, extent);
    machines::draw(state, theme, frame, trends);
    draw_rest(state, theme, frame, rest);
}

fn draw_nodes(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let usable = state.cluster.usable();
    let open = usable.iter().filter(|place| state.cluster.nodes[**place].is_open()).count();
    let out = match state.cluster.nodes.len() - usable.len() {
        0 => String::new(),
        out => format!(", {out} out"),
    };
    let remark = format!("{open} of {} connected{out}", usable.len());
    let remark = Span::styled(remark, if open == usable.len() { theme.dim } else { theme.warn });
    let words = TableTexts { title: "Nodes", remark, empty: "No nodes yet.", repeats: false };
    if area.width < WIDTH_WIDE {
        return tables::draw(state, theme, frame, area, words, extent);
    }
    let columns = [Constraint::Fill(1), Constraint::Length(TOPOLOGY_CELLS)];
    let [left, right] = Layout::horizontal(columns).spacing(1).areas(area);
    tables::draw(state, theme, frame, left, words, extent);
    topology::draw(state, theme, frame, right);
}

/// All-reduces, requests and events.
fn draw_rest(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let (left, right) = match area.width >= WIDTH_TWO_COLUMNS {
        true => {
            let columns = [Constraint::Percentage(60), Constraint::Fill(1)];
            let [left, right] = Layout::horizontal(columns).spacing(1).areas(area);
            (left, Some(right))
        }
        false => (area, None),
    };
    let (map, requests) = (map::height(state, left), activity::height(state));
    let requests = match right {
        Some(_) => left.height.saturating_sub(map),
        None => requests.min(left.height / 2),
    };
    // On a narrow screen requests and events come before the map.
    let map = if right.is_some() || left.height >= map + requests + ACTIVITY_LINES.0 / 2 { map } else { 0 };
    let parts = [map, requests].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let [above, middle, events] = Layout::vertical(parts).areas(left);
    map::draw(state, theme, frame, above);
    activity::draw_requests(state, theme, frame, middle);
    activity::draw_events(state, theme, frame, right.unwrap_or(events));
}

/// The next step; for an empty cluster the steps to a first answer.
fn next(state: &State, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let mut all = Vec::new();
    let mut say = |text: &str, style: Style| {
        all.extend(paragraph(&clean_line(text), " ", style, width.saturating_sub(1)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_first_and_trends_take_what_is_left() {
        let heights = |height, nodes| {
            let Heights { pulse, nodes, machines } = Heights::of(height, nodes, 0);
            [pulse, nodes, machines]
        };
        assert_eq!(heights(19, 4), [4, 6, 0]);
        assert_eq!(heights(35, 4), [7, 6, 9]);
        assert_eq!(heights(55, 4), [11, 6, 21]);
        assert_eq!(heights(55, 16), [11, 18, 17]);
        assert_eq!(heights(35, 16), [7, 18, 0]);
        assert_eq!(heights(11, 16), [0, 7, 0], "a small screen has nodes and events");
        assert_eq!(heights(40, 0), [0, 40, 0]);
    }
}
