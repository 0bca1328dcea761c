//! The text panel: the prompt, the generated text and how it ended; without a text, the next step.
use std::ops::Range;

use common::fault::Fault;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{
        AssignmentStatus, Panel, State, TextScroll,
        clean::{clean, clean_line},
        request::{Phase, Request},
        requests,
        result::GenerationResult,
        status::hint,
    },
    view::{
        format::{shorten, wrap_words},
        theme::Theme,
        widgets::{
            panel::{lines, panel},
            paragraph::paragraph,
        },
    },
};

/// Renders the panel with its [`content`]; returns the total and the visible number of lines.
pub(super) fn draw(
    state: &State,
    theme: &Theme,
    frame: &mut Frame,
    area: Rect,
    content: Vec<Line<'static>>,
) -> (usize, usize) {
    let (count, remark) = (content.len(), status(&state.generation.request, theme));
    draw_lines(state, theme, frame, area, "Text", remark, content);
    (count, usize::from(area.height).saturating_sub(1))
}

/// Renders lines in the panel [`Panel::Text`], scrolled; the title names the number of lines below.
pub(super) fn draw_lines(
    state: &State,
    theme: &Theme,
    frame: &mut Frame,
    area: Rect,
    title: &str,
    remark: Span<'static>,
    all: Vec<Line<'static>>,
) {
    let last = all.len().saturating_sub(usize::from(area.height).saturating_sub(1));
    let first = first_line(state, last);
    let title = if first < last { format!("{title}, {} lines below", last - first) } else { title.to_owned() };
    let area = panel(frame, theme, area, state.screen.focus.panel == Panel::Text, &title, remark);
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    lines(frame, area, all.into_iter().skip(first));
}

/// The first visible line; `last`: the one with which the end is visible.
fn first_line(state: &State, last: usize) -> usize {
    match state.screen.scroll.text {
        TextScroll::Follow => last,
        TextScroll::At(line) => line.min(last),
    }
}

/// Renders the pinned text, scrolled like the current one.
pub(super) fn draw_pinned(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, pinned: &GenerationResult) {
    let width = usize::from(area.width).saturating_sub(2);
    let height = usize::from(area.height).saturating_sub(1);
    let prompt = if pinned.is_cut { String::new() } else { clean(&pinned.prompt) };
    let all = flow(&prompt, &pinned.text, theme, width);
    let first = first_line(state, all.len().saturating_sub(height));
    let area = panel(frame, theme, area, false, "Pinned", Span::styled(pinned.on.clone(), theme.dim));
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    lines(frame, area, all.into_iter().skip(first));
}

/// The lines of the text in a panel of this width.
pub(super) fn content(state: &State, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let width = usize::from(width).saturating_sub(2);
    let request = &state.generation.request;
    let mut content = Vec::new();
    if request.phase != Phase::Nothing {
        if request.is_cut {
            content.push(Line::styled("(the start was left out)", theme.dim));
        }
        let prompt = if request.is_cut { "" } else { request.prompt_shown.as_str() };
        content.extend(flow(prompt, &request.text, theme, width));
    }
    match &request.phase {
        Phase::Failed(fault) => content.extend(failure(fault, theme, width)),
        Phase::Held | Phase::Nothing | Phase::Finished(_) | Phase::Withdrawn => {
            content.extend(situation(state, theme, width))
        }
        Phase::Queued | Phase::Prefill | Phase::Decoding | Phase::Cancelling => {}
    }
    content
}

/// The current obstacle and the next step; empty if a text is finished.
pub(super) fn situation(state: &State, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let is_over = matches!(state.generation.request.phase, Phase::Finished(_) | Phase::Withdrawn);
    if is_over && state.cluster.is_ready() && !matches!(state.cluster.assignment, AssignmentStatus::Failed(_)) {
        return Vec::new();
    }
    let mut lines = Vec::new();
    if let AssignmentStatus::Failed(fault) = &state.cluster.assignment {
        lines.extend(paragraph(&clean_line(&format!("Not assigned: {fault}")), "", theme.bad, width));
    }
    lines.extend(paragraph(&clean_line(&hint(state)), "", theme.dim, width));
    lines
}

fn failure(fault: &Fault, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let mut lines = paragraph(&clean_line(&format!("Failed: {fault}")), "", theme.bad, width);
    lines.extend(paragraph(&clean_line(&format!("Next: {}.", fault.next())), "", theme.plain, width));
    lines
}

/// Prompt and completion as one text; the prompt is dim.
fn flow(prompt: &str, text: &str, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let text = format!("{prompt}{text}");
    let border = prompt.len();
    wrap_words(&text, width)
        .into_iter()
        .map(|range: Range<usize>| {
            let middle = border.clamp(range.start, range.end);
            let prompt = Span::styled(text[range.start..middle].to_owned(), theme.dim);
            Line::from_iter([prompt, Span::styled(text[middle..range.end].to_owned(), theme.plain)])
        })
        .collect()
}

pub(super) fn status(request: &Request, theme: &Theme) -> Span<'static> {
    let tokens = |count: u32| if count == 1 { "1 token".to_owned() } else { format!("{count} tokens") };
    let (text, style) = match &request.phase {
        Phase::Nothing => (String::new(), theme.dim),
        Phase::Held => ("kept until a topology runs".to_owned(), theme.warn),
        Phase::Queued => ("queued".to_owned(), theme.warn),
        Phase::Prefill => (format!("prefill of {} prompt tokens", request.prompt_tokens), theme.warn),
        Phase::Decoding => (format!("decoding, {}", tokens(request.tokens)), theme.ok),
        Phase::Cancelling => ("cancelling".to_owned(), theme.warn),
        Phase::Withdrawn => ("cancelled before it was sent".to_owned(), theme.dim),
        Phase::Failed(fault) => (format!("failed: {}", fault.kind.code()), theme.bad),
        Phase::Finished(finished) => {
            let why = requests::reason(finished.reason);
            (format!("{}, {why}", tokens(finished.times.sampled_tokens)), theme.dim)
        }
    };
    Span::styled(shorten(&text, 60), style)
}
