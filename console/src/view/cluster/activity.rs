//! The requests under way with their progress, and the latest events.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use telemetry::{RequestReport, RequestStage};

use crate::{
    state::{
        State,
        clean::clean_line,
        events::{self, time_of_day},
        requests,
    },
    view::{
        format::{fit, fit_right, width},
        theme::Theme,
        widgets::{
            bar::stacked,
            panel::{lines, panel},
        },
    },
};

/// Widths in cells: the client, the stage, the count of tokens, the age.
const BY: usize = 12;
const STAGE: usize = 9;
const COUNT: usize = 11;
const AGE: usize = 7;
/// Greatest width of a progress bar.
const BAR_MAX: usize = 40;

/// Lines wanted for the requests.
pub(super) fn height(state: &State) -> u16 {
    (requests::open(state).len() as u16).saturating_add(1).max(2)
}

/// Renders the requests under way.
pub(super) fn draw_requests(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    if area.height < 2 {
        return;
    }
    let open = requests::open(state);
    let room = usize::from(area.height) - 1;
    let remark = match open.len() {
        0 => String::new(),
        count if count > room => format!("{room} of {count}; 5 shows all"),
        count => format!("{count} under way"),
    };
    let inner = panel(frame, theme, area, false, "Requests", Span::styled(remark, theme.dim));
    if open.is_empty() {
        return lines(frame, inner, [Line::styled(" No request is under way. i opens the prompt box.", theme.dim)]);
    }
    lines(frame, inner, open.into_iter().map(|(head, trace)| request(theme, head, trace, usize::from(inner.width))));
}

fn request(theme: &Theme, head: &str, trace: &RequestReport, cells: usize) -> Line<'static> {
    let style = theme.tone(requests::tone(&trace.stage));
    let (done, all) = match trace.stage {
        RequestStage::Decoding => (trace.tokens, trace.max_tokens),
        _ => (0, trace.prompt_tokens),
    };
    let count = match trace.stage {
        RequestStage::Decoding if all > 0 => format!("{done} of {all}"),
        RequestStage::Decoding => format!("{done} tokens"),
        _ => format!("prompt {all}"),
    };
    // A forwarding node is named with its address.
    let by = trace.by.split(" (").next().filter(|by| !by.is_empty()).unwrap_or(head);
    let texts = [
        fit_right(&trace.number.to_string(), 4),
        fit(&clean_line(by), BY),
        fit(trace.stage.name(), STAGE),
        fit_right(&count, COUNT),
        fit_right(&format!("{:.1} s", trace.age_ms as f64 / 1e3), AGE),
    ];
    let used: usize = texts.iter().map(|text| width(text) + 1).sum();
    let bar = cells.saturating_sub(used + 1).min(BAR_MAX);
    let left = all.max(1).saturating_sub(done);
    let parts = [(u64::from(done), "█", style), (u64::from(left), "░", theme.faint)];
    let [number, by, stage, count, age] = texts;
    let texts = [
        Span::styled(format!("{number} "), theme.dim),
        Span::styled(format!("{by} "), theme.plain),
        Span::styled(format!("{stage} "), style),
        Span::styled(format!("{count} {age} "), theme.plain),
    ];
    Line::from_iter(texts.into_iter().chain(stacked(&parts, u64::from(all.max(1)), bar)))
}

/// Renders the latest events, newest first.
pub(super) fn draw_events(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    if area.height < 2 {
        return;
    }
    let entries = state.journal.events.entries();
    let remark = if entries.is_empty() { String::new() } else { format!("{} kept, UTC; 6 shows all", entries.len()) };
    let inner = panel(frame, theme, area, false, "Events", Span::styled(remark, theme.dim));
    if entries.is_empty() {
        return lines(frame, inner, [Line::styled(" Nothing has happened since this console was started.", theme.dim)]);
    }
    let cells = usize::from(inner.width);
    let shown = entries.iter().rev().filter(|entry| entry.severity >= state.tables.severity_min);
    let all = shown.map(|entry| {
        let time = time_of_day(state, entry.at);
        let node = entry.node.and_then(|place| state.cluster.nodes.get(place)).map(|node| format!("{} ", node.name()));
        let node = node.unwrap_or_default();
        let text = fit(&entry.text, cells.saturating_sub(width(&time) + width(&node) + 2));
        Line::from_iter([
            Span::styled(format!(" {time} "), theme.dim),
            Span::styled(node, theme.accent),
            Span::styled(text, theme.tone(events::tone(entry.severity))),
        ])
    });
    lines(frame, inner, all);
}
