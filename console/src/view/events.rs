//! The Events page: equal events as one row, the latest first; the selected one with the node that it is about; and how
//! many there were in the last hour.
use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};
use telemetry::Severity;

use crate::{
    state::{
        Extent, Page, State,
        clean::clean_line,
        events::{self, EventGroup, counts, groups, time_of_day},
        nodes,
        tables::selected,
    },
    view::{
        chart,
        node::graphs,
        tables::{self, TableTexts},
        theme::Theme,
        widgets::{
            graph::{graph, scale_end, styled},
            panel::{lines, panel},
            paragraph::paragraph,
        },
    },
};

/// Least height of a page with more than the table.
const HEIGHT_MORE: u16 = 24;
/// Height of the selected event and its node.
const DETAIL_LINES: u16 = 9;
/// Least height of the histogram, and most lines of a severity in it.
const HISTOGRAM_LINES: u16 = 8;
const SEVERITY_LINES_MAX: u16 = 16;
/// Lines of the table in addition to its rows.
const TABLE_LINES: u16 = 2;
/// The time that the histogram covers.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let title = match state.tables.severity_min {
        Severity::Note => "Events",
        Severity::Warning => "Events: warnings and errors",
        Severity::Error => "Events: errors",
    };
    let groups = groups(state);
    let remark = format!("{} kept in {} rows, latest first", state.journal.events.entries().len(), groups.len());
    let has_more = area.height >= HEIGHT_MORE && !groups.is_empty();
    let words = TableTexts {
        title,
        remark: Span::styled(remark, theme.dim),
        empty: "Nothing has happened since this console was started.",
        repeats: !has_more,
    };
    if !has_more {
        return tables::draw(state, theme, frame, area, words, extent);
    }
    let rows = (groups.len() as u16).saturating_add(TABLE_LINES);
    let most = 2 + 3 * SEVERITY_LINES_MAX;
    let histogram = area.height.saturating_sub(rows + DETAIL_LINES).clamp(HISTOGRAM_LINES, most);
    let parts = [Constraint::Fill(1), Constraint::Length(DETAIL_LINES), Constraint::Length(histogram)];
    let [above, middle, below] = Layout::vertical(parts).areas(area);
    tables::draw(state, theme, frame, above, words, extent);
    if let Some(group) = events::group(state, &selected(state, Page::Events)) {
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(middle);
        draw_selected(state, theme, frame, left, &group);
        draw_node(state, theme, frame, right, &group);
    }
    draw_histogram(state, theme, frame, below);
}

/// The selected event in full.
fn draw_selected(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, group: &EventGroup) {
    let EventGroup { first, last, count, .. } = group;
    let style = theme.tone(events::tone(last.severity));
    let inner = panel(frame, theme, area, false, "Selected event", Span::styled(last.severity.name(), style));
    let cells = usize::from(inner.width).saturating_sub(1);
    let mut all: Vec<Line> = Vec::new();
    let mut say = |text: &str, style: Style| all.extend(paragraph(text, " ", style, cells));
    say(&last.text, style);
    let age = state.now.saturating_sub(last.at).as_secs();
    let when = match count {
        1 => format!("at {} UTC, {age} s ago", time_of_day(state, last.at)),
        _ => format!("{count} times from {} to {} UTC", time_of_day(state, first.at), time_of_day(state, last.at)),
    };
    say(&when, theme.dim);
    match group.nodes.as_slice() {
        [] => say("It concerns the whole cluster.", theme.dim),
        [_] => say(&format!("{} is on the right; Enter opens its page.", group.names(state)), theme.dim),
        nodes => say(&format!("{} nodes: {}", nodes.len(), group.names(state)), theme.dim),
    }
    lines(frame, inner, all);
}

/// The node of the selected event as it is now.
fn draw_node(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, group: &EventGroup) {
    let node = group.last.node.and_then(|place| state.cluster.nodes.get(place));
    let Some(node) = node else {
        let hint = nodes::tokens_per_second(state).map_or_else(
            || "Nothing is generated.".to_owned(),
            |rate| format!("{rate:.1} tokens/s, {} requests under way", nodes::requests(state)),
        );
        let inner = panel(frame, theme, area, false, "Cluster now", Span::raw(""));
        return lines(frame, inner, [Line::styled(format!(" {hint}"), theme.plain)]);
    };
    let standing = nodes::status_cell(state, node);
    let remark = Span::styled(standing.text.clone(), theme.tone(standing.tone));
    let inner = panel(frame, theme, area, false, &format!("{} now", node.name()), remark);
    let cells = usize::from(inner.width).saturating_sub(1);
    let trends = graphs::lines_of(state, theme, node, [usize::from(inner.width), 1]);
    let findings = node.report.as_ref().map(|report| report.health.findings()).unwrap_or_default();
    let texts = findings.iter().map(|finding| format!("{}: {}", finding.meaning, finding.fix));
    let fault = node.fault().map(|fault| format!("{fault}; {}", fault.next()));
    let words = fault.into_iter().chain(texts).flat_map(|text| paragraph(&clean_line(&text), " ", theme.warn, cells));
    lines(frame, inner, trends.into_iter().chain(words));
}

/// Errors, warnings and notes of the last hour.
fn draw_histogram(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let cells = chart::cells(area);
    let parts = counts(state, HOUR, cells);
    let totals = parts.iter().fold([0; 3], |sum, part| [0, 1, 2].map(|kind| sum[kind] + part[kind]));
    let words = [(2, "error"), (1, "warning"), (0, "note")].map(|(kind, word)| match totals[kind] {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    });
    let remark = words.join(", ");
    let inner = panel(frame, theme, area, false, "Last hour", Span::styled(remark, theme.dim));
    let all = usize::from(inner.height).saturating_sub(1);
    let axis = "60 min ago";
    let kinds = [(2, "err", theme.bad), (1, "warn", theme.warn), (0, "note", theme.accent)];
    let mut y = inner.y;
    for (kind, name, style) in kinds {
        let rows = all / 3 + usize::from(all % 3 > 2 - kind);
        let values: Vec<Option<f64>> = parts.iter().map(|part| (part[kind] > 0).then_some(part[kind].into())).collect();
        let high = scale_end(values.iter().flatten().copied().fold(0.0, f64::max));
        let bars = graph(&values, high, cells, rows).into_iter();
        let bars: Vec<_> = bars.map(|bars| styled(&bars, |_| style, theme.faint)).collect();
        let is_last = kind == 0;
        let place = Rect { y, height: rows as u16 + u16::from(is_last), ..inner };
        y += rows as u16;
        let scale = if rows > 1 { [chart::short(high), name.to_owned()] } else { [name.to_owned(), String::new()] };
        chart::draw_scaled(theme, frame, place, scale, bars, if is_last { axis } else { "" });
    }
}
