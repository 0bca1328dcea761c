//! A panel: a rule with a title on the left and a remark on the right, and the area below. The rule is thick if the
//! panel has the focus.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::Area,
    view::{
        format::{shorten, width},
        theme::Theme,
    },
};

/// Renders the rule and returns the area below it.
pub(crate) fn panel(frame: &mut Frame, theme: &Theme, area: Rect, focused: bool, title: &str, remark: Span) -> Rect {
    if area.height == 0 {
        return area;
    }
    let (rule, style) = if focused { ("━", theme.accent) } else { ("─", theme.dim) };
    let cells = usize::from(area.width);
    let title = shorten(title, cells.saturating_sub(6));
    let room = cells.saturating_sub(width(&title) + 8);
    let remark = Span::styled(shorten(&remark.content, room), remark.style);
    let mut spans = vec![Span::styled(rule.repeat(2), if focused { style } else { theme.dim })];
    spans.push(Span::styled(format!(" {title} "), if focused { theme.accent } else { theme.plain }));
    let used = 4 + width(&title);
    let tail = if remark.content.is_empty() { 0 } else { width(&remark.content) + 4 };
    spans.push(Span::styled(rule.repeat(cells.saturating_sub(used + tail)), style));
    if tail > 0 {
        spans.extend([Span::raw(" "), remark, Span::raw(" "), Span::styled(rule.repeat(2), style)]);
    }
    frame.render_widget(Line::from(spans), Rect { height: 1, ..area });
    Rect { y: area.y + 1, height: area.height - 1, ..area }
}

/// The area as the mouse finds it.
pub(crate) fn hit(area: Rect) -> Area {
    Area { x: area.x, y: area.y, width: area.width, height: area.height }
}

/// Renders lines from the top of an area; lines that do not fit are dropped.
pub(crate) fn lines(frame: &mut Frame, area: Rect, lines: impl IntoIterator<Item = Line<'static>>) {
    for (row, line) in area.rows().zip(lines) {
        frame.render_widget(line, row);
    }
}
