//! The Requests page: running and waiting requests on all heads and the last finished ones, the selected one in detail
//! with its stages as a bar, and charts over time.
use common::{latency::RequestTimes, units::Nanoseconds};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
};
use telemetry::{RequestReport, RequestStage};

use crate::{
    state::{
        Extent, State,
        clean::clean_line,
        node::Node,
        nodes,
        pulse::{ClusterMoment, moments},
        requests::{finished, model, rate, reason, table, tone},
        tables::selected_trace,
    },
    view::{
        chart::{self, Chart},
        format::{milliseconds, percent},
        tables::{self, TableTexts},
        theme::Theme,
        widgets::{
            bar::stacked,
            panel::{lines, panel},
            paragraph::paragraph,
        },
    },
};

/// Lines of the table in addition to its rows: rule, heading and filter.
const TABLE_LINES: u16 = 3;
/// Lines of the selected request: a rule, what it is, its bar, the bar's legend, and why it ended.
const DETAIL_LINES: u16 = 6;
/// Least height of a row of charts, and of two rows.
const CHART_LINES: (u16, u16) = (6, 12);
/// Least height of a page with the selected request.
const HEIGHT_DETAIL: u16 = 16;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let remark = match nodes::requests(state) {
        0 => "none under way".to_owned(),
        count => format!("{count} under way"),
    };
    let rows = table(state).rows.len() as u16;
    let selected = selected_trace(state).filter(|_| area.height >= HEIGHT_DETAIL);
    let detail = if selected.is_some() { DETAIL_LINES } else { 0 };
    let least = rows.max(1).saturating_add(TABLE_LINES).min(area.height / 2);
    let charts = area.height.saturating_sub(least + detail);
    let charts = if charts >= CHART_LINES.0 { charts } else { 0 };
    let parts = [Constraint::Fill(1), Constraint::Length(detail), Constraint::Length(charts)];
    let [above, middle, below] = Layout::vertical(parts).areas(area);
    let texts = TableTexts {
        title: "Requests",
        remark: Span::styled(remark, theme.dim),
        empty: "No request yet. i opens the prompt box.",
        repeats: selected.is_none(),
    };
    tables::draw(state, theme, frame, above, texts, extent);
    if let Some((head, trace)) = selected {
        draw_selected(theme, frame, middle, &state.cluster.nodes[head], trace);
    }
    if charts > 0 {
        draw_charts(state, theme, frame, below);
    }
}

fn draw_selected(theme: &Theme, frame: &mut Frame, area: Rect, head: &Node, trace: &RequestReport) {
    let by = clean_line(&trace.by);
    let title = format!("Request {} of {by} on {}", trace.number, head.name());
    let stage = Span::styled(trace.stage.name(), theme.tone(tone(&trace.stage)));
    let inner = panel(frame, theme, area, false, &title, stage);
    let cells = usize::from(inner.width).saturating_sub(2);
    let mut all = paragraph(&facts(head, trace), " ", theme.plain, cells + 1);
    all.extend(bars(theme, trace, cells));
    let (why, style) = match &trace.stage {
        RequestStage::Finished(why, _) => (reason(*why).to_owned(), theme.dim),
        RequestStage::Failed(fault) => (clean_line(&format!("{fault}; {}", fault.next())), theme.bad),
        RequestStage::Abandoned => ("the client disconnected".to_owned(), theme.dim),
        RequestStage::Queued => ("It waits until a slot is free. X cancels it.".to_owned(), theme.dim),
        RequestStage::Prefill => ("The nodes read its prompt. X cancels it.".to_owned(), theme.dim),
        RequestStage::Decoding => ("Its answer is being written. X cancels it.".to_owned(), theme.dim),
    };
    all.extend(paragraph(&why, " ", style, cells + 1));
    lines(frame, inner, all);
}

/// A request in a sentence.
fn facts(head: &Node, trace: &RequestReport) -> String {
    let age = format!("{:.1} s", trace.age_ms as f64 / 1e3);
    let mut parts = vec![if trace.stage.is_over() { format!("ended {age} ago") } else { format!("{age} old") }];
    parts.push(model(head));
    if trace.prompt_tokens > 0 {
        parts.push(format!("prompt {} tokens", trace.prompt_tokens));
    }
    if let RequestStage::Finished(_, times) = &trace.stage
        && times.cached_tokens > 0
    {
        parts.push(format!("{} of them cached", times.cached_tokens));
    }
    match trace.max_tokens {
        0 => parts.push(format!("answer {} tokens", trace.tokens)),
        most => parts.push(format!("answer {} of at most {most} tokens", trace.tokens)),
    }
    parts.extend(rate(trace).map(|rate| format!("{rate:.1} tokens/s")));
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

/// The stages of a finished request, or the progress of one under way, with the legend.
fn bars(theme: &Theme, trace: &RequestReport, cells: usize) -> Vec<Line<'static>> {
    let indented = |spans: Vec<Span<'static>>| Line::from_iter(std::iter::once(Span::raw(" ")).chain(spans));
    match &trace.stage {
        RequestStage::Finished(_, times) if times.last_token.0 > 0 => {
            let [queue, prompt, answer] = stages(times);
            let parts = [(queue.0, "▒", theme.warn), (prompt.0, "▓", theme.accent), (answer.0, "█", theme.ok)];
            let total = queue.0 + prompt.0 + answer.0;
            let ms = |time: Nanoseconds| milliseconds(time.milliseconds());
            let legend = vec![
                Span::styled("▒", theme.warn),
                Span::styled(format!(" queue {}   ", ms(queue)), theme.dim),
                Span::styled("▓", theme.accent),
                Span::styled(format!(" prompt {}   ", ms(prompt)), theme.dim),
                Span::styled("█", theme.ok),
                Span::styled(format!(" answer {}   ", ms(answer)), theme.dim),
                Span::styled(format!("first token after {}", milliseconds(times.ttft_ms())), theme.dim),
            ];
            vec![indented(stacked(&parts, total, cells)), indented(legend)]
        }
        stage if !stage.is_over() && trace.max_tokens > 0 => {
            let left = trace.max_tokens.saturating_sub(trace.tokens);
            let style = theme.tone(tone(stage));
            let parts = [(u64::from(trace.tokens), "█", style), (u64::from(left), "░", theme.faint)];
            let rest = rate(trace).map_or_else(String::new, |rate| {
                format!(", at most {:.0} s left", common::latency::ratio(f64::from(left), rate))
            });
            let share = common::latency::ratio(f64::from(trace.tokens), f64::from(trace.max_tokens));
            let legend = vec![Span::styled(format!("{} of the most tokens{rest}", percent(share)), theme.dim)];
            vec![indented(stacked(&parts, u64::from(trace.max_tokens), cells)), indented(legend)]
        }
        _ => Vec::new(),
    }
}

/// Times in the queue, until the first token, and until the last one.
fn stages(times: &RequestTimes) -> [Nanoseconds; 3] {
    let queue = times.dispatched.0;
    let first = times.first_token.0.max(queue);
    [queue, first - queue, times.last_token.0.saturating_sub(first)].map(Nanoseconds)
}

/// Rates and counts of all heads over time, and the latencies of the latest finished requests.
fn draw_charts(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let rows = if area.height >= CHART_LINES.1 { 2 } else { 1 };
    let areas = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    let halves = |area: Rect| -> [Rect; 2] { Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(area) };
    let [left, right] = halves(areas[areas.len() - 1]);
    let times = finished(state);
    let ttft: Vec<Option<f64>> = times.iter().map(|times| Some(times.ttft_ms())).collect();
    let tpot = times.iter().filter(|times| times.sampled_tokens > 1).map(|times| Some(times.tpot_ms()));
    let tpot: Vec<Option<f64>> = tpot.collect();
    for (title, values, area) in [("TTFT of finished requests", ttft, left), ("TPOT of finished requests", tpot, right)]
    {
        let last = values.last().copied().flatten();
        let remark = last.map_or_else(String::new, |last| format!("last {}", milliseconds(last)));
        chart::draw(theme, frame, area, Chart { title, remark, values: &values, mark: chart::milliseconds, axis: "" });
    }
    if rows < 2 {
        return;
    }
    let [left, right] = halves(areas[0]);
    let moments = moments(state, chart::cells(left));
    let axis = format!("{} s ago", moments.len());
    let rates: Vec<Option<f64>> = moments.iter().map(|moment: &ClusterMoment| moment.tokens_per_second).collect();
    let counts: Vec<Option<f64>> = moments.iter().map(|moment: &ClusterMoment| moment.requests).collect();
    for (title, values, area) in [("Tokens/s of all", rates, left), ("Requests under way", counts, right)] {
        let last = values.last().copied().flatten();
        let remark = last.map_or_else(String::new, |last| format!("{last:.0} now"));
        let chart = Chart { title, remark, values: &values, mark: chart::short, axis: &axis };
        chart::draw(theme, frame, area, chart);
    }
}
