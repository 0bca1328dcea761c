//! The one table of keys: what update obeys, what the help page and the footer show. Knows no terminal library.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::state::Focus;

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

/// A key press. A shifted letter is its capital; shift counts only for keys that print nothing.
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

    const fn character(letter: char) -> Self {
        Self::plain(KeyCode::Char(letter))
    }

    const fn with_alt(code: KeyCode) -> Self {
        Self { alt: true, ..Self::plain(code) }
    }

    const fn with_control(code: KeyCode) -> Self {
        Self { control: true, ..Self::plain(code) }
    }

    const fn with_shift(code: KeyCode) -> Self {
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

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding says in words what its action does")]
pub enum Action {
    Interrupt,
    Escape,
    FocusNext,
    FocusPrevious,
    Quit,
    Help,
    FocusPrompt,
    AssignAgain,
    Restart,
    Exclude,
    PageCluster,
    PageSync,
    SyncColumns,
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
    RankPrevious,
    RankNext,
    Submit,
    NewLine,
    CursorLeft,
    CursorRight,
    WordLeft,
    WordRight,
    LineStart,
    LineEnd,
    LineUp,
    LineDown,
    EraseBefore,
    EraseAfter,
    EraseWord,
    EraseToStart,
    EraseToEnd,
}

/// Where a binding holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Everywhere.
    Anywhere,
    /// Everywhere but in the prompt box.
    Panels,
    /// In the prompt box.
    Prompt,
}

impl Place {
    /// Heading on the help page.
    pub fn title(self) -> &'static str {
        match self {
            Self::Anywhere => "Anywhere",
            Self::Panels => "Outside of the prompt box",
            Self::Prompt => "In the prompt box",
        }
    }

    fn holds(self, focus: Focus) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Panels => focus != Focus::Prompt,
            Self::Prompt => focus == Focus::Prompt,
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// Where it holds.
    pub place: Place,
    /// Keys that mean the same.
    pub keys: &'static [Key],
    /// What they ask for.
    pub action: Action,
    /// What it does, in words.
    pub what: &'static str,
    /// Two words for the footer; empty = not shown there.
    pub short: &'static str,
}

impl Binding {
    /// The keys as people read them.
    pub fn keys_text(&self) -> String {
        self.keys.iter().map(Key::to_string).collect::<Vec<_>>().join(" ")
    }
}

const fn bind(place: Place, keys: &'static [Key], action: Action, what: &'static str, short: &'static str) -> Binding {
    Binding { place, keys, action, what, short }
}

const fn key(code: KeyCode) -> Key {
    Key::plain(code)
}

/// All bindings. The first that holds for a key wins.
pub const BINDINGS: &[Binding] = &{
    use KeyCode::*;
    use Place::{Anywhere, Panels, Prompt};
    [
        bind(Anywhere, &[Key::control('c')], Action::Interrupt, "cancel what is generated, else quit", ""),
        bind(
            Anywhere,
            &[key(Esc)],
            Action::Escape,
            "cancel; end a restart after its node; leave the prompt box",
            "cancel",
        ),
        bind(Anywhere, &[key(Tab)], Action::FocusNext, "to the next panel", "panel"),
        bind(Anywhere, &[Key::with_shift(Tab)], Action::FocusPrevious, "to the previous panel", ""),
        bind(Panels, &[Key::character('q')], Action::Quit, "quit", "quit"),
        bind(Panels, &[Key::character('?'), key(Function(1))], Action::Help, "this help", "help"),
        bind(Panels, &[Key::character('i'), key(Enter)], Action::FocusPrompt, "to the prompt box", ""),
        bind(Panels, &[Key::character('r')], Action::AssignAgain, "assign the topology again", "assign"),
        bind(Panels, &[Key::character('1')], Action::PageCluster, "the cluster: nodes, layers of one, text", ""),
        bind(Panels, &[Key::character('2')], Action::PageSync, "all ranks side by side, the latest first", "ranks"),
        bind(Panels, &[Key::character('v')], Action::SyncColumns, "percentiles, or own, wait and wire", ""),
        bind(Panels, &[Key::character('R')], Action::Restart, "restart all nodes, one by one", "restart"),
        bind(Panels, &[Key::character('x')], Action::Exclude, "take the selected node out, or in again", "out/in"),
        bind(Panels, &[key(Up), Key::character('k')], Action::Up, "up: a line, a layer, a node", ""),
        bind(Panels, &[key(Down), Key::character('j')], Action::Down, "down: a line, a layer, a node", ""),
        bind(Panels, &[key(PageUp)], Action::PageUp, "up a page", ""),
        bind(Panels, &[key(PageDown), Key::character(' ')], Action::PageDown, "down a page", ""),
        bind(Panels, &[key(Home), Key::character('g')], Action::Top, "to the top", ""),
        bind(Panels, &[key(End), Key::character('G')], Action::Bottom, "to the bottom, and follow", ""),
        bind(Panels, &[key(Left), Key::character('h')], Action::RankPrevious, "layers of the previous node", ""),
        bind(Panels, &[key(Right), Key::character('l')], Action::RankNext, "layers of the next node", "node"),
        bind(Prompt, &[key(Enter)], Action::Submit, "generate", "generate"),
        bind(Prompt, &[Key::with_alt(Enter), Key::control('j')], Action::NewLine, "a new line in the prompt", ""),
        bind(Prompt, &[key(Function(1))], Action::Help, "this help", "help"),
        bind(Prompt, &[key(Up), Key::control('p')], Action::LineUp, "line up, else an older prompt", "older"),
        bind(Prompt, &[key(Down), Key::control('n')], Action::LineDown, "line down, else a newer prompt", ""),
        bind(Prompt, &[key(Left), Key::control('b')], Action::CursorLeft, "left", ""),
        bind(Prompt, &[key(Right), Key::control('f')], Action::CursorRight, "right", ""),
        bind(Prompt, &[Key::with_control(Left), Key::with_alt(Char('b'))], Action::WordLeft, "a word left", ""),
        bind(Prompt, &[Key::with_control(Right), Key::with_alt(Char('f'))], Action::WordRight, "a word right", ""),
        bind(Prompt, &[key(Home), Key::control('a')], Action::LineStart, "to the start of the line", ""),
        bind(Prompt, &[key(End), Key::control('e')], Action::LineEnd, "to the end of the line", ""),
        bind(Prompt, &[key(Backspace), Key::control('h')], Action::EraseBefore, "erase before the cursor", ""),
        bind(Prompt, &[key(Delete), Key::control('d')], Action::EraseAfter, "erase after the cursor", ""),
        bind(Prompt, &[Key::control('w'), Key::with_alt(Backspace)], Action::EraseWord, "erase a word", ""),
        bind(Prompt, &[Key::control('u')], Action::EraseToStart, "erase to the start of the line", ""),
        bind(Prompt, &[Key::control('k')], Action::EraseToEnd, "erase to the end of the line", ""),
        bind(Prompt, &[key(PageUp)], Action::PageUp, "text up a page", ""),
        bind(Prompt, &[key(PageDown)], Action::PageDown, "text down a page", ""),
    ]
};

/// What a key asks for where the focus is; `None` for a key without a meaning there.
pub fn action(focus: Focus, pressed: Key) -> Option<Action> {
    bindings(focus).find(|binding| binding.keys.contains(&pressed)).map(|binding| binding.action)
}

/// What a key asks for while a question waits for its answer: Enter is yes, Esc and Ctrl-C are no, and the reason is
/// edited as the prompt is.
pub fn dialog_action(pressed: Key) -> Option<Action> {
    match action(Focus::Prompt, pressed)? {
        Action::Interrupt => Some(Action::Escape),
        Action::NewLine | Action::LineUp | Action::LineDown => None,
        other => Some(other),
    }
}

/// The bindings that hold where the focus is.
pub fn bindings(focus: Focus) -> impl Iterator<Item = &'static Binding> {
    BINDINGS.iter().filter(move |binding| binding.place.holds(focus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things_in_one_place() {
        for focus in [Focus::Prompt, Focus::Text] {
            let keys: Vec<Key> = bindings(focus).flat_map(|binding| binding.keys).copied().collect();
            for (index, key) in keys.iter().enumerate() {
                assert!(!keys[..index].contains(key), "{key} is bound twice for {focus:?}");
            }
        }
    }

    #[test]
    fn no_letter_is_bound_in_the_prompt_box() {
        for key in bindings(Focus::Prompt).flat_map(|binding| binding.keys) {
            let types = matches!(key.code, KeyCode::Char(_)) && !key.control && !key.alt;
            assert!(!types, "{key} could not be typed");
        }
    }

    #[test]
    fn keys_read_as_people_write_them() {
        assert_eq!(Key::control('c').to_string(), "Ctrl-C");
        assert_eq!(Key::with_alt(KeyCode::Enter).to_string(), "Alt-Enter");
        assert_eq!(Key::with_shift(KeyCode::Tab).to_string(), "Shift-Tab");
    }
}
