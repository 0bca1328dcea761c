//! The last line: a message about the last key, otherwise the operation in progress, otherwise the available keys.
use std::time::Duration;

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use topology::rolling::Phase;

use crate::{
    keymap::{self, Place},
    operator::command::Removal,
    state::{AssignmentStatus, State, clean::clean_line, operation::Operation},
    view::{
        format::{shorten, width},
        theme::Theme,
    },
};

/// Renders the footer.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let cells = usize::from(area.width);
    if let Some(notice) = &state.screen.notice {
        return frame.render_widget(Line::styled(shorten(&format!(" {notice}"), cells), theme.warn), area);
    }
    if let Some((words, goes_on)) = words(state) {
        let style = if goes_on { theme.accent } else { theme.bad };
        return frame.render_widget(Line::styled(shorten(&format!(" {}", clean_line(&words)), cells), style), area);
    }
    frame.render_widget(hints(state, theme, cells), area);
}

/// As many hints as fit without being cut.
fn hints(state: &State, theme: &Theme, cells: usize) -> Line<'static> {
    let typing = state.screen.focus.is_typing();
    let mut line = Line::default();
    let mut used = 0;
    // Hints of the current context come first; the others are the same everywhere.
    let is_common = |binding: &&keymap::Binding| matches!(binding.place, Place::Anywhere | Place::Panels);
    let shown = || state.preferences.keys.bindings(state.screen.focus).filter(|binding| !binding.short.is_empty());
    for binding in shown().filter(|binding| !is_common(binding)).chain(shown().filter(is_common)) {
        let key = binding.keys.iter().find(|key| !(typing && key.types()));
        let (key, what) = (format!(" {}", key.map_or_else(String::new, keymap::Key::to_string)), binding.short);
        used += width(&key) + width(what) + 2;
        if used > cells {
            break;
        }
        line.push_span(Span::styled(key, theme.accent));
        line.push_span(Span::styled(format!(" {what} "), theme.dim));
    }
    line
}

/// The operation in progress, or the rolling restart that is paused.
fn words(state: &State) -> Option<(String, bool)> {
    let seconds = |since: Duration| state.now.saturating_sub(since).as_secs();
    let name = |place: &usize| state.cluster.nodes.get(*place).map_or("?", |node| node.name());
    if let Some(operation) = &state.operations.running {
        let words = match operation {
            Operation::Telling => "the nodes are told".to_owned(),
            Operation::Change { node, out, requests, since } => {
                let word = match out {
                    Some(Removal::Cordon) => "is cordoned",
                    Some(Removal::Drain) => "is drained",
                    Some(Removal::Exclude) => "is excluded",
                    None => "is included",
                };
                let waits =
                    if *requests > 0 { format!(", {requests} requests may finish first") } else { String::new() };
                {
                    let abort = if matches!(out, Some(Removal::Cordon)) { "" } else { "; A aborts it" };
                    format!("{} {word}{waits} ({} s){abort}", name(node), seconds(*since))
                }
            }
        };
        return Some((words, true));
    }
    if state.cluster.assignment == AssignmentStatus::Loading {
        return Some(("the nodes load; A aborts it".to_owned(), true));
    }
    let rolling = state.cluster.open_rolling()?;
    let count = format!("restart: {} of {} done", rolling.done, rolling.targets.len());
    let (target, since) =
        (rolling.target().map_or("", |(name, _)| name.as_str()), seconds(state.cluster.rolling_since));
    Some(match &rolling.phase {
        Phase::Paused(reason) => (format!("{count}, paused: {reason}; R resumes or ends it"), false),
        _ if rolling.before.is_some() => (format!("{count}, {target} restarts ({since} s); R pauses or ends it"), true),
        _ => (format!("{count}, {target} is next ({since} s); R pauses or ends it"), true),
    })
}
