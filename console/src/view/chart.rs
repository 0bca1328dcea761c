//! A panel with a graph and its scale.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::view::{
    format::{fit_right, width},
    theme::Theme,
    widgets::{
        graph::{graph, scale_end, styled},
        panel::{lines, panel},
    },
};

/// Width of the scale, in cells.
const SCALE: usize = 5;

/// A figure over time.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// On the right of the title.
    pub(super) remark: String,
    /// Oldest first.
    pub(super) values: &'a [Option<f64>],
    /// How the end of the scale is written, in at most five cells.
    pub(super) mark: fn(f64) -> String,
    /// What the left end of the graph stands for, e.g. `60 s ago`; empty: there is no line for it.
    pub(super) axis: &'a str,
}

/// The end of a scale with at most two decimals.
pub(super) fn short(high: f64) -> String {
    let text = format!("{high:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The end of a scale in milliseconds.
pub(super) fn milliseconds(high: f64) -> String {
    if high >= 1000.0 { format!("{} s", high / 1000.0) } else { format!("{high}ms") }
}

/// Number of values that an area shows.
pub(super) fn cells(area: Rect) -> usize {
    usize::from(area.width).saturating_sub(SCALE + 1)
}

/// Renders the chart.
pub(super) fn draw(theme: &Theme, frame: &mut Frame, area: Rect, chart: Chart<'_>) {
    let Chart { title, remark, values, mark, axis } = chart;
    let inner = panel(frame, theme, area, false, title, Span::styled(remark, theme.dim));
    let shown = &values[values.len().saturating_sub(cells(area))..];
    let high = scale_end(shown.iter().flatten().copied().fold(0.0, f64::max));
    let rows = rows(inner, axis);
    let bars = graph(shown, high, cells(area), rows);
    let bars = bars.into_iter().map(|bars| styled(&bars, |_| theme.accent, theme.faint));
    draw_scaled(theme, frame, inner, [mark(high), "0".to_owned()], bars.collect(), axis);
}

/// Number of lines that a graph has in the area below a rule.
pub(super) fn rows(inner: Rect, axis: &str) -> usize {
    usize::from(inner.height).saturating_sub(usize::from(!axis.is_empty()))
}

/// Renders the lines of a graph with both ends of its scale and, below, the meaning of its left end.
pub(super) fn draw_scaled(
    theme: &Theme,
    frame: &mut Frame,
    inner: Rect,
    [high, low]: [String; 2],
    graph: Vec<Vec<Span<'static>>>,
    axis: &str,
) {
    let rows = graph.len();
    let all = graph.into_iter().enumerate().map(|(row, bars)| {
        let mark = match row {
            0 => high.as_str(),
            row if row + 1 == rows => low.as_str(),
            _ => "",
        };
        let mark = Span::styled(fit_right(mark, SCALE) + "│", theme.dim);
        Line::from_iter(std::iter::once(mark).chain(bars))
    });
    let rest = usize::from(inner.width).saturating_sub(SCALE + 1 + width(axis) + 5);
    let below = (!axis.is_empty())
        .then(|| Line::styled(format!("{}└{axis} {} now", " ".repeat(SCALE), "─".repeat(rest)), theme.dim));
    lines(frame, inner, all.chain(below));
}
