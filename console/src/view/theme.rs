//! Colours and attributes by what they mean. Without colour (`NO_COLOR`) the same meanings get attributes.
use ratatui::style::{Color, Modifier, Style};

use shared::telemetry::Severity;

use crate::state::node::Standing;

/// A style for each meaning.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// What is read.
    pub plain: Style,
    /// What is not read every time: units, labels, rules.
    pub dim: Style,
    /// What has the focus, and the keys of hints.
    pub accent: Style,
    /// As it should be.
    pub ok: Style,
    /// Under way, or to be watched.
    pub warn: Style,
    /// Broken.
    pub bad: Style,
    /// The tab of the page that is shown.
    pub tab: Style,
}

impl Theme {
    /// The theme of the environment: `NO_COLOR`, if it is set to anything, turns colours off.
    pub fn from_environment() -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if no_colour { Self::plain() } else { Self::colour() }
    }

    /// The sixteen colours that every terminal lets its user choose.
    pub fn colour() -> Self {
        let style = Style::new();
        Self {
            plain: style,
            dim: style.fg(Color::DarkGray),
            accent: style.fg(Color::Cyan).add_modifier(Modifier::BOLD),
            ok: style.fg(Color::Green),
            warn: style.fg(Color::Yellow),
            bad: style.fg(Color::Red).add_modifier(Modifier::BOLD),
            tab: style.fg(Color::Cyan).add_modifier(Modifier::BOLD | Modifier::REVERSED),
        }
    }

    /// No colours.
    pub fn plain() -> Self {
        let style = Style::new();
        Self {
            plain: style,
            dim: style.add_modifier(Modifier::DIM),
            accent: style.add_modifier(Modifier::BOLD),
            ok: style,
            warn: style.add_modifier(Modifier::UNDERLINED),
            bad: style.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            tab: style.add_modifier(Modifier::REVERSED),
        }
    }

    /// The style of a finding or an event.
    pub fn severity(&self, severity: Severity) -> Style {
        match severity {
            Severity::Note => self.plain,
            Severity::Warning => self.warn,
            Severity::Error => self.bad,
        }
    }

    /// The style of a node's standing.
    pub fn standing(&self, standing: Standing) -> Style {
        use shared::telemetry::NodeState::{
            Benching, Connecting, Draining, Faulted, Idle, Loading, Prepared, Ready, Serving,
        };
        match standing {
            Standing::Away | Standing::Lost | Standing::Reports(Faulted) => self.bad,
            Standing::Stale(_) | Standing::Reports(Loading | Prepared | Connecting | Draining | Benching) => self.warn,
            Standing::Connecting | Standing::Silent | Standing::Reports(Idle) => self.dim,
            Standing::Reports(Ready | Serving) => self.ok,
        }
    }
}
