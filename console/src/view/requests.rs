//! The page of requests: what the heads count, and the one of this console.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{Focus, State, request::Phase},
    view::{
        format::shorten,
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Draws the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let counted = state.nodes.iter().filter(|node| node.is_open()).filter_map(|node| node.report.as_ref());
    let counted: u32 = counted.map(|report| report.requests).sum();
    let remark = Span::styled(format!("{counted} on all heads"), theme.dim);
    let area = panel(frame, theme, area, state.spot.focus == Focus::Requests, "Requests", remark);
    if state.request.phase == Phase::Nothing {
        return lines(frame, area, [Line::styled(" None was sent from here yet: 4 opens the prompt box.", theme.dim)]);
    }
    let prompt = shorten(&state.request.prompt_shown.replace('\n', " "), usize::from(area.width).saturating_sub(20));
    let tokens = Span::styled(format!(" {:>5} tokens  ", state.request.tokens), theme.dim);
    lines(frame, area, [Line::from_iter([tokens, Span::styled(prompt, theme.plain)])]);
}
