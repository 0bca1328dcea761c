//! The box of the guided tour between the page and the last line: the step, its explanation, and the key to press.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{
        State,
        tour::{Goal, STEPS, Tour},
    },
    view::{
        format::wrap_words,
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Lines of the box on a screen of this size; none without a tour.
pub(super) fn height(state: &State, screen: Rect) -> u16 {
    let Some(tour) = state.screen.tour else { return 0 };
    // The page keeps the larger part of the smallest screen.
    (told(tour, screen.width).len() as u16 + 3).min(screen.height / 3)
}

/// Renders the box.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let Some(tour) = state.screen.tour else { return };
    let step = tour.current();
    let title = format!("Tour, step {} of {}: {}", tour.step + 1, STEPS.len(), step.title);
    let keys = if tour.step == 0 { "→ skips, Esc ends the tour" } else { "← back, → skips, Esc ends the tour" };
    let inner = panel(frame, theme, area, true, &title, Span::styled(keys, theme.dim));
    let task = if tour.is_done && !matches!(step.goal, Goal::Read) {
        Line::from_iter([Span::styled(" Done. ", theme.ok), Span::styled("Enter continues.", theme.accent)])
    } else if tour.is_done {
        Line::from_iter([
            Span::styled(format!(" {}", tour.task(state)), theme.plain),
            Span::styled(" Enter continues.", theme.accent),
        ])
    } else {
        Line::styled(format!(" {}", tour.task(state)), theme.accent)
    };
    let command = Line::styled(format!(" Without the screen: {}", step.command), theme.dim);
    let texts = told(tour, area.width).into_iter().map(|text| Line::styled(format!(" {text}"), theme.plain));
    // On a small screen the task matters more than the text.
    let room = usize::from(inner.height).saturating_sub(1);
    let above: Vec<Line> = texts.chain([command]).take(room).collect();
    lines(frame, inner, above.into_iter().chain([task]));
}

fn told(tour: Tour, cells: u16) -> Vec<&'static str> {
    let text = tour.current().text;
    let ranges = wrap_words(text, usize::from(cells).saturating_sub(2));
    ranges.into_iter().map(|range| text[range].trim_end()).collect()
}
