//! The help page: the table of keys.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    keymap::{Keymap, Place},
    view::{
        format::fit,
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Width of the keys' column, in cells.
const KEYS: usize = 22;

/// Renders the page over the whole screen; returns the total and the visible number of lines.
pub(super) fn draw(first: usize, keys: &Keymap, theme: &Theme, frame: &mut Frame, area: Rect) -> (usize, usize) {
    frame.render_widget(Clear, area);
    let all = content(keys, theme);
    let height = usize::from(area.height).saturating_sub(1);
    let first = first.min(all.len().saturating_sub(height));
    let remark = if all.len() > height { "↓ ↑ scroll, any other key closes" } else { "any key closes" };
    let area = panel(frame, theme, area, true, "Keys", Span::styled(remark, theme.dim));
    let count = all.len();
    lines(frame, area, all.into_iter().skip(first));
    (count, height)
}

fn content(keys: &Keymap, theme: &Theme) -> Vec<Line<'static>> {
    let mut content = Vec::new();
    let bound = |place: &Place| keys.all().any(|binding| binding.place == *place);
    for place in Place::ALL.into_iter().filter(bound) {
        content.push(Line::styled(format!(" {}", place.title()), theme.plain));
        for binding in keys.all().filter(|binding| binding.place == place && !binding.keys.is_empty()) {
            let keys = Span::styled(format!("   {}", fit(&binding.keys_text(), KEYS)), theme.accent);
            content.push(Line::from_iter([keys, Span::styled(binding.what, theme.plain)]));
        }
    }
    content
}
