//! The mouse: clicks on tabs, column heads, rows, panels and the keys in the last line, and the wheel.
use super::{models, navigate, scroll::scrolled, table};
use crate::{
    keymap::{Focus, NavigateAction, Page, Panel, ScrollAction},
    state::{State, hints::hint_at},
    update::{
        effect::Effect,
        event::{Mouse, MouseKind},
    },
};

/// Lines scrolled by one step of the mouse wheel.
const WHEEL_LINES: usize = 3;

/// Handles a click or a step of the wheel.
pub(super) fn on_mouse(state: &mut State, mouse: Mouse) -> Vec<Effect> {
    if state.operations.dialog.is_some() || state.preferences.is_commanding {
        return Vec::new();
    }
    if let Some(at) = state.screen.help {
        let extent = state.screen.extent;
        let last = extent.help_lines.saturating_sub(extent.help_height);
        state.screen.help = match mouse.kind {
            MouseKind::Click => None,
            MouseKind::WheelUp => Some(scrolled(at, ScrollAction::Up, extent.help_height, last)),
            MouseKind::WheelDown => Some(scrolled(at, ScrollAction::Down, extent.help_height, last)),
        };
        return Vec::new();
    }
    match mouse.kind {
        MouseKind::Click => return click(state, mouse.x, mouse.y),
        MouseKind::WheelUp => wheel(state, mouse, ScrollAction::Up),
        MouseKind::WheelDown => wheel(state, mouse, ScrollAction::Down),
    }
    Vec::new()
}

/// The panel under the pointer, if the page has several.
fn panel_at(state: &State, x: u16, y: u16) -> Option<Panel> {
    let place = state.screen.extent.panels.iter().position(|panel| panel.contains(x, y))?;
    state.screen.focus.page.panels().get(place).copied()
}

/// Scrolls the panel under the pointer; the focus stays.
fn wheel(state: &mut State, mouse: Mouse, action: ScrollAction) {
    let focus = state.screen.focus;
    if !focus.is_typing() {
        state.screen.focus.panel = panel_at(state, mouse.x, mouse.y).unwrap_or(focus.panel);
    }
    (0..WHEEL_LINES).for_each(|_| navigate::scroll(state, action));
    state.screen.focus = focus;
}

/// Handles a click: on a key in the last line as the key itself.
fn click(state: &mut State, x: u16, y: u16) -> Vec<Effect> {
    state.screen.notice = None;
    let extent = state.screen.extent;
    if extent.footer.contains(x, y) {
        let hint = hint_at(state, extent.footer.width, x - extent.footer.x);
        return hint.and_then(|hint| hint.action).map_or_else(Vec::new, |action| super::act(state, action));
    }
    let tab = Page::ALL.into_iter().zip(extent.tabs).find(|(_, tab)| tab.contains(x, y));
    if let Some((page, _)) = tab {
        state.screen.focus = Focus::first_of(page);
    } else if table::click_head(state, x, y) {
        return Vec::new();
    } else if table::click(state, x, y) {
        if state.screen.focus.page == Page::Models {
            return models::choose_selected(state);
        }
        navigate::act(state, NavigateAction::Open);
    } else if let Some(panel) = panel_at(state, x, y) {
        state.screen.focus.panel = panel;
    }
    Vec::new()
}
