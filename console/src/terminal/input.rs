//! Terminal input as the dashboard's own events.
use std::{future::poll_fn, pin::Pin};

use crossterm::event::{
    Event as TerminalEvent, EventStream, KeyCode as TerminalCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton,
    MouseEvent, MouseEventKind,
};
use futures_core::Stream;

use crate::{
    keymap::{Key, KeyCode},
    update::event::{Event, Mouse, MouseKind, Signal},
};

/// The next key, click, paste or resize; `None` for unused input. A closed terminal becomes a hang-up signal.
pub(crate) async fn next_input(keys: &mut EventStream) -> Option<Event> {
    match poll_fn(|context| Pin::new(&mut *keys).poll_next(context)).await {
        Some(Ok(event)) => translate(event),
        Some(Err(_)) | None => Some(Event::Signal(Signal::HangUp)),
    }
}

fn translate(event: TerminalEvent) -> Option<Event> {
    match event {
        TerminalEvent::Key(key) if key.kind != KeyEventKind::Release => translate_key(key).map(Event::Key),
        TerminalEvent::Mouse(mouse) => translate_mouse(mouse).map(Event::Mouse),
        TerminalEvent::Paste(text) => Some(Event::Paste(text)),
        TerminalEvent::Resize(..) => Some(Event::Resize),
        _ => None,
    }
}

fn translate_mouse(mouse: MouseEvent) -> Option<Mouse> {
    let kind = match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => MouseKind::Click,
        MouseEventKind::ScrollUp => MouseKind::WheelUp,
        MouseEventKind::ScrollDown => MouseKind::WheelDown,
        _ => return None,
    };
    Some(Mouse { kind, x: mouse.column, y: mouse.row })
}

fn translate_key(key: KeyEvent) -> Option<Key> {
    let mut shift = key.modifiers.contains(KeyModifiers::SHIFT);
    let code = match key.code {
        TerminalCode::Char(letter) => {
            shift = false;
            KeyCode::Char(letter)
        }
        TerminalCode::BackTab => {
            shift = true;
            KeyCode::Tab
        }
        TerminalCode::Enter => KeyCode::Enter,
        TerminalCode::Esc => KeyCode::Esc,
        TerminalCode::Tab => KeyCode::Tab,
        TerminalCode::Backspace => KeyCode::Backspace,
        TerminalCode::Delete => KeyCode::Delete,
        TerminalCode::Left => KeyCode::Left,
        TerminalCode::Right => KeyCode::Right,
        TerminalCode::Up => KeyCode::Up,
        TerminalCode::Down => KeyCode::Down,
        TerminalCode::Home => KeyCode::Home,
        TerminalCode::End => KeyCode::End,
        TerminalCode::PageUp => KeyCode::PageUp,
        TerminalCode::PageDown => KeyCode::PageDown,
        TerminalCode::F(number) => KeyCode::Function(number),
        _ => return None,
    };
    let (control, alt) = (key.modifiers.contains(KeyModifiers::CONTROL), key.modifiers.contains(KeyModifiers::ALT));
    Some(Key { code, control, alt, shift })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keymap::{Action, AppAction, Focus, Keymap, NavigateAction, OperateAction, Page, Panel, ScrollAction};

    #[test]
    fn terminal_keys_become_table_keys() {
        let press = |code, modifiers| {
            let event = translate(TerminalEvent::Key(KeyEvent::new(code, modifiers)));
            let Some(Event::Key(key)) = event else { panic!("{code:?} is not a key: {event:?}") };
            Keymap::default().action(Focus { page: Page::Generate, panel: Panel::Text }, key)
        };
        let (none, shift) = (KeyModifiers::NONE, KeyModifiers::SHIFT);
        assert_eq!(press(TerminalCode::Char('c'), KeyModifiers::CONTROL), Some(Action::App(AppAction::Interrupt)));
        assert_eq!(press(TerminalCode::Char('?'), shift), Some(Action::App(AppAction::Help)));
        assert_eq!(press(TerminalCode::Char('G'), shift), Some(Action::Scroll(ScrollAction::Bottom)));
        assert_eq!(press(TerminalCode::BackTab, shift), Some(Action::Navigate(NavigateAction::FocusPrevious)));
        assert_eq!(press(TerminalCode::Tab, none), Some(Action::Navigate(NavigateAction::FocusNext)));
        assert_eq!(press(TerminalCode::Char('c'), none), Some(Action::Operate(OperateAction::Cordon)));
    }

    #[test]
    fn mouse_reports_only_left_clicks_and_the_wheel() {
        let at = |kind| {
            translate(TerminalEvent::Mouse(MouseEvent { kind, column: 4, row: 2, modifiers: KeyModifiers::NONE }))
        };
        let said = |kind| Some(Event::Mouse(Mouse { kind, x: 4, y: 2 }));
        assert_eq!(at(MouseEventKind::Down(MouseButton::Left)), said(MouseKind::Click));
        assert_eq!(at(MouseEventKind::ScrollUp), said(MouseKind::WheelUp));
        assert_eq!(at(MouseEventKind::Up(MouseButton::Left)), None);
        assert_eq!(at(MouseEventKind::Moved), None);
    }

    #[test]
    fn released_key_is_ignored() {
        let key = KeyEvent::new_with_kind(TerminalCode::Enter, KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(translate(TerminalEvent::Key(key)), None);
    }
}
