//! The page of events: what happened to the nodes, the newest at the end.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{Focus, State},
    view::{
        format::fit,
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Draws the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let entries = state.events.entries();
    let remark = Span::styled(format!("{} kept", entries.len()), theme.dim);
    let area = panel(frame, theme, area, state.spot.focus == Focus::Events, "Events", remark);
    if entries.is_empty() {
        return lines(frame, area, [Line::styled(" Nothing happened yet.", theme.dim)]);
    }
    let first = entries.len().saturating_sub(usize::from(area.height));
    let row = |entry: &crate::state::events::Entry| {
        let node = entry.node.and_then(|place| state.nodes.get(place)).map_or("", |node| node.name());
        let age = format!(" {:>6} s  {} ", entry.at.as_secs(), fit(node, 12));
        Line::from_iter([
            Span::styled(age, theme.dim),
            Span::styled(entry.text.clone(), theme.severity(entry.severity)),
        ])
    };
    lines(frame, area, entries.iter().skip(first).map(row));
}
