//! Colours and attributes by meaning. Without colour (`NO_COLOR`) the same meanings get attributes.
use ratatui::{
    buffer::Buffer,
    style::{Color, Modifier, Style},
};

use crate::{
    state::{node::NodeStatus, preferences::ThemeName, row::Tone},
    view::ascii,
};

/// A style for each meaning.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Primary content.
    pub plain: Style,
    /// Secondary content: units, labels, rules.
    pub dim: Style,
    /// The focus, and the keys of hints.
    pub accent: Style,
    /// Normal.
    pub ok: Style,
    /// In progress, or needs attention.
    pub warn: Style,
    /// Broken or failed.
    pub bad: Style,
    /// The tab of the current page.
    pub tab: Style,
    /// The ground of the selected row.
    pub selected: Style,
    /// What only shows an extent, such as the dots of an empty graph.
    pub faint: Style,
    /// Default foreground and background, if they are not the terminal's.
    ground: Option<(Color, Color)>,
    is_ascii: bool,
}

/// Colours from the 256-colour cube by meaning.
struct Colours {
    dim: u8,
    accent: u8,
    on_accent: u8,
    selected: u8,
    faint: u8,
    ok: u8,
    warn: u8,
    bad: u8,
}

const DARK: Colours =
    Colours { dim: 248, accent: 80, on_accent: 16, selected: 237, faint: 240, ok: 114, warn: 221, bad: 210 };
const LIGHT: Colours =
    Colours { dim: 240, accent: 24, on_accent: 231, selected: 255, faint: 250, ok: 22, warn: 94, bad: 124 };
const HIGH_CONTRAST: Colours =
    Colours { dim: 252, accent: 51, on_accent: 16, selected: 236, faint: 244, ok: 46, warn: 226, bad: 217 };

impl Theme {
    /// The theme with this name.
    pub fn of(name: ThemeName) -> Self {
        match name {
            ThemeName::Sixteen => Self::colour(),
            ThemeName::Mono => Self::plain(),
            ThemeName::Dark => Self::indexed(&DARK),
            ThemeName::Light => Self::indexed(&LIGHT),
            ThemeName::HighContrast => Self::high_contrast(),
        }
    }

    /// The theme with its characters limited to ASCII if `is_ascii`.
    #[must_use]
    pub fn ascii(self, is_ascii: bool) -> Self {
        Self { is_ascii, ..self }
    }

    /// Whether blocks can differ by colour: otherwise maps use digits.
    pub(super) fn has_colour(&self) -> bool {
        !self.is_ascii && self.ok.fg.is_some()
    }

    /// Post-processes a complete buffer: applies the theme's background, and replaces non-ASCII characters if required.
    pub(super) fn finish(&self, buffer: &mut Buffer) {
        if let Some((front, ground)) = self.ground {
            for cell in &mut buffer.content {
                if cell.fg == Color::Reset {
                    cell.fg = front;
                }
                if cell.bg == Color::Reset {
                    cell.bg = ground;
                }
            }
        }
        if self.is_ascii {
            ascii::replace(buffer);
        }
    }

    /// The terminal's sixteen configurable colours.
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
            selected: style.add_modifier(Modifier::REVERSED),
            faint: style.fg(Color::DarkGray),
            ground: None,
            is_ascii: false,
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
            faint: style.add_modifier(Modifier::DIM),
            ..Self::colour()
        }
    }

    /// Colours from the 256-colour cube, which are the same in every terminal; the background stays the terminal's.
    fn indexed(colours: &Colours) -> Self {
        let style = |index| Style::new().fg(Color::Indexed(index));
        Self {
            plain: Style::new(),
            dim: style(colours.dim),
            accent: style(colours.accent).add_modifier(Modifier::BOLD),
            ok: style(colours.ok),
            warn: style(colours.warn),
            bad: style(colours.bad).add_modifier(Modifier::BOLD),
            tab: style(colours.on_accent).bg(Color::Indexed(colours.accent)).add_modifier(Modifier::BOLD),
            selected: Style::new().bg(Color::Indexed(colours.selected)),
            faint: style(colours.faint),
            ..Self::colour()
        }
    }

    /// White on black, regardless of the terminal's background; failures are also reversed.
    fn high_contrast() -> Self {
        let theme = Self::indexed(&HIGH_CONTRAST);
        let (white, black) = (Color::Indexed(231), Color::Indexed(16));
        Self {
            bad: Style::new().fg(black).bg(Color::Indexed(HIGH_CONTRAST.bad)).add_modifier(Modifier::BOLD),
            warn: theme.warn.add_modifier(Modifier::UNDERLINED),
            ground: Some((white, black)),
            ..theme
        }
    }

    /// The style of a tone.
    pub fn tone(&self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => self.plain,
            Tone::Dim => self.dim,
            Tone::Ok => self.ok,
            Tone::Warn => self.warn,
            Tone::Bad => self.bad,
        }
    }

    /// The style of a node's standing.
    pub fn status(&self, standing: NodeStatus) -> Style {
        use telemetry::NodeState::{Benching, Connecting, Draining, Faulted, Idle, Loading, Prepared, Ready, Serving};
        match standing {
            NodeStatus::Away | NodeStatus::Lost | NodeStatus::Reports(Faulted) => self.bad,
            NodeStatus::Stale(_) | NodeStatus::Reports(Loading | Prepared | Connecting | Draining | Benching) => {
                self.warn
            }
            NodeStatus::Connecting | NodeStatus::Silent | NodeStatus::Reports(Idle) => self.dim,
            NodeStatus::Reports(Ready | Serving) => self.ok,
        }
    }
}

#[cfg(test)]
mod tests;
