//! A machine's health in one row: temperature, clock, worst warnings.
use ratatui::text::Span;
use telemetry::Health;

use crate::view::{
    format::{fit, fit_right},
    theme::Theme,
};

const TEMPERATURE: usize = 5;
const CLOCK: usize = 7;

/// The column titles of [`spans`].
pub(super) fn heading() -> String {
    [fit_right("temp", TEMPERATURE), fit_right("GHz", CLOCK), "health".to_owned()].join(" ")
}

/// Temperature in degrees, clock as current/limit, and the warnings: the first as text, the others as a count.
pub(super) fn spans(theme: &Theme, health: &Health) -> Vec<Span<'static>> {
    let unknown = || "–".to_owned();
    let temperature = health.temperature.map_or_else(unknown, |celsius| format!("{:.1}", celsius.0));
    let gigahertz = |megahertz: u32| f64::from(megahertz) / 1e3;
    let clock = health
        .clock
        .as_ref()
        .map_or_else(unknown, |clock| format!("{:.1}/{:.1}", gigahertz(clock.current.0), gigahertz(clock.limit.0)));
    let figures = format!("{} {} ", fit_right(&temperature, TEMPERATURE), fit(&fit_right(&clock, CLOCK), CLOCK));
    let warnings = health.warnings();
    let words = match warnings.as_slice() {
        [] if *health == Health::default() => Span::styled("–", theme.dim),
        [] => Span::styled("ok", theme.ok),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" +{}", rest.len()) };
            Span::styled(first.short() + &more, if first.is_acute() { theme.bad } else { theme.warn })
        }
    };
    vec![Span::styled(figures, theme.plain), words]
}
