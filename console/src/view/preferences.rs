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
    state::{Frozen, State, command::completions, preferences::ReplayStatus},
    view::{
        format::{shorten, width},
        theme::Theme,
    },
};

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
    let above = Rect { y: footer.y - 1, ..footer };
    let all = completions(editor.before_cursor(), &state.preferences, &state.cluster.names());
    let (mut words, mut used) = (Vec::new(), 1);
    for word in &all {
        used += width(word) + 2;
        if used > usize::from(footer.width).saturating_sub(3) {
            words.push("…".to_owned());
            break;
        }
        words.push(word.clone());
    }
    frame.render_widget(Clear, above);
    frame.render_widget(Line::styled(format!(" {}", words.join("  ")), theme.dim), above);
}
