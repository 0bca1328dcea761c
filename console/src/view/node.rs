//! The page of one node: what its machine says, what is wrong there and what cures it, its layers.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};
use shared::telemetry::{NodeReport, Severity};

use crate::{
    state::{Extent, Focus, State, clean::clean_line, node::Node},
    view::{
        format::wrap_words,
        layers,
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Draws the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let [above, below] = Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).areas(area);
    let focused = state.spot.focus == Focus::Details;
    let Some(node) = state.nodes.get(state.selected) else {
        let area = panel(frame, theme, area, focused, "Node", Span::raw(""));
        return lines(frame, area, [Line::styled(" No node is named.", theme.dim)]);
    };
    let place = Span::styled(format!("{} of {}", state.selected + 1, state.nodes.len()), theme.dim);
    let title = format!("{} ({})", node.name(), node.address);
    let inner = panel(frame, theme, above, focused, &title, place);
    lines(frame, inner, details(node, theme, usize::from(inner.width)));
    extent.layers_height = layers::draw(state, theme, frame, below);
}

fn details(node: &Node, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let mut all = Vec::new();
    let mut say = |text: &str, style: Style| {
        let text = clean_line(text);
        all.extend(
            wrap_words(&text, width.saturating_sub(2))
                .into_iter()
                .map(|range| Line::styled(format!(" {}", &text[range]), style)),
        );
    };
    if let Some(fault) = node.fault() {
        say(&fault.to_string(), theme.bad);
        say(&format!("Next: {}.", fault.kind.next()), theme.plain);
    }
    let Some(NodeReport { health, .. }) = &node.report else { return all };
    for finding in health.findings() {
        let style = match finding.severity {
            Severity::Error => theme.bad,
            Severity::Warning => theme.warn,
            Severity::Note => theme.dim,
        };
        say(&finding.meaning, style);
        say(&format!("fix: {}", finding.fix), theme.plain);
    }
    health.readings().iter().for_each(|line| say(line, theme.dim));
    all
}
