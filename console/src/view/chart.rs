//! A panel with a graph and its scale.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::view::{
    format::fit_right,
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
}

/// Number of values that an area shows.
pub(super) fn cells(area: Rect) -> usize {
    usize::from(area.width).saturating_sub(SCALE + 1)
}

/// Renders the chart.
pub(super) fn draw(theme: &Theme, frame: &mut Frame, area: Rect, chart: Chart<'_>) {
    let Chart { title, remark, values, mark } = chart;
    let inner = panel(frame, theme, area, false, title, Span::styled(remark, theme.dim));
    let shown = &values[values.len().saturating_sub(cells(area))..];
    let high = scale_end(shown.iter().flatten().copied().fold(0.0, f64::max));
    let rows = usize::from(inner.height);
    let bars = graph(shown, high, cells(area), rows);
    let all = bars.into_iter().enumerate().map(|(row, bars)| {
        let mark = match row {
            0 => mark(high),
            row if row + 1 == rows => "0".to_owned(),
            _ => String::new(),
        };
        let mark = Span::styled(fit_right(&mark, SCALE) + "│", theme.dim);
        Line::from_iter(std::iter::once(mark).chain(styled(&bars, |_| theme.accent, theme.faint)))
    });
    lines(frame, inner, all);
}
