//! Screen preferences: colours, keys, mouse, recording, command line. Independent of the cluster.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    keymap::Keymap,
    state::{alerts::AlertPreferences, completion::Cycle, editor::Editor},
};

/// A colour theme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThemeName {
    /// The terminal's sixteen configurable colours.
    #[default]
    Sixteen,
    /// For terminals with a dark background.
    Dark,
    /// For terminals with a light background.
    Light,
    /// White on black, with high contrast for every meaning.
    HighContrast,
    /// No colours; bold, dim, underline and reverse instead.
    Mono,
}

impl ThemeName {
    /// All themes.
    pub const ALL: [Self; 5] = [Self::Sixteen, Self::Dark, Self::Light, Self::HighContrast, Self::Mono];

    /// The name on the command line.
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
        let named = Self::ALL.into_iter().find(|theme| theme.name() == text);
        named.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Position and mode of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayStatus {
    /// UTC time of day of the displayed state.
    pub clock: String,
    /// Time since the first event.
    pub at: Duration,
    /// Time from the first event to the last.
    pub length: Duration,
    /// Playback speed: session seconds per second.
    pub speed: f64,
    /// Whether playback is paused.
    pub is_paused: bool,
    /// Whether a seek is still in progress.
    pub is_seeking: bool,
    /// Whether the viewer navigates independently of the recorded operator.
    pub is_own_view: bool,
}

/// Screen preferences.
#[derive(Clone, Debug, PartialEq)]
pub struct Preferences {
    /// The colour theme.
    pub theme: ThemeName,
    /// Whether the terminal can display only ASCII.
    pub is_ascii: bool,
    /// Whether the console captures the mouse; otherwise the terminal selects text with it.
    pub takes_mouse: bool,
    /// The key bindings.
    pub keys: Keymap,
    /// How alerts are delivered.
    pub alerts: AlertPreferences,
    /// The file that the session is recorded to.
    pub recording: Option<String>,
    /// The replay that is playing.
    pub replay: Option<ReplayStatus>,
    /// Whether the command line is open.
    pub is_commanding: bool,
    /// The command line, with its history.
    pub command: Editor,
    /// What Tab steps through in the command line.
    pub completion: Option<Cycle>,
}

impl Default for Preferences {
    fn default() -> Self {
        Self {
            theme: ThemeName::default(),
            is_ascii: false,
            takes_mouse: true,
            keys: Keymap::default(),
            alerts: AlertPreferences::default(),
            recording: None,
            replay: None,
            is_commanding: false,
            command: Editor::default(),
            completion: None,
        }
    }
}
