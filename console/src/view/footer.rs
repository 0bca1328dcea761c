//! The last line: a message about the last key, otherwise the operation in progress, otherwise the available keys.
use std::time::Duration;

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use topology::rolling::Phase;

use crate::{
    operator::command::Removal,
    state::{Area, AssignmentStatus, State, clean::clean_line, hints, operation::Operation},
    view::{format::shorten, theme::Theme, widgets::panel::hit},
};

/// Renders the footer; returns the area of the keys, empty if it shows something else.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> Area {
    let cells = usize::from(area.width);
    if let Some(notice) = &state.screen.notice {
        frame.render_widget(Line::styled(shorten(&format!(" {notice}"), cells), theme.warn), area);
        return Area::default();
    }
    if let Some((words, goes_on)) = words(state) {
        let style = if goes_on { theme.accent } else { theme.bad };
        frame.render_widget(Line::styled(shorten(&format!(" {}", clean_line(&words)), cells), style), area);
        return Area::default();
    }
    frame.render_widget(line(state, theme, area.width), area);
    hit(area)
}

/// As many hints as fit without being cut.
fn line(state: &State, theme: &Theme, cells: u16) -> Line<'static> {
    let hints = hints::hints(state, cells).into_iter();
    Line::from_iter(hints.flat_map(|hint| {
        let words = Span::styled(format!(" {} ", hint.what), theme.dim);
        [Span::styled(format!(" {}", hint.key), theme.accent), words]
    }))
}

/// The operation in progress, or the rolling restart that is paused.
fn words(state: &State) -> Option<(String, bool)> {
    let seconds = |since: Duration| state.now.saturating_sub(since).as_secs();
    let name = |place: &usize| state.cluster.nodes.get(*place).map_or("?", |node| node.name());
    // Keys that a read-only dashboard would refuse are not named.
    let keys = |text: &'static str| if state.readonly { "" } else { text };
    if let Some(operation) = &state.operations.running {
        let words = match operation {
            Operation::Telling => "storing the change on all nodes".to_owned(),
            Operation::Change { node, out, requests, since } => {
                let word = match out {
                    Some(Removal::Cordon) => "is cordoned",
                    Some(Removal::Drain) => "is drained",
                    Some(Removal::Exclude) => "is excluded",
                    None => "is included",
                };
                let waits =
                    if *requests > 0 { format!(", {requests} requests may finish first") } else { String::new() };
                let abort = if matches!(out, Some(Removal::Cordon)) { "" } else { keys("; A aborts it") };
                format!("{} {word}{waits} ({} s){abort}", name(node), seconds(*since))
            }
        };
        return Some((words, true));
    }
    if state.cluster.assignment == AssignmentStatus::Loading {
        return Some((format!("the nodes load{}", keys("; A aborts it")), true));
    }
    let rolling = state.cluster.open_rolling()?;
    let count = format!("restart: {} of {} done", rolling.done, rolling.targets.len());
    let (target, since) =
        (rolling.target().map_or("", |(name, _)| name.as_str()), seconds(state.cluster.rolling_since));
    let (resumes, pauses) = (keys("; R resumes or stops it"), keys("; R pauses or stops it"));
    Some(match &rolling.phase {
        Phase::Paused(reason) => (format!("{count}, paused: {reason}{resumes}"), false),
        _ if rolling.before.is_some() => (format!("{count}, {target} restarts ({since} s){pauses}"), true),
        _ => (format!("{count}, {target} is next ({since} s){pauses}"), true),
    })
}
