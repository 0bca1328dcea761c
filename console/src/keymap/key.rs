//! Keys as the console's own type, independent of the terminal library.
use std::fmt;

use serde::{Deserialize, Serialize};

/// A key without its modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys are named as they are on a keyboard")]
pub enum KeyCode {
    Char(char),
    Enter,
    Esc,
    Tab,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    PageUp,
    PageDown,
    Function(u8),
}

/// A key press. A shifted letter is its capital; `shift` is used only with keys that produce no character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The key.
    pub code: KeyCode,
    /// Control was held.
    pub control: bool,
    /// Alt was held.
    pub alt: bool,
    /// Shift was held (never for `Char`).
    pub shift: bool,
}

impl Key {
    /// A key without modifiers.
    pub const fn plain(code: KeyCode) -> Self {
        Self { code, control: false, alt: false, shift: false }
    }

    /// Control and a letter.
    pub const fn control(letter: char) -> Self {
        Self { control: true, ..Self::plain(KeyCode::Char(letter)) }
    }

    pub(super) const fn character(letter: char) -> Self {
        Self::plain(KeyCode::Char(letter))
    }

    pub(super) const fn with_alt(code: KeyCode) -> Self {
        Self { alt: true, ..Self::plain(code) }
    }

    pub(super) const fn with_control(code: KeyCode) -> Self {
        Self { control: true, ..Self::plain(code) }
    }

    /// Whether the key enters a character in a text field.
    pub fn types(self) -> bool {
        matches!(self.code, KeyCode::Char(_)) && !self.control && !self.alt
    }

    pub(super) const fn with_shift(code: KeyCode) -> Self {
        Self { shift: true, ..Self::plain(code) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (held, name) in [(self.control, "Ctrl-"), (self.alt, "Alt-"), (self.shift, "Shift-")] {
            text.push_str(if held { name } else { "" });
        }
        match self.code {
            KeyCode::Char(' ') => text.push_str("Space"),
            KeyCode::Char(letter) if self.control => text.extend(letter.to_uppercase()),
            KeyCode::Char(letter) => text.push(letter),
            KeyCode::Left => text.push('←'),
            KeyCode::Right => text.push('→'),
            KeyCode::Up => text.push('↑'),
            KeyCode::Down => text.push('↓'),
            KeyCode::PageUp => text.push_str("PgUp"),
            KeyCode::PageDown => text.push_str("PgDn"),
            KeyCode::Function(number) => text.push_str(&format!("F{number}")),
            other => text.push_str(&format!("{other:?}")),
        }
        f.pad(&text)
    }
}
