//! The line of tabs: number and title of each page; titles are dropped if the screen is too narrow for all of them.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{Area, Page, State},
    view::{format::width, theme::Theme},
};

/// Renders the line; returns the area of each tab.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> [Area; Page::ALL.len()] {
    let long = |page: Page| format!(" {} {} ", page.index() + 1, page.title());
    let all: usize = Page::ALL.into_iter().map(|page| width(&long(page))).sum();
    let fits = all < usize::from(area.width);
    let mut spans = Vec::new();
    let mut tabs = [Area::default(); Page::ALL.len()];
    let mut x = area.x;
    for page in Page::ALL {
        let is_shown = page == state.screen.focus.page;
        let text = if fits || is_shown { long(page) } else { format!(" {} ", page.index() + 1) };
        let cells = (width(&text) as u16).min(area.right().saturating_sub(x));
        tabs[page.index()] = Area { x, y: area.y, width: cells, height: 1 };
        x += cells;
        spans.push(Span::styled(text, if is_shown { theme.tab } else { theme.dim }));
    }
    frame.render_widget(Line::from_iter(spans), area);
    tabs
}
