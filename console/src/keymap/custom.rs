//! The active key bindings: the built-in table with the changes from a key file. The file is validated as a whole, so
//! that no key of a valid keymap has two meanings in the same context.
use std::{
    borrow::Cow,
    str::FromStr,
    sync::{Arc, LazyLock},
};

use super::{
    Action, AppAction, BINDINGS, Binding, EditAction, Focus, Key, KeyCode, Page, Panel, Place, ReplayAction, TourAction,
};

static DEFAULT: LazyLock<Arc<[Binding]>> = LazyLock::new(|| BINDINGS.into());

/// The active key bindings.
#[derive(Clone, Debug, PartialEq)]
pub struct Keymap(Arc<[Binding]>);

impl Default for Keymap {
    fn default() -> Self {
        Self(Arc::clone(&DEFAULT))
    }
}

/// Why a key file is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct KeymapError {
    /// Line number, starting at 1.
    pub line: usize,
    /// The problem, and the valid values.
    pub reason: String,
}

/// One line of a key file.
struct KeyChange {
    line: usize,
    place: Place,
    name: String,
    keys: Vec<Key>,
}

impl Keymap {
    /// Applies a key file to the built-in table. The file is TOML: one section per context, with `action = "key"` or a
    /// list of keys.
    ///
    /// # Errors
    /// The first line with an unknown section, action or key, or with a key that already has a meaning in that context.
    pub fn read(text: &str) -> Result<Self, KeymapError> {
        let mut all: Vec<Binding> = BINDINGS.to_vec();
        let changes = changes(text)?;
        for change in &changes {
            match all
                .iter_mut()
                .find(|binding: &&mut Binding| binding.place == change.place && binding.action.name() == change.name)
            {
                Some(binding) => binding.keys = Cow::Owned(change.keys.clone()),
                None => return Err(no_action(change)),
            }
        }
        let keymap = Self(all.into());
        // If two lines bind the same key, the later one is rejected.
        for change in changes.iter().rev() {
            keymap.check(change)?;
        }
        for action in [Action::App(AppAction::Interrupt), Action::App(AppAction::Escape)] {
            if !keymap.all().any(|binding| binding.action == action && !binding.keys.is_empty()) {
                let name = action.name();
                let line = changes.iter().find(|change| change.name == name).map_or(1, |change| change.line);
                return Err(KeymapError { line, reason: format!("{name} has no key; bind at least one to it") });
            }
        }
        Ok(keymap)
    }

    /// A key file with the bindings that differ from the built-in ones; empty if none do.
    pub fn changed(&self) -> String {
        let mut text = String::new();
        for place in Place::ALL {
            let pairs = self.all().zip(BINDINGS).filter(|(own, usual)| own.place == place && own.keys != usual.keys);
            let lines: String = pairs
                .map(|(own, _)| {
                    let keys: Vec<String> =
                        own.keys.iter().map(|key| toml::Value::from(key.to_string()).to_string()).collect();
                    format!("{} = [{}]\n", own.action.name(), keys.join(", "))
                })
                .collect();
            if !lines.is_empty() {
                text += &format!("[{}]\n{lines}", place.section());
            }
        }
        text
    }

    /// All bindings. The first match for a key wins.
    pub fn all(&self) -> impl Iterator<Item = &Binding> {
        self.0.iter()
    }

    /// The bindings that apply in this context.
    pub fn bindings(&self, focus: Focus) -> impl Iterator<Item = &Binding> {
        self.all().filter(move |binding| binding.place.holds(focus))
    }

    /// The action bound to a key in this context; `None` if the key is unbound, or types a letter where text is
    /// entered.
    pub fn action(&self, focus: Focus, pressed: Key) -> Option<Action> {
        if focus.is_typing() && pressed.types() {
            return None;
        }
        self.bindings(focus).find(|binding| binding.keys.contains(&pressed)).map(|binding| binding.action)
    }

    /// The action of a key while a question or an input line is open: Enter confirms, Esc and Ctrl-C cancel, and
    /// editing keys work as in the prompt box.
    pub fn dialog_action(&self, pressed: Key) -> Option<Action> {
        match self.action(Focus { page: Page::Generate, panel: Panel::Prompt }, pressed)? {
            Action::App(AppAction::Interrupt) => Some(Action::App(AppAction::Escape)),
            Action::Edit(EditAction::NewLine)
            | Action::Edit(EditAction::LineUp)
            | Action::Edit(EditAction::LineDown) => None,
            other => Some(other),
        }
    }

    /// What a key does to the playback of a recording.
    pub fn replay_action(&self, pressed: Key) -> Option<ReplayAction> {
        let mut bound = self.all().filter(|binding| binding.place == Place::Replay && binding.keys.contains(&pressed));
        match bound.next()?.action {
            Action::Replay(action) => Some(action),
            _ => None,
        }
    }

    /// What a key does in the guided tour.
    pub fn tour_action(&self, pressed: Key) -> Option<TourAction> {
        let mut bound = self.all().filter(|binding| binding.place == Place::Tour && binding.keys.contains(&pressed));
        match bound.next()?.action {
            Action::Tour(action) => Some(action),
            _ => None,
        }
    }

    /// The first key of an action for display; the action's command if it has no key.
    pub fn key_of(&self, action: Action) -> String {
        let key = self.all().find(|binding| binding.action == action).and_then(|binding| binding.keys.first().copied());
        key.map_or_else(|| format!(":{}", action.name()), |key| key.to_string())
    }

    /// Checks that no key of a change has another meaning in any context where the change applies.
    fn check(&self, change: &KeyChange) -> Result<(), KeymapError> {
        let focuses =
            Page::ALL.into_iter().flat_map(|page| page.panels().iter().map(move |panel| Focus { page, panel: *panel }));
        for focus in focuses.filter(|focus| change.place.holds(*focus)) {
            for key in change.keys.iter().filter(|key| !(focus.is_typing() && key.types())) {
                let other = self.bindings(focus).find(|binding| {
                    binding.keys.contains(key)
                        && (binding.action.name() != change.name || binding.place != change.place)
                });
                if let Some(other) = other {
                    let (section, name) = (other.place.section(), other.action.name());
                    let reason = format!(
                        "{key} is already bound to {name} in [{section}]; rebind or unbind it: [{section}] {name} = []"
                    );
                    return Err(KeymapError { line: change.line, reason });
                }
            }
        }
        Ok(())
    }
}

/// Parses a key file line by line.
fn changes(text: &str) -> Result<Vec<KeyChange>, KeymapError> {
    let line_at = |place: usize| text.bytes().take(place).filter(|byte| *byte == b'\n').count() + 1;
    let table = toml::de::DeTable::parse(text).map_err(|error| KeymapError {
        line: line_at(error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })?;
    let mut changes = Vec::new();
    for (section, rows) in table.get_ref() {
        let error = |reason: String| KeymapError { line: line_at(section.span().start), reason };
        let Some(place) = Place::ALL.into_iter().find(|place| place.section() == section.get_ref().as_ref()) else {
            let places = Place::ALL.map(Place::section).join(", ");
            return Err(error(format!("unknown section [{}]; use one of {places}", section.get_ref())));
        };
        let toml::de::DeValue::Table(rows) = rows.get_ref() else {
            return Err(error(format!("{} is a section; write [{0}] on a line of its own", section.get_ref())));
        };
        for (name, value) in rows {
            let line = line_at(name.span().start);
            let keys = keys(value.get_ref()).map_err(|reason| KeymapError { line, reason })?;
            changes.push(KeyChange { line, place, name: name.get_ref().to_string(), keys });
        }
    }
    changes.sort_by_key(|change| change.line);
    Ok(changes)
}

fn keys(value: &toml::de::DeValue<'_>) -> Result<Vec<Key>, String> {
    match value {
        toml::de::DeValue::String(key) => Ok(vec![key.parse()?]),
        toml::de::DeValue::Array(keys) => keys
            .iter()
            .map(|key| match key.get_ref() {
                toml::de::DeValue::String(key) => key.parse(),
                _ => Err("a key must be a string, for example \"Ctrl-X\"".to_owned()),
            })
            .collect(),
        _ => Err("expected a key or a list of keys, for example [\"q\", \"Ctrl-X\"]".to_owned()),
    }
}

fn no_action(change: &KeyChange) -> KeymapError {
    let elsewhere = BINDINGS.iter().find(|binding| binding.action.name() == change.name);
    let name = &change.name;
    let reason = match elsewhere {
        Some(binding) => format!("{name} belongs to [{}]", binding.place.section()),
        None => format!("unknown action {name:?}; list the actions with console screen keys"),
    };
    KeymapError { line: change.line, reason }
}

impl FromStr for Key {
    type Err = String;

    /// Parses a key in the notation of the help page; arrows may also be words: `q`, `Ctrl-C`, `Alt-Enter`, `F1`, `Up`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut key = Self::plain(KeyCode::Esc);
        let mut rest = text;
        loop {
            let held = [("Ctrl-", &mut key.control), ("Alt-", &mut key.alt), ("Shift-", &mut key.shift)];
            let mut was_held = false;
            for (name, flag) in held {
                if let Some(after) = rest.strip_prefix(name).filter(|after| !after.is_empty()) {
                    (*flag, rest, was_held) = (true, after, true);
                }
            }
            if !was_held {
                break;
            }
        }
        let mut letters = rest.chars();
        key.code = match (letters.next(), letters.next(), rest) {
            (_, _, "Enter") => KeyCode::Enter,
            (_, _, "Esc") => KeyCode::Esc,
            (_, _, "Tab") => KeyCode::Tab,
            (_, _, "Space") => KeyCode::Char(' '),
            (_, _, "Backspace") => KeyCode::Backspace,
            (_, _, "Delete") => KeyCode::Delete,
            (_, _, "Left" | "←") => KeyCode::Left,
            (_, _, "Right" | "→") => KeyCode::Right,
            (_, _, "Up" | "↑") => KeyCode::Up,
            (_, _, "Down" | "↓") => KeyCode::Down,
            (_, _, "Home") => KeyCode::Home,
            (_, _, "End") => KeyCode::End,
            (_, _, "PgUp") => KeyCode::PageUp,
            (_, _, "PgDn") => KeyCode::PageDown,
            (Some(letter), None, _) if !letter.is_control() && letter != ' ' => {
                KeyCode::Char(if key.control { letter.to_ascii_lowercase() } else { letter })
            }
            (Some('F'), Some(_), _) if rest[1..].parse().is_ok_and(|number: u8| (1..=24).contains(&number)) => {
                KeyCode::Function(rest[1..].parse().map_err(|_| text.to_owned())?)
            }
            _ => {
                return Err(format!(
                    "unknown key {text:?}; use a letter, Enter, Esc, Tab, Space, Backspace, Delete, Left, Right, \
                     Up, Down, Home, End, PgUp, PgDn or F1 to F24, optionally prefixed with Ctrl-, Alt- or Shift-"
                ));
            }
        };
        if key.shift && matches!(key.code, KeyCode::Char(_)) {
            return Err(format!("{text:?}: write a shifted letter as its capital"));
        }
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_parses_back_from_its_display_form() {
        for key in BINDINGS.iter().flat_map(|binding| binding.keys.iter()) {
            assert_eq!(key.to_string().parse(), Ok(*key), "{key}");
        }
        assert_eq!("Ctrl-Alt-Up".parse(), Ok(Key { control: true, alt: true, ..Key::plain(KeyCode::Up) }));
        assert_eq!("-".parse(), Ok(Key::plain(KeyCode::Char('-'))));
    }

    #[test]
    fn file_changes_only_the_keys_it_names() {
        let keymap = Keymap::read("[panels]\nquit = \"Q\"\nhelp = [\"?\", \"F12\"]\n").expect("valid file");
        let focus = Focus::first_of(Page::Cluster);
        let action = |key: &str| keymap.action(focus, key.parse().expect("a key"));
        assert_eq!(
            (action("Q"), action("q"), action("F12")),
            (Some(Action::App(AppAction::Quit)), None, Some(Action::App(AppAction::Help)))
        );
        assert_eq!(action("Ctrl-C"), Some(Action::App(AppAction::Interrupt)));
        assert_eq!(keymap.key_of(Action::App(AppAction::Quit)), "Q");
        assert_eq!(Keymap::read(""), Ok(Keymap::default()));
        assert_eq!(Keymap::read(&keymap.changed()), Ok(keymap));
        assert_eq!(Keymap::default().changed(), "");
    }

    #[track_caller]
    fn check_refused(text: &str, line: usize, words: &str) {
        let error = Keymap::read(text).expect_err("file is rejected");
        assert!(error.line == line && error.reason.contains(words), "{error}");
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_number() {
        check_refused("[panels]\nquit = \n", 2, "");
        check_refused(
            "[panels]\n\nqiut = \"x\"\n",
            3,
            "unknown action \"qiut\"; list the actions with console screen keys",
        );
        check_refused("[nowhere]\nquit = \"x\"\n", 1, "unknown section [nowhere]; use one of anywhere, panels, tables");
        check_refused("quit = \"x\"\n", 1, "unknown section [quit]");
        check_refused("panels = 1\n", 1, "[panels] on a line of its own");
        check_refused("[panels]\nquit = \"Hyper-X\"\n", 2, "unknown key \"Hyper-X\"");
        check_refused("[panels]\nquit = 7\n", 2, "a list of keys");
        check_refused("[prompt]\nquit = \"F9\"\n", 2, "quit belongs to [panels]");
        check_refused("[panels]\nquit = \"Shift-x\"\n", 2, "its capital");
    }

    #[test]
    fn key_with_two_meanings_is_rejected_with_both() {
        check_refused("[panels]\nquit = \"R\"\n", 2, "R is already bound to restart in [panels]");
        check_refused("[panels]\nquit = \"F9\"\nhelp = \"F9\"\n", 3, "F9 is already bound to quit in [panels]");
        check_refused("[anywhere]\nescape = [\"Esc\", \"Down\"]\n", 2, "↓ is already bound to down in [panels]");
        check_refused("[anywhere]\ninterrupt = []\n", 2, "interrupt has no key");
        assert!(Keymap::read("[panels]\nquit = \"R\"\nrestart = []\n").is_ok());
    }
}
