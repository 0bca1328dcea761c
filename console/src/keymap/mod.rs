//! The table of key bindings: `update` executes it, the help page and the footer display it. Independent of the
//! terminal library.
mod custom;
pub mod page;

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

pub use custom::{Keymap, KeymapError};

use crate::state::{Focus, Page, Spot};

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

    const fn character(letter: char) -> Self {
        Self::plain(KeyCode::Char(letter))
    }

    const fn with_alt(code: KeyCode) -> Self {
        Self { alt: true, ..Self::plain(code) }
    }

    const fn with_control(code: KeyCode) -> Self {
        Self { control: true, ..Self::plain(code) }
    }

    /// Whether the key enters a character in a text field.
    pub fn types(self) -> bool {
        matches!(self.code, KeyCode::Char(_)) && !self.control && !self.alt
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

/// What a key does.
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
    Cordon,
    Drain,
    AbortAssignment,
    CancelRequest,
    Show(Page),
    PageNext,
    PagePrevious,
    Open,
    Terms,
    Pin,
    SyncMetric,
    Older,
    Newer,
    MuchOlder,
    MuchNewer,
    Live,
    Filter,
    KeepFilter,
    SortNext,
    SortPrevious,
    SortReverse,
    Severity,
    Plan,
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
    Command,
    Freeze,
    Mouse,
    Record,
    ExportData,
    ExportScreen,
}

impl Action {
    /// Whether the action affects the cluster; a read-only dashboard refuses it.
    pub fn acts(self) -> bool {
        use Action::{AbortAssignment, AssignAgain, CancelRequest, Cordon, Drain, Exclude, Restart, Submit};
        matches!(self, Submit | CancelRequest | AssignAgain | AbortAssignment | Restart | Exclude | Cordon | Drain)
    }
}

/// The context in which a binding applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Everywhere.
    Anywhere,
    /// Everywhere except in the prompt box.
    Panels,
    /// On pages with a sortable, filterable table.
    Tables,
    /// While a filter is being typed.
    Filter,
    /// In the prompt box.
    Prompt,
    /// On one page, outside the prompt box.
    On(Page),
}

impl Place {
    /// In the order of the help page.
    pub const ALL: [Self; 5 + Page::ALL.len()] = [
        Self::Anywhere,
        Self::Panels,
        Self::Tables,
        Self::Filter,
        Self::Prompt,
        Self::On(Page::Cluster),
        Self::On(Page::Topology),
        Self::On(Page::Sync),
        Self::On(Page::Generate),
        Self::On(Page::Requests),
        Self::On(Page::Events),
        Self::On(Page::Node),
    ];

    /// The section name in a key file.
    pub fn section(self) -> String {
        match self {
            Self::On(page) => page.title().to_lowercase(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// Heading on the help page.
    pub fn title(self) -> String {
        match self {
            Self::Anywhere => "Anywhere (letters and digits alone: outside of the prompt box)".to_owned(),
            Self::Panels => "Outside of the prompt box".to_owned(),
            Self::Tables => "In tables (Cluster, Topology, Requests, Events)".to_owned(),
            Self::Filter => "While a filter is typed".to_owned(),
            Self::Prompt => "In the prompt box".to_owned(),
            Self::On(page) => format!("On the page {}", page.title()),
        }
    }

    /// Whether a binding of this context applies at `spot`.
    pub fn holds(self, spot: Spot) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Panels => !spot.is_typing(),
            Self::Tables => !spot.is_typing() && spot.page.has_table(),
            Self::Filter => spot.focus == Focus::Filter,
            Self::Prompt => spot.focus == Focus::Prompt,
            Self::On(page) => page == spot.page && !spot.is_typing(),
        }
    }
}

impl Action {
    /// The name in key files and on the command line: `page-next`, `show-sync`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars().filter(|letter| *letter != ')') {
            if (letter.is_uppercase() || letter == '(') && !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
            name.extend(letter.to_lowercase().filter(|letter| *letter != '('));
        }
        name
    }
}

/// A row of the key table.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The context in which it applies.
    pub place: Place,
    /// Equivalent keys.
    pub keys: Cow<'static, [Key]>,
    /// The action that the keys trigger.
    pub action: Action,
    /// Description for the help page.
    pub what: &'static str,
    /// Two words for the footer; empty = not shown there.
    pub short: &'static str,
}

impl Binding {
    /// Whether the binding edits text.
    pub fn is_typing(&self) -> bool {
        matches!(self.place, Place::Prompt | Place::Filter)
    }

    /// The keys for display.
    pub fn keys_text(&self) -> String {
        self.keys.iter().map(Key::to_string).collect::<Vec<_>>().join(" ")
    }
}

const fn bind(place: Place, keys: &'static [Key], action: Action, what: &'static str, short: &'static str) -> Binding {
    Binding { place, keys: Cow::Borrowed(keys), action, what, short }
}

const fn page(keys: &'static [Key], page: Page, what: &'static str) -> Binding {
    bind(Place::Anywhere, keys, Action::Show(page), what, "")
}

const fn key(code: KeyCode) -> Key {
    Key::plain(code)
}

/// The built-in bindings. The first match for a key wins.
pub const BINDINGS: &[Binding] = &{
    use KeyCode::*;
    use Place::{Anywhere, On, Panels, Prompt, Tables};
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
        page(&[Key::character('1'), Key::with_alt(Char('1'))], Page::Cluster, "the nodes, and how the cluster does"),
        page(&[Key::character('2'), Key::with_alt(Char('2'))], Page::Topology, "what runs where, and what could"),
        page(&[Key::character('3'), Key::with_alt(Char('3'))], Page::Sync, "all ranks side by side, the latest first"),
        page(&[Key::character('4'), Key::with_alt(Char('4'))], Page::Generate, "prompt and text"),
        page(&[Key::character('5'), Key::with_alt(Char('5'))], Page::Requests, "requests that run, wait and are over"),
        page(&[Key::character('6'), Key::with_alt(Char('6'))], Page::Events, "what happened"),
        page(&[Key::character('7'), Key::with_alt(Char('7'))], Page::Node, "one node: details, layers"),
        bind(Panels, &[Key::character(']')], Action::PageNext, "the next page", "page"),
        bind(Panels, &[Key::character('[')], Action::PagePrevious, "the previous page", ""),
        bind(Panels, &[Key::character('i')], Action::FocusPrompt, "to the prompt box", "prompt"),
        bind(
            Panels,
            &[key(Enter)],
            Action::Open,
            "open the node of the row; assign the candidate; to the prompt box",
            "",
        ),
        bind(
            Panels,
            &[Key::character(':')],
            Action::Command,
            "the command line: every action by its name, Tab completes",
            "command",
        ),
        bind(Panels, &[Key::character('f')], Action::Freeze, "freeze the picture; go on", "freeze"),
        bind(Panels, &[Key::character('e')], Action::ExportData, "write the page's data to a file (CSV)", ""),
        bind(Panels, &[Key::character('E')], Action::ExportScreen, "write the screen to a file (SVG)", ""),
        bind(Anywhere, &[Key::control('r')], Action::Record, "write this session to a file; end that", ""),
        bind(
            Panels,
            &[Key::character('m')],
            Action::Mouse,
            "leave the mouse to the terminal, for selecting text; take it again",
            "",
        ),
        bind(Panels, &[Key::character('r')], Action::AssignAgain, "assign the topology again", "assign"),
        bind(
            Panels,
            &[Key::character('R')],
            Action::Restart,
            "restart all nodes, one by one; pause, resume, end that",
            "restart",
        ),
        bind(Panels, &[Key::character('A')], Action::AbortAssignment, "abort the assignment under way", ""),
        bind(Panels, &[Key::character('x')], Action::Exclude, "take the selected node out, or in again", "out/in"),
        bind(Panels, &[Key::character('c')], Action::Cordon, "nothing new on the selected node (cordon), or again", ""),
        bind(Panels, &[Key::character('d')], Action::Drain, "cordon it, and wait until nothing runs there", ""),
        bind(Panels, &[key(Up), Key::character('k')], Action::Up, "up: a line, a layer, a node", ""),
        bind(Panels, &[key(Down), Key::character('j')], Action::Down, "down: a line, a layer, a node", ""),
        bind(Panels, &[key(PageUp)], Action::PageUp, "up a page", ""),
        bind(Panels, &[key(PageDown), Key::character(' ')], Action::PageDown, "down a page", ""),
        bind(Panels, &[key(Home), Key::character('g')], Action::Top, "to the top", ""),
        bind(Panels, &[key(End), Key::character('G')], Action::Bottom, "to the bottom, and follow", ""),
        bind(Panels, &[key(Left), Key::character('h')], Action::RankPrevious, "layers of the previous node", ""),
        bind(Panels, &[key(Right), Key::character('l')], Action::RankNext, "layers of the next node", "node"),
        bind(
            Tables,
            &[Key::character('/')],
            Action::Filter,
            "filter: text, !others, ~expression; Esc: all again",
            "filter",
        ),
        bind(Tables, &[Key::character('s'), Key::character('>')], Action::SortNext, "sort by the next column", "sort"),
        bind(Tables, &[Key::character('<')], Action::SortPrevious, "sort by the previous column", ""),
        bind(Tables, &[Key::character('S')], Action::SortReverse, "sort the other way round", ""),
        bind(Place::Filter, &[key(Enter)], Action::KeepFilter, "keep the filter", "keep"),
        bind(Place::Filter, &[key(Backspace), Key::control('h')], Action::EraseBefore, "erase a letter", ""),
        bind(Place::Filter, &[Key::control('w'), Key::with_alt(Backspace)], Action::EraseWord, "erase a word", ""),
        bind(Place::Filter, &[Key::control('u')], Action::EraseToStart, "erase all", ""),
        bind(Place::Filter, &[key(Up)], Action::Up, "a row up", ""),
        bind(Place::Filter, &[key(Down)], Action::Down, "a row down", ""),
        bind(
            On(Page::Topology),
            &[Key::character('p')],
            Action::Plan,
            "ask the planner; Enter assigns a candidate",
            "plan",
        ),
        bind(
            On(Page::Events),
            &[Key::character('w')],
            Action::Severity,
            "all, warnings and errors, errors",
            "severity",
        ),
        bind(
            On(Page::Sync),
            &[Key::character('v')],
            Action::SyncMetric,
            "map p50, p95, p99, own, wait or wire",
            "show",
        ),
        bind(On(Page::Sync), &[Key::character('<')], Action::Older, "a second back", "back"),
        bind(On(Page::Sync), &[Key::character('>')], Action::Newer, "a second on", ""),
        bind(On(Page::Sync), &[Key::character('{')], Action::MuchOlder, "ten seconds back", ""),
        bind(On(Page::Sync), &[Key::character('}')], Action::MuchNewer, "ten seconds on", ""),
        bind(On(Page::Sync), &[Key::character('0')], Action::Live, "to what is now", ""),
        bind(
            On(Page::Generate),
            &[Key::character('p'), key(Function(2))],
            Action::Terms,
            "what answers are asked for",
            "ask for",
        ),
        bind(
            On(Page::Generate),
            &[Key::character('P'), key(Function(3))],
            Action::Pin,
            "pin the result, compare the next",
            "pin",
        ),
        bind(On(Page::Requests), &[Key::character('X')], Action::CancelRequest, "end the selected request", "end it"),
        bind(Prompt, &[key(Enter)], Action::Submit, "generate", "generate"),
        bind(Prompt, &[key(Function(2))], Action::Terms, "what answers are asked for", "ask for"),
        bind(Prompt, &[key(Function(3))], Action::Pin, "pin the result, compare the next", "pin"),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every panel of every page.
    fn spots() -> impl Iterator<Item = Spot> {
        Page::ALL.into_iter().flat_map(|page| page.panels().iter().map(move |focus| Spot { page, focus: *focus }))
    }

    #[test]
    fn no_key_is_bound_twice_in_one_context() {
        for spot in spots() {
            let keys: Vec<Key> = Keymap::default().bindings(spot).flat_map(|binding| binding.keys.to_vec()).collect();
            for (index, key) in keys.iter().enumerate() {
                assert!(!keys[..index].contains(key), "{key} is bound twice for {spot:?}");
            }
        }
    }

    #[test]
    fn letters_are_unbound_in_the_prompt_box() {
        for key in BINDINGS.iter().flat_map(|binding| binding.keys.iter()).filter(|key| key.types()) {
            assert_eq!(Keymap::default().action(Spot::first_of(Page::Generate), *key), None, "{key} cannot be typed");
        }
    }

    #[test]
    fn keys_display_in_common_notation() {
        assert_eq!(Key::control('c').to_string(), "Ctrl-C");
        assert_eq!(Key::with_alt(KeyCode::Enter).to_string(), "Alt-Enter");
        assert_eq!(Key::with_shift(KeyCode::Tab).to_string(), "Shift-Tab");
    }
}
