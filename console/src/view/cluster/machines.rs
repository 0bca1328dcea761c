//! Bars and trends of every node's machine: temperature, memory, clock and link. Seconds in which a machine was
//! throttled, too hot or short of voltage stand out.
use common::units::Bytes;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

use crate::{
    state::{
        State,
        history::Sample,
        node::{Node, NodeStatus},
        nodes,
    },
    view::{
        format::{fit, fit_right},
        theme::Theme,
        widgets::{
            graph::{graph, styled},
            panel::{lines, panel},
        },
    },
};

/// Width of a node's name, and of a figure, in cells.
const NAME: usize = 10;
const FIGURE: usize = 11;
/// Least width of a gauge: its figure and a graph.
const GAUGE: usize = 24;
/// Range of the temperature in °C, up to where the firmware limits it.
const CELSIUS: (f64, f64) = (20.0, 85.0);
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

    /// Whether a node's machine tells it.
    fn is_known(self, node: &Node) -> bool {
        node.report.as_ref().is_some_and(|report| match self {
            Self::Temperature => report.health.temperature.is_some(),
            Self::Memory => report.health.memory.is_some(),
            Self::Network => report.health.link.is_some(),
            Self::Clock => report.health.clock.is_some(),
        })
    }
}

/// A gauge in a node's lines: its figure, what that is to be compared with, and its graph as lines from the top.
struct Gauge {
    figure: String,
    beside: String,
    style: Style,
    graph: Vec<Vec<Span<'static>>>,
}

/// Renders all nodes that fit.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let all = &state.cluster.nodes;
    if area.height < 2 || all.is_empty() {
        return;
    }
    let room = usize::from(area.width).saturating_sub(NAME + 1);
    // What no machine tells takes no room.
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
    let is_live = matches!(node.status(state.now), NodeStatus::Reports(_));
    let samples: Vec<Sample> = node.history.samples().iter().copied().collect();
    let drawing = Drawing { theme, is_live, samples: &samples[samples.len().saturating_sub(cells)..], cells, rows };
    let gauges: Vec<Gauge> = readings.iter().map(|reading| drawing.gauge(node, *reading)).collect();
    let place = nodes::place(state, node).unwrap_or_default();
    (0..rows)
        .map(|row| {
            let name = [node.name(), &place].get(row).map_or_else(|| " ".repeat(NAME), |text| fit(text, NAME));
            let style = if is_live && row == 0 { theme.plain } else { theme.dim };
            let mut spans = vec![Span::styled(format!(" {name}"), style)];
            for gauge in &gauges {
                let (text, style) = match row {
                    0 => (gauge.figure.as_str(), gauge.style),
                    1 => (gauge.beside.as_str(), theme.dim),
                    _ => ("", theme.dim),
                };
                spans.push(Span::styled(fit_right(text, FIGURE) + " ", style));
                spans.extend(gauge.graph.get(row).cloned().unwrap_or_default());
                spans.push(Span::raw(" "));
            }
            Line::from(spans)
        })
        .collect()
}

/// The speed of a node's link.
fn speed(node: &Node) -> String {
    let mbit = node.report.as_ref().and_then(|report| report.health.link.as_ref()?.mbit);
    match mbit {
        Some(mbit) if mbit >= 1000 => format!("of {} Gb/s", f64::from(mbit) / 1e3),
        Some(mbit) => format!("of {mbit} Mb/s"),
        None => String::new(),
    }
}

fn gigahertz(megahertz: f64) -> String {
    format!("{:.2} GHz", megahertz / 1e3)
}

/// How a node's gauges are drawn.
struct Drawing<'a> {
    theme: &'a Theme,
    is_live: bool,
    samples: &'a [Sample],
    cells: usize,
    rows: usize,
}

impl Drawing<'_> {
    fn gauge(&self, node: &Node, reading: Reading) -> Gauge {
        match reading {
            Reading::Temperature => {
                self.trend(&|one| one.celsius.map(f64::from), CELSIUS, &|celsius| format!("{celsius:.1} °C"))
            }
            Reading::Memory => self.memory(node),
            Reading::Network => {
                let most = self.samples.iter().filter_map(|sample| sample.bytes_per_second).fold(0.0, f64::max);
                let trend =
                    self.trend(&|one| one.bytes_per_second, (0.0, most), &|rate| format!("{}/s", Bytes(rate as u64)));
                Gauge { beside: speed(node), ..trend }
            }
            Reading::Clock => {
                let clock = node.report.as_ref().and_then(|report| report.health.clock.as_ref());
                let most = clock.map_or(0.0, |clock| f64::from(clock.hardware.0.max(clock.limit.0)));
                let trend = self.trend(&|one| one.megahertz.map(f64::from), (0.0, most), &gigahertz);
                Gauge { beside: if most > 0.0 { format!("of {}", gigahertz(most)) } else { String::new() }, ..trend }
            }
        }
    }

    /// The history of a figure on a scale from `low` to `high`.
    fn trend(&self, of: &dyn Fn(&Sample) -> Option<f64>, scale: (f64, f64), write: &dyn Fn(f64) -> String) -> Gauge {
        let (low, high) = scale;
        let values: Vec<Option<f64>> = self.samples.iter().map(|sample| of(sample).map(|value| value - low)).collect();
        let last = self.samples.last().and_then(of);
        let most = self.samples.iter().filter_map(of).reduce(f64::max);
        let is_ill = self.is_live && self.samples.last().is_some_and(|sample| sample.is_ill);
        let unknown = self.cells - values.len();
        let lines = graph(&values, high - low, self.cells, self.rows).into_iter();
        let graph = lines.map(|line| styled(&line, |cell| self.at(cell.checked_sub(unknown)), self.theme.faint));
        Gauge {
            figure: last.map_or_else(|| "–".to_owned(), write),
            beside: most.map_or_else(String::new, |most| format!("max {}", write(most))),
            style: if is_ill { self.theme.warn } else { self.plain(self.theme.plain) },
            graph: graph.collect(),
        }
    }

    /// The style of a sample's bar.
    fn at(&self, sample: Option<usize>) -> Style {
        let is_ill = sample.and_then(|at| self.samples.get(at)).is_some_and(|sample| sample.is_ill);
        if is_ill { self.theme.bad } else { self.plain(self.theme.accent) }
    }

    /// The memory in use as a bar.
    fn memory(&self, node: &Node) -> Gauge {
        let memory = node.report.as_ref().and_then(|report| report.health.memory);
        let Some(memory) = memory.filter(|memory| memory.total.0 > 0) else {
            let graph = vec![vec![Span::raw(" ".repeat(self.cells))]; self.rows];
            return Gauge { figure: "–".to_owned(), beside: String::new(), style: self.theme.dim, graph };
        };
        let (used, total) = (memory.total.0.saturating_sub(memory.available.0) as f64, memory.total.0 as f64);
        let filled = ((used / total * self.cells as f64).round() as usize).min(self.cells);
        let bar = vec![
            Span::styled("█".repeat(filled), self.plain(self.theme.ok)),
            Span::styled("░".repeat(self.cells - filled), self.theme.faint),
        ];
        // Eleven cells hold up to 99.9 of 999 GiB.
        let total_figure =
            if total < 10.0 * GIB { format!("{:.1}", total / GIB) } else { format!("{:.0}", total / GIB) };
        let figure = format!("{:.1}/{total_figure} GiB", used / GIB);
        let beside = format!("{:.0} % used", 100.0 * used / total);
        Gauge { figure, beside, style: self.plain(self.theme.plain), graph: vec![bar; self.rows] }
    }

    /// A style for current figures; old ones are dim.
    fn plain(&self, style: Style) -> Style {
        if self.is_live { style } else { self.theme.dim }
    }
}
