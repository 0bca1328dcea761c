//! The Node page: identity, graphs of the last minutes, problems of the machine with their remedies, its log, and its
//! layers.
pub(super) mod graphs;

use common::calendar;
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
        format::{fit_words, width},
        layers,
        theme::Theme,
        widgets::{
            panel::{hit, lines, panel},
            paragraph::paragraph,
        },
    },
};

/// From this size graphs stand side by side, and the log next to the machine.
const WIDTH_LARGE: u16 = 110;
const HEIGHT_LARGE: u16 = 30;
/// Least height of the details of the machine.
const MACHINE_LINES: u16 = 9;
/// Most lines of a graph on smaller screens.
const GRAPH_LINES_MAX: usize = 4;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let focused = state.screen.focus.panel == Panel::Details;
    let Some(node) = state.cluster.nodes.get(state.screen.selected) else {
        let area = panel(frame, theme, area, focused, "Node", Span::raw(""));
        return lines(frame, area, [Line::styled(" No node was named.", theme.dim)]);
    };
    let remark = format!("{} of {}, ← → others", state.screen.selected + 1, state.cluster.nodes.len());
    let title = format!("{} ({})", node.name(), node.address);
    let layer_lines = (state.layer_count() as u16 + 2).clamp(3, (area.height / 3).max(3));
    if area.height < HEIGHT_LARGE || area.width < WIDTH_LARGE {
        let parts = [Constraint::Fill(1), Constraint::Length(area.height / 5), Constraint::Length(layer_lines)];
        let [above, middle, below] = Layout::vertical(parts).areas(area);
        (extent.panels[0], extent.panels[1]) = (hit(above), hit(below));
        let inner = panel(frame, theme, above, focused, &title, Span::styled(remark, theme.dim));
        let cells = usize::from(inner.width);
        let few = 1 + details(state, node, theme, cells).len();
        let rows =
            (usize::from(inner.height).saturating_sub(few) / graphs::count(node).max(1)).clamp(1, GRAPH_LINES_MAX);
        let all = std::iter::once(summary(state, node, theme, usize::from(inner.width)));
        let all =
            all.chain(graphs::lines_of(state, theme, node, [cells, rows])).chain(details(state, node, theme, cells));
        scrolled(state, frame, inner, all.collect(), extent);
        log(state, theme, frame, middle);
        extent.layers_height = layers::draw(state, theme, frame, below);
        return;
    }
    let left = area.height.saturating_sub(layer_lines + 2);
    let machine = details(state, node, theme, usize::from(area.width) * 3 / 5).len() as u16 + 1;
    let machine = machine.clamp(MACHINE_LINES, (left * 2 / 5).max(MACHINE_LINES));
    let parts =
        [Constraint::Length(2), Constraint::Fill(1), Constraint::Length(machine), Constraint::Length(layer_lines)];
    let [above, charts, middle, below] = Layout::vertical(parts).areas(area);
    let inner = panel(frame, theme, above, false, &title, Span::styled(remark, theme.dim));
    lines(frame, inner, [summary(state, node, theme, usize::from(inner.width))]);
    graphs::draw(state, theme, frame, charts, node);
    let columns = [Constraint::Percentage(60), Constraint::Fill(1)];
    let [left, right] = Layout::horizontal(columns).spacing(1).areas(middle);
    (extent.panels[0], extent.panels[1]) = (hit(left), hit(below));
    let inner = panel(frame, theme, left, focused, "Machine", Span::raw(""));
    scrolled(state, frame, inner, details(state, node, theme, usize::from(inner.width)), extent);
    log(state, theme, frame, right);
    extent.layers_height = layers::draw(state, theme, frame, below);
}

/// Renders lines from the one that the operator has scrolled to.
fn scrolled(state: &State, frame: &mut Frame, inner: Rect, all: Vec<Line<'static>>, extent: &mut Extent) {
    (extent.details_lines, extent.details_height) = (all.len(), usize::from(inner.height));
    let first = state.screen.scroll.details.min(all.len().saturating_sub(usize::from(inner.height)));
    lines(frame, inner, all.into_iter().skip(first));
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
            let text = fit_words(&clean_line(&line.text), usize::from(inner.width).saturating_sub(time.len() + 2));
            Line::from_iter([Span::styled(format!(" {time} "), theme.dim), Span::styled(text, style)])
        }),
    );
}

/// The lines about a node's faults and its machine.
fn details(state: &State, node: &Node, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let mut all = Vec::new();
    let is_live = matches!(node.status(state.now), NodeStatus::Reports(_));
    let mut say = |text: &str, style: Style| {
        all.extend(paragraph(&clean_line(text), " ", style, width.saturating_sub(1)));
    };
    if let Some(entry) = state.cluster.exclusion(node) {
        say(&format!("out: {} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by), theme.warn);
    }
    if let Some(fault) = node.fault() {
        say(&fault.to_string(), theme.bad);
        say(&format!("next: {}", fault.next()), theme.plain);
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
    report.readings().iter().for_each(|line| say(line, theme.dim));
    let unread = report.health.unread();
    if !unread.is_empty() {
        say(&format!("cannot be read there: {}", unread.join(", ")), theme.dim);
    }
    all
}

/// The status of a node, its place in the topology and its build, as far as they fit.
fn summary(state: &State, node: &Node, theme: &Theme, cells: usize) -> Line<'static> {
    let standing = nodes::status_cell(state, node);
    let mut spans = vec![Span::styled(format!(" {}", standing.text), theme.tone(standing.tone))];
    let mut rest = Vec::new();
    rest.extend(nodes::place_in_words(state, node));
    if let Some(report) = &node.report {
        rest.push(format!("epoch {}", report.epoch));
        rest.push(format!("shard {}", report.shard));
        rest.push(format!("resident {}", report.memory_resident));
        rest.push(format!("kernels {}", clean_line(&report.kernels)));
        rest.push(format!("build {}", clean_line(&report.build)));
    }
    let mut left = cells.saturating_sub(width(&standing.text) + 1);
    for word in rest {
        let word = format!("  {word}");
        let Some(after) = left.checked_sub(width(&word)) else { break };
        spans.push(Span::styled(word, theme.dim));
        left = after;
    }
    Line::from(spans)
}
