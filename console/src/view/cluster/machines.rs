//! Bars and trends of every node's machine: temperature, memory, clock and link. Seconds in which a machine was
//! throttled, too hot or short of voltage stand out.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{State, node::Node, nodes},
    view::{
        format::{fit, fit_right},
        theme::Theme,
        trend::{CELSIUS, Trend, Trends},
        widgets::{
            bar::stacked,
            panel::{lines, panel},
        },
    },
};

/// Width of a node's name, and of a figure, in cells.
const NAME: usize = 10;
const FIGURE: usize = 11;
/// Least width of a gauge: its figure and a graph.
const GAUGE: usize = 24;
/// Bytes per GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// What a gauge shows.
#[derive(Clone, Copy)]
enum Reading {
    Temperature,
    Memory,
    Network,
    Clock,
}

impl Reading {
    /// In their order; the last ones give way.
    const ALL: [Self; 4] = [Self::Temperature, Self::Memory, Self::Network, Self::Clock];

    fn title(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Clock => "clock",
        }
    }

    /// Whether a node's machine reports it.
    fn is_known(self, node: &Node) -> bool {
        node.report.as_ref().is_some_and(|report| match self {
            Self::Temperature => report.health.temperature.is_some(),
            Self::Memory => report.health.memory.is_some(),
            Self::Network => report.health.link.is_some(),
            Self::Clock => report.health.clock.is_some(),
        })
    }
}

/// A gauge in a node's lines: a figure with its graph, and what the figure is to be compared with.
struct Gauge {
    trend: Trend,
    beside: String,
}

/// Renders all nodes that fit.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let all = &state.cluster.nodes;
    if area.height < 2 || all.is_empty() {
        return;
    }
    let room = usize::from(area.width).saturating_sub(NAME + 1);
    // A reading that no machine reports takes no room.
    let known = Reading::ALL.into_iter().filter(|reading| all.iter().any(|node| reading.is_known(node)));
    let readings: Vec<Reading> = known.take((room / GAUGE).max(1)).collect();
    let cells = (room / readings.len().max(1)).saturating_sub(FIGURE + 2);
    let title = format!("Machines: {}", readings.iter().map(|reading| reading.title()).collect::<Vec<_>>().join(", "));
    let inner = panel(frame, theme, area, false, &title, Span::styled(format!("{cells} s"), theme.dim));
    let rows = (usize::from(inner.height) / all.len()).max(1);
    lines(frame, inner, all.iter().flat_map(|node| node_lines(state, theme, node, &readings, [cells, rows])));
}

/// The lines of a node, with graphs of so many cells and rows.
fn node_lines(
    state: &State,
    theme: &Theme,
    node: &Node,
    readings: &[Reading],
    [cells, rows]: [usize; 2],
) -> Vec<Line<'static>> {
    let trends = Trends::of(state, theme, node, [cells, rows]);
    let gauges: Vec<Gauge> =
        readings.iter().map(|reading| gauge(theme, &trends, node, *reading, [cells, rows])).collect();
    let place = nodes::place(state, node).map_or_else(String::new, |place| format!("rank {place}"));
    (0..rows)
        .map(|row| {
            let name = [node.name(), &place].get(row).map_or_else(|| " ".repeat(NAME), |text| fit(text, NAME));
            let style = if row == 0 { trends.current(theme.plain) } else { theme.dim };
            let mut spans = vec![Span::styled(format!(" {name}"), style)];
            for Gauge { trend, beside } in &gauges {
                let (text, style) = match row {
                    0 => (trend.figure.as_str(), trend.style),
                    1 => (beside.as_str(), theme.dim),
                    _ => ("", theme.dim),
                };
                spans.push(Span::styled(fit_right(text, FIGURE) + " ", style));
                spans.extend(trend.graph.get(row).cloned().unwrap_or_default());
                spans.push(Span::raw(" "));
            }
            Line::from(spans)
        })
        .collect()
}

fn gauge(theme: &Theme, trends: &Trends, node: &Node, reading: Reading, [cells, rows]: [usize; 2]) -> Gauge {
    let health = node.report.as_ref().map(|report| &report.health);
    match reading {
        Reading::Temperature => {
            let celsius = |celsius: f64| format!("{celsius:.1} °C");
            let trend = trends.trend(|sample| sample.celsius.map(f64::from), Some(CELSIUS), celsius);
            Gauge { beside: if trend.most.is_empty() { String::new() } else { format!("max {}", trend.most) }, trend }
        }
        Reading::Memory => memory(theme, trends, node, [cells, rows]),
        Reading::Network => {
            let mbit = health.and_then(|health| health.link.as_ref()?.mbit);
            let beside = mbit.map_or_else(String::new, |mbit| format!("of {}", nodes::link_speed(mbit)));
            let trend = trends.trend(|one| one.bytes_per_second, None, nodes::traffic);
            Gauge { trend, beside }
        }
        Reading::Clock => {
            let clock = health.and_then(|health| health.clock.as_ref());
            let most = clock.map_or(0.0, |clock| f64::from(clock.hardware.0.max(clock.limit.0)));
            let beside = if most > 0.0 { format!("of {}", gigahertz(most)) } else { String::new() };
            let trend = trends.trend(|one| one.megahertz.map(f64::from), Some((0.0, most)), gigahertz);
            Gauge { trend, beside }
        }
    }
}

fn gigahertz(megahertz: f64) -> String {
    format!("{:.2} GHz", megahertz / 1e3)
}

/// The memory in use as a bar.
fn memory(theme: &Theme, trends: &Trends, node: &Node, [cells, rows]: [usize; 2]) -> Gauge {
    let memory = node.report.as_ref().and_then(|report| report.health.memory);
    let Some(memory) = memory.filter(|memory| memory.total.0 > 0) else {
        let graph = vec![vec![Span::raw(" ".repeat(cells))]; rows];
        let trend = Trend { figure: "–".to_owned(), style: theme.dim, most: String::new(), graph };
        return Gauge { trend, beside: String::new() };
    };
    let (free, total) = (memory.available.0.min(memory.total.0), memory.total.0);
    let parts = [(total - free, "█", trends.current(theme.ok)), (free, "░", theme.faint)];
    let graph = vec![stacked(&parts, total, cells); rows];
    let (used, total) = ((total - free) as f64, total as f64);
    // Eleven cells hold up to 99.9 of 999 GiB.
    let all = if total < 10.0 * GIB { format!("{:.1}", total / GIB) } else { format!("{:.0}", total / GIB) };
    let figure = format!("{:.1}/{all} GiB", used / GIB);
    let trend = Trend { figure, style: trends.current(theme.plain), most: String::new(), graph };
    Gauge { trend, beside: format!("{:.0} % used", 100.0 * used / total) }
}
