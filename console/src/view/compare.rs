//! Compares the pinned result with the last one: figures, their difference, and whether the texts are equal.
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

use crate::{
    state::{
        State,
        result::{Difference, GenerationResult, difference},
    },
    view::{
        format::{fit, fit_right, milliseconds, percent, shorten},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

const TITLE: usize = 7;
const FIGURE: usize = 10;
/// Smaller relative differences are noise.
const NOTABLE: f64 = 0.02;

/// Lines needed; 0 without a pinned result.
pub(super) fn height(state: &State) -> u16 {
    if state.generation.pinned.is_some() { 6 } else { 0 }
}

/// Renders the comparison.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, pinned: &GenerationResult) {
    let now = GenerationResult::of(&state.generation.request).filter(|run| run != pinned);
    let cells = usize::from(area.width);
    let below = panel(frame, theme, area, false, "Compared with what is pinned", Span::raw(""));
    let mut heading = fit("", TITLE + 1);
    for title in ["TTFT", "TPOT", "tokens/s", "network", "tokens"] {
        heading += &fit_right(title, FIGURE);
    }
    let mut all = vec![Line::styled(heading, theme.dim), row(theme, "pinned", pinned, cells)];
    match &now {
        Some(now) => {
            all.push(row(theme, "this", now, cells));
            all.push(change(theme, pinned, now));
            all.push(texts(theme, pinned, now, cells));
        }
        None => {
            let what = if state.generation.request.prompt == pinned.prompt && state.generation.request.is_open() {
                " this one is under way"
            } else {
                " the same prompt again, as it is or on another topology, is compared here"
            };
            all.push(Line::styled(shorten(what, cells), theme.dim));
        }
    }
    lines(frame, below, all);
}

fn row(theme: &Theme, title: &str, run: &GenerationResult, cells: usize) -> Line<'static> {
    let network = run.network.map_or_else(|| "–".to_owned(), percent);
    let rate = if run.tpot_ms > 0.0 { format!("{:.1}", run.tokens_per_second()) } else { "–".to_owned() };
    let tpot = if run.tpot_ms > 0.0 { milliseconds(run.tpot_ms) } else { "–".to_owned() };
    let figures = [milliseconds(run.ttft_ms), tpot, rate, network, run.tokens.to_string()];
    let figures: String = figures.iter().map(|figure| fit_right(figure, FIGURE)).collect();
    let room = cells.saturating_sub(TITLE + 1 + 5 * FIGURE + 2);
    Line::from_iter([
        Span::styled(format!(" {}", fit(title, TITLE)), theme.plain),
        Span::styled(figures, theme.plain),
        Span::styled(format!("  {}", shorten(&run.on, room)), theme.dim),
    ])
}

/// How much better or worse the current result is.
fn change(theme: &Theme, pinned: &GenerationResult, now: &GenerationResult) -> Line<'static> {
    let mut spans = vec![Span::raw(fit("", TITLE + 1))];
    let pairs = [
        (pinned.ttft_ms, now.ttft_ms, false),
        (pinned.tpot_ms, now.tpot_ms, false),
        (pinned.tokens_per_second(), now.tokens_per_second(), true),
    ];
    for (before, after, more_is_better) in pairs {
        let (text, style) = if before > 0.0 && after > 0.0 {
            let change = after / before - 1.0;
            let is_better = (change > 0.0) == more_is_better;
            let style: Style = match () {
                () if change.abs() < NOTABLE => theme.dim,
                () if is_better => theme.ok,
                () => theme.warn,
            };
            (format!("{:+.0} %", change * 100.0), style)
        } else {
            (String::new(), theme.dim)
        };
        spans.push(Span::styled(fit_right(&text, FIGURE), style));
    }
    Line::from(spans)
}

fn texts(theme: &Theme, pinned: &GenerationResult, now: &GenerationResult, cells: usize) -> Line<'static> {
    if pinned.prompt != now.prompt {
        return Line::styled(" another prompt: the texts are not compared", theme.dim);
    }
    let (same, text, style) = match difference(pinned, now) {
        Difference::Same => (true, "the same text".to_owned(), theme.ok),
        Difference::Unknown => (false, "the texts are too long to be compared from their start".to_owned(), theme.dim),
        Difference::From { at, first, second } => {
            (false, format!("the texts differ from character {}: {first:?}, {second:?}", at + 1), theme.warn)
        }
    };
    let why = if !same && pinned.terms != now.terms {
        format!(" (asked for: {}, {})", pinned.terms, now.terms)
    } else {
        String::new()
    };
    Line::styled(shorten(&format!(" {text}{why}"), cells), style)
}
