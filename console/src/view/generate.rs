//! The Generate page: the text, or two side by side; a time breakdown; a comparison with the pinned result.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
};

use crate::{
    state::{Extent, State},
    view::{
        chart::{self, Chart},
        compare,
        format::milliseconds,
        prompt, sampling_form, text,
        theme::Theme,
        waterfall,
    },
};

/// Minimum height of the text, in lines, before anything else gets room.
const TEXT_MIN: u16 = 4;

/// Least height of the chart of token times.
const CHART_MIN: u16 = 6;

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let prompt_lines = 1 + prompt::height(state, area);
    let room = area.height.saturating_sub(prompt_lines + TEXT_MIN);
    let compares = compare::height(state);
    let stages = waterfall::height(state);
    // The comparison has priority: the header also shows the figures of the last request.
    let compares = if compares <= room { compares } else { 0 };
    let stages = if compares + stages <= room { stages } else { 0 };
    let heights = [
        Constraint::Fill(1),
        Constraint::Length(compares),
        Constraint::Length(stages),
        Constraint::Length(prompt_lines),
    ];
    let [texts, comparison, times, below] = Layout::vertical(heights).areas(area);
    match &state.generation.pinned {
        Some(pinned) if compares > 0 => {
            let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(texts);
            text::draw_pinned(state, theme, frame, left, pinned);
            let content = text::content(state, theme, right.width);
            (extent.text_lines, extent.text_height) = text::draw(state, theme, frame, right, content);
            compare::draw(state, theme, frame, comparison, pinned);
        }
        _ => {
            let content = text::content(state, theme, texts.width);
            let [above, times] = split_text(state, content.len(), texts);
            (extent.text_lines, extent.text_height) = text::draw(state, theme, frame, above, content);
            if times.height > 0 {
                draw_tokens(state, theme, frame, times);
            }
        }
    }
    if stages > 0 {
        waterfall::draw(state, theme, frame, times);
    }
    prompt::draw(state, theme, frame, below);
    sampling_form::draw(state, theme, frame, area);
}

/// The areas of a text of `lines` lines and, in the room that it leaves, of the chart of token times (or none).
fn split_text(state: &State, lines: usize, area: Rect) -> [Rect; 2] {
    // A rule above the text, and an empty line below it.
    let text = lines.saturating_add(2).max(usize::from(TEXT_MIN));
    let rest = area.height.saturating_sub(u16::try_from(text).unwrap_or(u16::MAX));
    let is_shown = rest >= CHART_MIN && state.generation.request.gaps().len() > 1;
    Layout::vertical([Constraint::Fill(1), Constraint::Length(if is_shown { rest } else { 0 })]).areas(area)
}

/// The time of each token after the first one, as it arrived here.
fn draw_tokens(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let times: Vec<f64> = state.generation.request.gaps().iter().map(|gap| gap.as_secs_f64() * 1e3).collect();
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let longest = sorted.last().copied().unwrap_or_default();
    let remark = format!("median {}, longest {}", milliseconds(sorted[sorted.len() / 2]), milliseconds(longest));
    let values: Vec<Option<f64>> = times.into_iter().map(Some).collect();
    let chart = Chart { title: "Time of each token", remark, values: &values, mark: chart::milliseconds, axis: "" };
    chart::draw(theme, frame, area, chart);
}
