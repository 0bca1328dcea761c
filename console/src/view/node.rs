//! The Node page: identity, graphs of the last minutes, problems of the machine with their remedies, and its layers.
use common::{calendar, units::Bytes};
use protocol::inspect::{LogLevel, LogLine};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};
use telemetry::Severity;

use crate::{
    state::{
        Extent, Panel, State,
        clean::clean_line,
        node::{Node, NodeStatus},
        nodes,
    },
    view::{
        format::{fit, fit_right, wrap_words},
        layers,
        theme::Theme,
        trend::{CELSIUS, Trend, Trends},
        widgets::panel::{hit, lines, panel},
    },
};

/// Width of a graph's title and of its last value, in cells.
const TITLE: usize = 11;
const VALUE: usize = 11;
/// Number of graphs, and most lines of one.
const GRAPHS: usize = 5;
const GRAPH_LINES_MAX: usize = 4;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let focused = state.screen.focus.panel == Panel::Details;
    let Some(node) = state.cluster.nodes.get(state.screen.selected) else {
        let area = panel(frame, theme, area, focused, "Node", Span::raw(""));
        return lines(frame, area, [Line::styled(" No node was named.", theme.dim)]);
    };
    let layer_lines = (state.layer_count() as u16 + 2).clamp(3, area.height / 3);
    let parts = [Constraint::Fill(1), Constraint::Length(area.height / 5), Constraint::Length(layer_lines)];
    let [above, middle, below] = Layout::vertical(parts).areas(area);
    (extent.panels[0], extent.panels[1]) = (hit(above), hit(below));
    let remark = format!("{} of {}, ← → others", state.screen.selected + 1, state.cluster.nodes.len());
    let title = format!("{} ({})", node.name(), node.address);
    let inner = panel(frame, theme, above, focused, &title, Span::styled(remark, theme.dim));
    let few = details(state, node, theme, usize::from(inner.width), 1);
    let graph_lines = (usize::from(inner.height).saturating_sub(few.len()) / GRAPHS + 1).min(GRAPH_LINES_MAX);
    let all = if graph_lines == 1 { few } else { details(state, node, theme, usize::from(inner.width), graph_lines) };
    (extent.details_lines, extent.details_height) = (all.len(), usize::from(inner.height));
    let first = state.screen.scroll.details.min(all.len().saturating_sub(usize::from(inner.height)));
    lines(frame, inner, all.into_iter().skip(first));
    log(state, theme, frame, middle);
    extent.layers_height = layers::draw(state, theme, frame, below);
}

/// The latest lines of the node's log that fit.
fn log(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let log = Some(&state.journal.log).filter(|log| log.node == Some(state.screen.selected));
    let kept = log.map_or(0, |log| log.lines.len());
    let remark = Span::styled(if kept == 0 { String::new() } else { format!("the last {kept} lines, UTC") }, theme.dim);
    let inner = panel(frame, theme, area, false, "Log", remark);
    if let Some(fault) = log.and_then(|log| log.fault.as_ref()) {
        return lines(frame, inner, [Line::styled(format!(" {}", clean_line(&fault.to_string())), theme.warn)]);
    }
    let room = usize::from(inner.height);
    let shown = log.into_iter().flat_map(|log| log.lines.iter().skip(kept.saturating_sub(room)));
    lines(
        frame,
        inner,
        shown.map(|line: &LogLine| {
            let style = match line.level {
                LogLevel::Error => theme.bad,
                LogLevel::Warn => theme.warn,
                _ => theme.plain,
            };
            let time = calendar::time_of_day(line.unix_ms / 1000);
            let text = fit(&clean_line(&line.text), usize::from(inner.width).saturating_sub(time.len() + 2));
            Line::from_iter([Span::styled(format!(" {time} "), theme.dim), Span::styled(text, style)])
        }),
    );
}

/// All lines about a node, with graphs of so many lines.
fn details(state: &State, node: &Node, theme: &Theme, width: usize, graph_lines: usize) -> Vec<Line<'static>> {
    let mut all = vec![summary(state, node, theme)];
    let is_live = matches!(node.status(state.now), NodeStatus::Reports(_));
    let cells = width.saturating_sub(TITLE + VALUE + 3);
    all.extend(graphs(theme, &Trends::of(state, theme, node, [cells, graph_lines])));
    let mut say = |text: &str, style: Style| {
        let text = clean_line(text);
        let rows = wrap_words(&text, width.saturating_sub(2));
        all.extend(rows.into_iter().map(|range| Line::styled(format!(" {}", &text[range]), style)));
    };
    if let Some(entry) = state.cluster.exclusion(node) {
        say(&format!("out: {} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by), theme.warn);
    }
    if let Some(fault) = node.fault() {
        say(&fault.to_string(), theme.bad);
        say(&format!("next: {}", fault.kind.next()), theme.plain);
    }
    let Some(report) = &node.report else { return all };
    let findings = report.health.findings();
    for finding in &findings {
        let style = match finding.severity {
            Severity::Error => theme.bad,
            Severity::Warning => theme.warn,
            Severity::Note => theme.dim,
        };
        say(&format!("{}: {}", finding.severity.name(), finding.meaning), style);
        say(&format!("  fix: {}", finding.fix), theme.plain);
    }
    if findings.is_empty() && is_live {
        say("Nothing is wrong with its machine.", theme.ok);
    }
    report.health.readings().iter().for_each(|line| say(line, theme.dim));
    let unread = report.health.unread();
    if !unread.is_empty() {
        say(&format!("cannot be read there: {}", unread.join(", ")), theme.dim);
    }
    all
}

fn summary(state: &State, node: &Node, theme: &Theme) -> Line<'static> {
    let standing = nodes::status_cell(state, node);
    let mut spans = vec![Span::styled(format!(" {}", standing.text), theme.tone(standing.tone))];
    let mut rest = Vec::new();
    rest.extend(nodes::place(state, node).map(|place| format!("place {place}")));
    if let Some(report) = &node.report {
        rest.push(format!("epoch {}", report.epoch));
        rest.push(format!("shard {}", report.shard));
        rest.push(format!("resident {}", report.memory_resident));
        rest.push(format!("kernels {}", clean_line(&report.kernels)));
        rest.push(format!("build {}", clean_line(&report.build)));
    }
    spans.push(Span::styled(rest.into_iter().map(|word| format!("  {word}")).collect::<String>(), theme.dim));
    Line::from(spans)
}

/// Graphs of temperature, clock, tokens, peer wait and network.
fn graphs(theme: &Theme, trends: &Trends) -> Vec<Line<'static>> {
    if trends.is_empty() {
        return Vec::new();
    }
    let all = [
        (
            "temperature",
            trends.trend(|one| one.celsius.map(f64::from), Some(CELSIUS), |value| format!("{value:.1} °C")),
        ),
        ("clock", trends.trend(|one| one.megahertz.map(f64::from), None, |value| format!("{:.2} GHz", value / 1e3))),
        ("tokens/s", trends.trend(|one| Some(one.tokens_per_second), None, |value| format!("{value:.1}"))),
        ("waiting", trends.trend(|one| one.waiting, Some((0.0, 1.0)), |value| format!("{:.0} %", value * 100.0))),
        ("network", trends.trend(|one| one.bytes_per_second, None, |value| format!("{}/s", Bytes(value as u64)))),
    ];
    let lines = all.into_iter().flat_map(|(title, Trend { figure, style, graph, .. })| {
        graph.into_iter().enumerate().map(move |(row, bars)| {
            let [title, figure] = if row == 0 { [title, figure.as_str()] } else { [""; 2] };
            let title = Span::styled(format!(" {}", fit(title, TITLE)), theme.dim);
            Line::from_iter([title, Span::styled(fit_right(figure, VALUE) + " ", style)].into_iter().chain(bars))
        })
    });
    lines.collect()
}
