//! The last line: an answer to the last key, else what is done to nodes, else the keys that help here.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    event::RestartStep,
    keymap,
    state::{State, clean::clean_line, operation::Operation},
    view::{format::width, theme::Theme},
};

/// Draws the footer.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    if let Some(notice) = &state.notice {
        return frame.render_widget(Line::styled(format!(" {notice}"), theme.warn), area);
    }
    if let Some(operation) = &state.operation {
        let style = if operation.is_under_way() { theme.accent } else { theme.bad };
        return frame.render_widget(Line::styled(format!(" {}", clean_line(&words(state, operation))), style), area);
    }
    frame.render_widget(hints(state, theme, usize::from(area.width)), area);
}

/// As many hints as fit whole.
fn hints(state: &State, theme: &Theme, cells: usize) -> Line<'static> {
    let typing = state.spot.is_typing();
    let mut line = Line::default();
    let mut used = 0;
    for binding in state.desk.keys.bindings(state.spot).filter(|binding| !binding.short.is_empty()) {
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

fn words(state: &State, operation: &Operation) -> String {
    let name = |place: &usize| state.nodes.get(*place).map_or("?", |node| node.name());
    match operation {
        Operation::Restart(restart) => {
            let end = if restart.stops { "ends after this node" } else { "Esc ends it after this node" };
            let current = restart.current.as_ref().map_or_else(String::new, |(place, step, since)| {
                let seconds = state.now.saturating_sub(*since).as_secs();
                let step = match step {
                    RestartStep::Draining => "drains",
                    RestartStep::Starting => "starts",
                    RestartStep::Assigning | RestartStep::Done { .. } => "is back, the topology is assigned",
                };
                format!(", {} {step} ({seconds} s)", name(place))
            });
            format!("restart: {} of {} done{current}; {end}", restart.done, restart.which.len())
        }
        Operation::Paused { fault, remaining } => {
            let count = remaining.len();
            let why = fault.as_ref().map_or_else(String::new, |fault| format!(": {} {}", fault.node, fault.kind));
            format!("restart paused{why}; R goes on with {count}, Esc forgets")
        }
        Operation::Change { node, out, requests } => {
            let word = if *out { "out" } else { "in" };
            let waits = if *requests > 0 { format!(", {requests} requests may finish first") } else { String::new() };
            format!("{} is taken {word}{waits}", name(node))
        }
    }
}
