//! The mouse: clicks on tabs and rows, and the wheel.
use super::{models, navigate, scroll::scrolled, table};
use crate::{
    keymap::{Focus, NavigateAction, Page, ScrollAction},
    state::State,
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
        MouseKind::WheelUp => (0..WHEEL_LINES).for_each(|_| navigate::scroll(state, ScrollAction::Up)),
        MouseKind::WheelDown => (0..WHEEL_LINES).for_each(|_| navigate::scroll(state, ScrollAction::Down)),
    }
    Vec::new()
}

fn click(state: &mut State, x: u16, y: u16) -> Vec<Effect> {
    let tab = Page::ALL.into_iter().zip(state.screen.extent.tabs).find(|(_, tab)| tab.contains(x, y));
    if let Some((page, _)) = tab {
        state.screen.focus = Focus::first_of(page);
    } else if table::click(state, x, y) {
        if state.screen.focus.page == Page::Models {
            return models::choose_selected(state);
        }
        navigate::act(state, NavigateAction::Open);
    }
    Vec::new()
}
