//! Colour on a terminal: of help, errors and severities. Nothing is coloured for pipes and files, with NO_COLOR or on a
//! dumb terminal.
use std::io::{IsTerminal, stderr, stdout};

use clap::builder::styling::{AnsiColor, Style, Styles};
use telemetry::finding::Severity;

/// The styles of help texts and usage errors.
pub(crate) const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default())
    .error(AnsiColor::Red.on_default().bold())
    .valid(AnsiColor::Green.on_default())
    .invalid(AnsiColor::Yellow.on_default());

/// The meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shade {
    /// In order.
    Good,
    /// Slower, or soon worse.
    Warning,
    /// Broken.
    Bad,
    /// Less important.
    Quiet,
}

impl From<Severity> for Shade {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Note => Self::Quiet,
            Severity::Warning => Self::Warning,
            Severity::Error => Self::Bad,
        }
    }
}

impl Shade {
    fn style(self) -> Style {
        match self {
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default().bold(),
            Self::Quiet => Style::new().dimmed(),
        }
    }

    /// The text in this tone if `on`.
    pub(crate) fn paint(self, text: &str, on: bool) -> String {
        if on && !text.is_empty() { styled(self.style(), text) } else { text.to_owned() }
    }
}

fn styled(style: Style, text: &str) -> String {
    format!("{}{text}{}", style.render(), style.render_reset())
}

/// Whether the environment allows colour.
fn is_allowed(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty()) && variable("TERM").is_none_or(|term| term != "dumb")
}

/// Whether standard output is coloured.
pub(crate) fn is_on() -> bool {
    stdout().is_terminal() && is_allowed(|name| std::env::var(name).ok())
}

fn on_errors(style: Style, text: &str) -> String {
    let is_on = stderr().is_terminal() && is_allowed(|name| std::env::var(name).ok());
    if is_on { styled(style, text) } else { text.to_owned() }
}

/// The start of an error message on standard error.
pub(crate) fn error(text: &str) -> String {
    on_errors(AnsiColor::Red.on_default().bold(), text)
}

/// The start of a next step on standard error.
pub(crate) fn advice(text: &str) -> String {
    on_errors(AnsiColor::Green.on_default().bold(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_needs_a_terminal_that_is_not_dumb_and_no_veto() {
        let allowed = |set: &[(&str, &str)]| {
            is_allowed(|name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(allowed(&[]) && allowed(&[("TERM", "xterm"), ("NO_COLOR", "")]));
        assert!(!allowed(&[("NO_COLOR", "1")]) && !allowed(&[("TERM", "dumb")]));
    }

    #[test]
    fn tones_are_applied_only_when_on() {
        assert_eq!(Shade::Bad.paint("broken", false), "broken");
        let painted = Shade::Bad.paint("broken", true);
        assert!(painted.starts_with("\x1b[") && painted.ends_with("\x1b[0m"), "{painted:?}");
        assert_eq!(Shade::from(Severity::Warning), Shade::Warning);
    }
}
