//! Positions that scrolling keys lead to.
use crate::keymap::ScrollAction;

/// The position that a scrolling key leads to from `at`, with `page` lines per page and `last` as the maximum.
pub(super) fn scrolled(at: usize, action: ScrollAction, page: usize, last: usize) -> usize {
    // Keep one line of the old page on the new one.
    let page = page.saturating_sub(1).max(1);
    let at = match action {
        ScrollAction::Up => at.saturating_sub(1),
        ScrollAction::Down => at + 1,
        ScrollAction::PageUp => at.saturating_sub(page),
        ScrollAction::PageDown => at + page,
        ScrollAction::Top => 0,
        ScrollAction::Bottom => last,
    };
    at.min(last)
}
