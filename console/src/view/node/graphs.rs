//! Graphs of a node's last minutes: as charts with a scale and a time axis, or one line each on small screens.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};

use crate::{
    state::{State, history::Sample, node::Node, nodes},
    view::{
        chart,
        format::{fit, fit_right, percent, width},
        theme::Theme,
        trend::{CELSIUS, Trends},
        widgets::{graph::scale_end, panel::panel},
    },
};

/// Width of a graph's title and of its last value, in cells.
const TITLE: usize = 12;
const VALUE: usize = 11;
/// From this width three charts stand side by side.
const WIDTH_THREE: u16 = 110;

/// A graph: its title, its figure, the scale if it is fixed, how figures and the scale's end are written, and whether only
/// heads have it.
struct NodeGraph {
    title: &'static str,
    of: fn(&Sample) -> Option<f64>,
    scale: Option<(f64, f64)>,
    write: fn(f64) -> String,
    mark: fn(f64) -> String,
    is_of_heads: bool,
}

/// The graphs with one figure each.
const GRAPHS: [NodeGraph; 6] = [
    NodeGraph {
        title: "temperature",
        of: |one| one.celsius.map(f64::from),
        scale: Some(CELSIUS),
        write: |celsius| format!("{celsius:.1} °C"),
        mark: |celsius| format!("{celsius} °"),
        is_of_heads: false,
    },
    NodeGraph {
        title: "clock",
        of: |one| one.megahertz.map(|clock| f64::from(clock) / 1e3),
        scale: None,
        write: |gigahertz| format!("{gigahertz:.2} GHz"),
        mark: |gigahertz| chart::short(gigahertz) + " G",
        is_of_heads: false,
    },
    NodeGraph {
        title: "memory",
        of: |one| one.memory,
        scale: Some((0.0, 1.0)),
        write: percent,
        mark: percent,
        is_of_heads: false,
    },
    NodeGraph {
        title: "others' CPU",
        of: |one| one.others,
        scale: None,
        write: |cores| format!("{cores:.1} cores"),
        mark: chart::short,
        is_of_heads: false,
    },
    NodeGraph {
        title: "traffic",
        of: |one| one.bytes_per_second,
        scale: None,
        write: nodes::traffic,
        mark: |rate| chart::short(rate / 1e6) + "M",
        is_of_heads: false,
    },
    NodeGraph {
        title: "tokens/s",
        of: |one| Some(one.tokens_per_second),
        scale: None,
        write: |rate| format!("{rate:.1}"),
        mark: chart::short,
        is_of_heads: true,
    },
];

/// The graphs of a node. A figure that the machine does not report takes no room, and tokens are counted on heads only.
fn known(node: &Node) -> Vec<&'static NodeGraph> {
    let samples = node.history.samples();
    let shown = GRAPHS.iter().filter(|graph| {
        let mut values = samples.iter().filter_map(graph.of);
        if graph.is_of_heads { values.any(|value| value > 0.0) } else { values.next().is_some() }
    });
    shown.collect()
}

/// Number of a node's graphs.
pub(super) fn count(node: &Node) -> usize {
    known(node).len()
}

/// Graphs with their titles and figures, each of so many lines.
pub(in crate::view) fn lines_of(
    state: &State,
    theme: &Theme,
    node: &Node,
    [cells, rows]: [usize; 2],
) -> Vec<Line<'static>> {
    let trends = Trends::of(state, theme, node, [cells.saturating_sub(TITLE + VALUE + 3), rows]);
    if trends.is_empty() {
        return Vec::new();
    }
    let lines = known(node).into_iter().flat_map(|one| {
        let trend = trends.trend(one.of, one.scale, one.write);
        let (figure, style) = (trend.figure, trend.style);
        trend.graph.into_iter().enumerate().map(move |(row, bars)| {
            let [title, figure] = if row == 0 { [one.title, figure.as_str()] } else { [""; 2] };
            let title = Span::styled(format!(" {}", fit(title, TITLE)), theme.dim);
            Line::from_iter([title, Span::styled(fit_right(figure, VALUE) + " ", style)].into_iter().chain(bars))
        })
    });
    lines.collect()
}

/// Renders charts side by side: the figures, and what the node's time went to.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, node: &Node) {
    let known = known(node);
    let columns = if area.width >= WIDTH_THREE { 3 } else { 2 };
    // The time split is the last chart.
    let count = known.len() + 1;
    let rows = count.div_ceil(columns).min(usize::from(area.height / 4).max(1));
    let strips = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    for (row, strip) in strips.iter().enumerate() {
        let first = row * columns;
        // The last line is divided among the charts that are left.
        let here = (count - first.min(count)).min(columns).max(1);
        let areas = Layout::horizontal(vec![Constraint::Fill(1); here]).spacing(1).split(*strip);
        for (place, area) in areas.iter().enumerate() {
            match known.get(first + place) {
                Some(one) => draw_graph(state, theme, frame, *area, node, one),
                None => draw_split(state, theme, frame, *area, node),
            }
        }
    }
}

fn draw_graph(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, node: &Node, one: &NodeGraph) {
    let cells = chart::cells(area);
    let rows = usize::from(area.height).saturating_sub(2);
    let trends = Trends::of(state, theme, node, [cells, rows]);
    let most = node.history.samples().iter().rev().take(cells).filter_map(one.of).fold(0.0, f64::max);
    let (low, high) = one.scale.unwrap_or((0.0, scale_end(most)));
    let trend = trends.trend(one.of, Some((low, high)), one.write);
    let most = if trend.most.is_empty() { String::new() } else { format!(", max {}", trend.most) };
    let has_room = width(one.title) + width(&trend.figure) + width(&most) + 10 <= usize::from(area.width);
    let most = if has_room { most } else { String::new() };
    let remark = Span::styled(format!("{}{most}", trend.figure), trend.style);
    let inner = panel(frame, theme, area, false, one.title, remark);
    let scale = [(one.mark)(high), if low == 0.0 { "0".to_owned() } else { (one.mark)(low) }];
    chart::draw_scaled(theme, frame, inner, scale, trend.graph, &format!("{cells} s ago"));
}

/// Shares of computing, waiting and network over time.
fn draw_split(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, node: &Node) {
    let cells = chart::cells(area);
    let rows = usize::from(area.height).saturating_sub(2);
    let samples = node.history.samples();
    let shares: Vec<Option<[f64; 2]>> = samples
        .iter()
        .skip(samples.len().saturating_sub(cells))
        .map(|sample| {
            let network = sample.network?;
            Some([1.0 - network, 1.0 - network + sample.waiting.unwrap_or(0.0)])
        })
        .collect();
    let last = shares.last().copied().flatten();
    let remark = last.map_or_else(String::new, |[own, wait]| {
        let [own, wait, network] = [own, wait - own, 1.0 - wait].map(|share| share * 100.0);
        format!("█ computing {own:.0}  ▒ waiting {wait:.0}  ░ network {network:.0} %")
    });
    let inner = panel(frame, theme, area, false, "time", Span::styled(remark, theme.dim));
    let glyph = |share: &Option<[f64; 2]>, height: f64| -> (&'static str, Style) {
        match share {
            None => ("·", theme.faint),
            Some([own, _]) if height < *own => ("█", theme.ok),
            Some([_, wait]) if height < *wait => ("▒", theme.warn),
            Some(_) => ("░", theme.accent),
        }
    };
    let unknown = Span::styled("·".repeat(cells - shares.len()), theme.faint);
    let graph = (0..rows).map(|row| {
        let height = (rows - row) as f64 / rows as f64 - 0.5 / rows as f64;
        let bars = shares.iter().map(|share| glyph(share, height)).map(|(glyph, style)| Span::styled(glyph, style));
        std::iter::once(unknown.clone()).chain(bars).collect()
    });
    let is_old = !matches!(node.status(state.now), crate::state::node::NodeStatus::Reports(_));
    let axis = if is_old { format!("{cells} s before its last report") } else { format!("{cells} s ago") };
    chart::draw_scaled(theme, frame, inner, ["100 %".to_owned(), "0".to_owned()], graph.collect(), &axis);
}
