//! Reminders of the screen's mode: frozen, recording, mouse released to the terminal, position of a replay. Also the
//! command line with its completions.
use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Position, Rect},
    style::Style,
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    state::{
        Frozen, State,
        command::{Names, completions},
        preferences::ReplayStatus,
    },
    view::{
        format::{shorten, width},
        theme::Theme,
    },
};

/// Lines above the page: two of the header and the tabs.
const HEADER_LINES: u16 = 3;

/// Renders the marks at the right end of a line, over its content.
pub(super) fn marks(state: &State, frozen: Option<(&Frozen, Duration)>, theme: &Theme, frame: &mut Frame, line: Rect) {
    let mut marks: Vec<(String, Style)> = Vec::new();
    if let Some((frozen, now)) = frozen {
        let seconds = now.saturating_sub(frozen.since).as_secs();
        marks.push((format!(" FROZEN {} ago, {} events since ", span(seconds), frozen.events), theme.tab));
    }
    if let Some(replay) = &state.preferences.replay {
        marks.push((replay_words(replay), theme.tab));
    }
    if state.preferences.recording.is_some() {
        marks.push((" REC ".to_owned(), theme.bad));
    }
    if !state.preferences.takes_mouse {
        marks.push((" mouse selects text ".to_owned(), theme.accent));
    }
    let mut right = line.right();
    for (text, style) in marks {
        let text = shorten(&text, usize::from(right.saturating_sub(line.x)));
        let cells = width(&text) as u16;
        right = right.saturating_sub(cells + 1);
        let place = Rect { x: right, y: line.y, width: cells, height: 1 };
        frame.render_widget(Clear, place);
        frame.render_widget(Span::styled(text, style), place);
    }
}

/// Formats a duration as `2:05` or `1:00:00`.
fn span(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

fn replay_words(replay: &ReplayStatus) -> String {
    let what = match (replay.is_seeking, replay.is_paused) {
        (true, _) => "seeks".to_owned(),
        (false, true) => "paused".to_owned(),
        (false, false) => format!("x{}", replay.speed),
    };
    let view = if replay.is_own_view { ", own view" } else { "" };
    let (at, length) = (span(replay.at.as_secs()), span(replay.length.as_secs()));
    format!(" REPLAY {} UTC  {at} of {length}  {what}{view} ", replay.clock)
}

/// Renders the command line into the footer, and the completions of its last word above it.
pub(super) fn command_line(state: &State, theme: &Theme, frame: &mut Frame, footer: Rect) {
    if !state.preferences.is_commanding {
        return;
    }
    let editor = &state.preferences.command;
    let cells = usize::from(footer.width).saturating_sub(3);
    // The text just before the cursor is always visible.
    let before = editor.before_cursor();
    let skipped = before.char_indices().map(|(at, _)| at).find(|at| width(&before[*at..]) <= cells).unwrap_or(0);
    let (before, after) = (&before[skipped..], &editor.text()[editor.before_cursor().len()..]);
    frame.render_widget(Clear, footer);
    let spans = [Span::styled(" :", theme.accent), Span::styled(format!("{before}{after}"), theme.plain)];
    frame.render_widget(Line::from_iter(spans), footer);
    frame.set_cursor_position(Position { x: footer.x + 2 + width(before) as u16, y: footer.y });
    if footer.y == 0 {
        return;
    }
    candidates(state, theme, frame, footer);
}

/// The completions above the command line, on as many lines as they need, the one in the command line highlighted.
fn candidates(state: &State, theme: &Theme, frame: &mut Frame, footer: Rect) {
    let cycle = state.preferences.completion.as_ref();
    let all = match cycle {
        Some(cycle) => cycle.words.clone(),
        None => completions(state.preferences.command.before_cursor(), &state.preferences, &Names::of(state)),
    };
    let mut rows: Vec<(Line, usize)> = Vec::new();
    for (place, word) in all.iter().enumerate() {
        let cells = width(word) + 2;
        if rows.last().is_none_or(|(_, used)| used + cells > usize::from(footer.width)) {
            rows.push((Line::raw(" "), 1));
        }
        let Some((line, used)) = rows.last_mut() else { break };
        let style = if cycle.is_some_and(|cycle| cycle.at == place) { theme.tab } else { theme.dim };
        line.push_span(Span::styled(word.clone(), style));
        line.push_span(Span::raw("  "));
        *used += cells;
    }
    // The header stays; words that do not fit are found by typing a letter.
    rows.truncate(usize::from(footer.y.saturating_sub(HEADER_LINES)));
    for (row, (line, _)) in rows.iter().rev().enumerate() {
        let above = Rect { y: footer.y - 1 - row as u16, ..footer };
        frame.render_widget(Clear, above);
        frame.render_widget(line.clone(), above);
    }
}
