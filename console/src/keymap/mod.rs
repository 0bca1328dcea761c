//! Pages, actions and the table of key bindings: `update` executes the actions, the help page and the footer display the
//! keys. Independent of the terminal library and of the dashboard's state.
mod action;
mod bindings;
mod custom;
mod key;
pub mod page;

use std::borrow::Cow;

pub use self::{
    action::{
        Action, AppAction, ChatAction, EditAction, GenerateAction, NavigateAction, OperateAction, ReplayAction,
        ScrollAction, TableAction, TourAction,
    },
    bindings::BINDINGS,
    custom::{Keymap, KeymapError},
    key::{Key, KeyCode},
    page::{Area, Focus, Page, Panel},
};

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
    /// In the prompt box of the page Chat.
    Message,
    /// On one page, outside the prompt box.
    On(Page),
    /// While a recording is played; these keys precede all others.
    Replay,
    /// During the guided tour, outside of the prompt box; these keys precede all others.
    Tour,
}

impl Place {
    /// In the order of the help page.
    pub const ALL: [Self; 8 + Page::ALL.len()] = [
        Self::Anywhere,
        Self::Panels,
        Self::Tables,
        Self::Filter,
        Self::Prompt,
        Self::Message,
        Self::On(Page::Cluster),
        Self::On(Page::Topology),
        Self::On(Page::Sync),
        Self::On(Page::Generate),
        Self::On(Page::Requests),
        Self::On(Page::Events),
        Self::On(Page::Node),
        Self::On(Page::Models),
        Self::On(Page::Chat),
        Self::Replay,
        Self::Tour,
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
            Self::Anywhere => "All pages (in the prompt box, letters and digits alone are text)".to_owned(),
            Self::Panels => "All pages, outside of the prompt box".to_owned(),
            Self::Tables => "Its table".to_owned(),
            Self::Filter => "While a filter is typed".to_owned(),
            Self::Prompt | Self::Message => "Its prompt box".to_owned(),
            Self::On(page) => format!("Page {}", page.title()),
            Self::Replay => "This recording".to_owned(),
            Self::Tour => "The tour".to_owned(),
        }
    }

    /// Whether a binding of this context applies at `focus`.
    pub fn holds(self, focus: Focus) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Panels => !focus.is_typing(),
            Self::Tables => !focus.is_typing() && focus.page.has_table(),
            Self::Filter => focus.panel == Panel::Filter,
            Self::Prompt => focus.panel == Panel::Prompt,
            Self::Message => focus.panel == Panel::Prompt && focus.page == Page::Chat,
            Self::On(page) => page == focus.page && !focus.is_typing(),
            // Found only by the driver of a replay, and by the tour.
            Self::Replay | Self::Tour => false,
        }
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
    /// Whether the action is also a word of the command line; actions that edit text, or control a replay or a tour,
    /// are not.
    pub fn is_command(&self) -> bool {
        !matches!(self.place, Place::Prompt | Place::Message | Place::Filter | Place::Replay | Place::Tour)
    }

    /// The keys for display.
    pub fn keys_text(&self) -> String {
        self.keys.iter().map(Key::to_string).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests;
