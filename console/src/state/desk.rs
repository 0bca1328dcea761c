//! How an operator has arranged this screen: colours, keys, mouse, what is recorded, the command line. Nothing of the cluster.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{keymap::Keymap, state::editor::Editor};

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThemeName {
    /// The sixteen colours that every terminal lets its user choose.
    #[default]
    Sixteen,
    /// For terminals with a dark ground.
    Dark,
    /// For terminals with a light ground.
    Light,
    /// White on black, every meaning far from the ground.
    HighContrast,
    /// No colours; bold, dim, underlined and reversed instead.
    Mono,
}

impl ThemeName {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sixteen, Self::Dark, Self::Light, Self::HighContrast, Self::Mono];

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sixteen => "sixteen",
            Self::Dark => "dark",
            Self::Light => "light",
            Self::HighContrast => "high-contrast",
            Self::Mono => "mono",
        }
    }
}

impl std::str::FromStr for ThemeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|theme| theme.name() == text).ok_or_else(|| format!("one of {}", names()))
    }
}

/// Where a recording that is played stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Time of the day, in UTC, of what is shown.
    pub clock: String,
    /// Since the first event.
    pub at: Duration,
    /// From the first event to the last.
    pub length: Duration,
    /// Seconds of the session in a second.
    pub speed: f64,
    /// Whether it stands still.
    pub is_paused: bool,
    /// Whether a time is sought that is not reached yet.
    pub is_seeking: bool,
    /// Whether the viewer looks around, and not where the operator looked.
    pub is_own_view: bool,
}

/// How the screen is arranged.
#[derive(Clone, Debug, PartialEq)]
pub struct Desk {
    /// The colours.
    pub theme: ThemeName,
    /// Whether the terminal knows ASCII alone.
    pub is_ascii: bool,
    /// Whether the mouse is ours; otherwise the terminal selects text with it.
    pub takes_mouse: bool,
    /// The keys.
    pub keys: Keymap,
    /// The file that the session is written to.
    pub recording: Option<String>,
    /// The recording that is played.
    pub replay: Option<Replay>,
    /// Whether the command line is open.
    pub is_commanding: bool,
    /// The command line, with the commands of before.
    pub command: Editor,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            theme: ThemeName::default(),
            is_ascii: false,
            takes_mouse: true,
            keys: Keymap::default(),
            recording: None,
            replay: None,
            is_commanding: false,
            command: Editor::default(),
        }
    }
}
