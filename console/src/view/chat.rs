//! The page Chat: the conversation, wrapped at a readable width; on wide screens the list of conversations at its left.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};

use crate::{
    conversation::{AnswerBlock, AnswerText, ChatAnswer, ChatTurn, blocks},
    keymap::{Action, ChatAction},
    state::{
        Extent, Panel, State,
        clean::{clean, clean_line},
        request::Phase,
    },
    view::{
        format::{fit, shorten},
        prompt, sampling_form, text,
        theme::Theme,
        widgets::{
            panel::{lines, panel},
            paragraph::paragraph,
        },
    },
};

/// Width of the screen from which on the list is next to the conversation.
const LIST_FROM: u16 = 100;
/// Width of the list.
const LIST: u16 = 28;
/// Largest width of the text, in cells.
const TEXT_MAX: usize = 100;
/// Before each line of a prompt and of an answer.
const INDENT: &str = "  ";

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let prompt_lines = 1 + prompt::height(state, area);
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(prompt_lines)]).areas(area);
    let has_list = state.screen.focus.panel == Panel::Conversations;
    extent.text_height = usize::from(above.height).saturating_sub(1);
    if area.width >= LIST_FROM {
        let [left, right] = Layout::horizontal([Constraint::Length(LIST), Constraint::Fill(1)]).spacing(1).areas(above);
        draw_list(state, theme, frame, left);
        extent.text_lines = draw_text(state, theme, frame, right);
    } else if has_list {
        // A narrow screen has room for one of them.
        draw_list(state, theme, frame, above);
    } else {
        extent.text_lines = draw_text(state, theme, frame, above);
    }
    prompt::draw(state, theme, frame, below);
    sampling_form::draw(state, theme, frame, area);
}

/// Renders the list of conversations; the latest is first.
fn draw_list(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let focused = state.screen.focus.panel == Panel::Conversations;
    let chat = &state.chat;
    let count = Span::styled(chat.all.len().to_string(), theme.dim);
    let area = panel(frame, theme, area, focused, "Conversations", count);
    let cells = usize::from(area.width).saturating_sub(3);
    let mut rows = Vec::new();
    let current = chat.current.as_deref().and_then(|id| chat.place(id));
    if current.is_none() {
        rows.push(row(theme, "new conversation", true, false, cells));
    }
    let height = usize::from(area.height).saturating_sub(rows.len()).max(1);
    let first = current.map_or(0, |place| (place + 1).saturating_sub(height));
    for (place, conversation) in chat.all.iter().enumerate().skip(first).take(height) {
        let awaits = chat.awaited.as_ref() == Some(&conversation.id);
        rows.push(row(theme, &clean_line(&conversation.title()), current == Some(place), awaits, cells));
    }
    lines(frame, area, rows);
}

fn row(theme: &Theme, title: &str, is_current: bool, awaits: bool, cells: usize) -> Line<'static> {
    let mark = if awaits { " ◆ " } else { "   " };
    let line = Line::from_iter([Span::styled(mark, theme.warn), Span::styled(fit(title, cells), theme.plain)]);
    line.style(if is_current { theme.selected } else { Style::new() })
}

/// Renders the conversation; returns the number of its lines.
fn draw_text(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> usize {
    let width = usize::from(area.width).saturating_sub(3).min(TEXT_MAX);
    let all = content(state, theme, width);
    let count = all.len();
    let title = state.chat.shown().map_or_else(|| "New conversation".to_owned(), |shown| clean_line(&shown.title()));
    let remark = if state.chat.awaits() { text::status(&state.generation.request, theme) } else { model(state, theme) };
    text::draw_lines(state, theme, frame, area, &title, remark, all);
    count
}

/// The running model.
fn model(state: &State, theme: &Theme) -> Span<'static> {
    let model = state.cluster.topology().map(|(topology, _)| clean_line(&topology.model));
    Span::styled(shorten(&model.unwrap_or_default(), 40), theme.dim)
}

/// The lines of the conversation.
fn content(state: &State, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let mut all = Vec::new();
    let system = state.chat.shown().map_or(&state.chat.system, |shown| &shown.system);
    if !system.is_empty() {
        all.extend(paragraph(&format!("System prompt: {}", clean_line(system)), "", theme.dim, width));
    }
    let Some(shown) = state.chat.shown() else {
        all.extend(begin(state, theme, width));
        return all;
    };
    let count = shown.turns.len();
    for (place, turn) in shown.turns.iter().enumerate() {
        let is_last = place + 1 == count;
        all.extend(prompt_of(turn, is_last && state.chat.edits, theme, width));
        match &turn.answer {
            Some(answer) => all.extend(answer_of(state, answer, is_last, theme, width)),
            None if is_last && state.chat.awaits() => all.extend(arriving(state, theme, width)),
            None if is_last => {
                all.extend(paragraph("Not answered; Enter sends it again.", INDENT, theme.dim, width));
                all.extend(text::situation(state, theme, width));
            }
            None => {}
        }
    }
    all
}

/// What a new conversation shows.
fn begin(state: &State, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let keys = &state.preferences.keys;
    let key = |action| keys.key_of(Action::Chat(action));
    let words = if state.readonly {
        "This dashboard is read-only. To send messages, start it without --readonly.".to_owned()
    } else if state.cluster.is_ready() {
        format!(
            "Type a message and press Enter. Esc stops an answer. Outside of the prompt box (Esc): {} edits the last message, {} answers it again, {} shows thoughts, {} sets a system prompt, ? lists all keys.",
            key(ChatAction::ChatEdit),
            key(ChatAction::ChatAgain),
            key(ChatAction::ChatThoughts),
            key(ChatAction::ChatSystem),
        )
    } else {
        return text::situation(state, theme, width);
    };
    paragraph(&words, "", theme.dim, width)
}

fn prompt_of(turn: &ChatTurn, is_edited: bool, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let title = if is_edited { "You (being edited; Enter sends the new text)" } else { "You" };
    let mut all = vec![Line::styled(title, theme.accent)];
    all.extend(
        paragraph(clean(&turn.prompt).trim_end(), "┃ ", theme.plain, width).into_iter().map(|line| bar(line, theme)),
    );
    all.push(Line::raw(""));
    all
}

/// A line with its first two cells in the colour of the user.
fn bar(line: Line<'static>, theme: &Theme) -> Line<'static> {
    let mut spans = line.spans;
    if let Some(first) = spans.first_mut() {
        first.style = theme.accent;
    }
    Line::from(spans)
}

fn answer_of(state: &State, answer: &ChatAnswer, is_last: bool, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let read = AnswerText { thought: answer.thought.clone(), text: answer.text.clone(), thinks: false };
    let mut all = body(state, &answer.model, &read, theme, width);
    if let Some(failure) = &answer.failure {
        all.extend(paragraph(&format!("Failed: {}", clean_line(failure)), INDENT, theme.bad, width));
        if is_last {
            all.extend(paragraph("Enter sends the message again.", INDENT, theme.plain, width));
        }
    }
    if !answer.figures.is_empty() {
        all.extend(paragraph(&clean_line(&answer.figures), INDENT, theme.dim, width));
    }
    all.push(Line::raw(""));
    all
}

/// The answer that is being written.
fn arriving(state: &State, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let request = &state.generation.request;
    let read = state.chat.arrived(request);
    let model = state.generation.sent_model.as_deref().unwrap_or_default();
    let mut all = body(state, model, &read, theme, width);
    let waits = match request.phase {
        Phase::Held => return text::situation(state, theme, width),
        Phase::Queued => "queued ..",
        Phase::Prefill => "reads the conversation ..",
        _ if read.thinks => "thinks ..",
        _ => return all,
    };
    all.push(Line::styled(format!("{INDENT}{waits}"), theme.warn));
    all
}

/// The name of the model, its thought, its text and its calls.
fn body(state: &State, model: &str, read: &AnswerText, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let name = if model.is_empty() { "Model".to_owned() } else { clean_line(model) };
    let mut all = vec![Line::styled(name, theme.ok)];
    if !read.thought.is_empty() {
        let words = read.thought.split_whitespace().count();
        let plural = if words == 1 { "" } else { "s" };
        let key = key_here(state, ChatAction::ChatThoughts);
        let (mark, verb) = if state.chat.shows_thoughts { ("▾", "hides") } else { ("▸", "shows") };
        all.push(Line::styled(format!("{INDENT}{mark} thought, {words} word{plural} ({key} {verb} it)"), theme.dim));
        if state.chat.shows_thoughts {
            all.extend(paragraph(&clean(&read.thought), "  │ ", theme.dim, width));
        }
    }
    for block in blocks(&read.text) {
        match block {
            AnswerBlock::Text(text) => all.extend(paragraph(clean(text).trim_end(), INDENT, theme.plain, width)),
            AnswerBlock::Call(call) => {
                all.push(Line::styled(format!("{INDENT}┌ tool call; this console runs no tools"), theme.warn));
                all.extend(paragraph(&clean(call), "  │ ", theme.warn, width));
            }
        }
    }
    all
}

/// The key of an action for display: in the prompt box, letters are text.
fn key_here(state: &State, action: ChatAction) -> String {
    let (keys, action) = (&state.preferences.keys, Action::Chat(action));
    let here = keys.bindings(state.screen.focus).find(|binding| binding.action == action);
    let key = here.and_then(|binding| binding.keys.first());
    key.map_or_else(|| keys.key_of(action), ToString::to_string)
}
