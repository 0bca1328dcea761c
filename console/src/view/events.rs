//! The Events page: events of the nodes and the cluster, newest first.
use ratatui::{Frame, layout::Rect, text::Span};
use telemetry::Severity;

use crate::{
    state::{Extent, State},
    view::{
        tables::{self, TableTexts},
        theme::Theme,
    },
};

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let title = match state.tables.severity_min {
        Severity::Note => "Events",
        Severity::Warning => "Events: warnings and errors",
        Severity::Error => "Events: errors",
    };
    let remark = format!("{} kept, the newest first; Enter opens the node", state.journal.events.entries().len());
    let words = TableTexts {
        title,
        remark: Span::styled(remark, theme.dim),
        empty: "Nothing has happened since this console was started.",
    };
    tables::draw(state, theme, frame, area, words, extent);
}
