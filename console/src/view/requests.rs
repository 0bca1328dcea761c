//! The Requests page: running and waiting requests on all heads and the last finished ones, with the times of their
//! stages.
use ratatui::{Frame, layout::Rect, text::Span};

use crate::{
    state::{Extent, State, nodes},
    view::{
        tables::{self, TableTexts},
        theme::Theme,
    },
};

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let remark = match nodes::requests(state) {
        0 => "none under way".to_owned(),
        count => format!("{count} under way"),
    };
    let empty = "No head tells of a request yet. i opens the prompt box.";
    tables::draw(
        state,
        theme,
        frame,
        area,
        TableTexts { title: "Requests", remark: Span::styled(remark, theme.dim), empty },
        extent,
    );
}
