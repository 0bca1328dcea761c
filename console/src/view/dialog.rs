//! The dialog in the middle of the screen before an operation: its effect, the input, and the keys.
use ratatui::{
    Frame,
    layout::{Position, Rect},
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    state::{
        State,
        clean::clean_line,
        editor::Editor,
        operation::{Dialog, Question},
    },
    view::{
        format::{fit, shorten, width},
        question::{self, Paragraph},
        theme::Theme,
        widgets::{
            panel::{lines, panel},
            paragraph::paragraph,
        },
    },
};

/// Maximum width of the box.
const WIDTH: u16 = 72;
/// Width of the input labels, in cells.
const LABEL: usize = 9;

/// Renders the dialog, if one is open, over everything else.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let Some(dialog) = &state.operations.dialog else { return };
    let words = question::words(state, dialog);
    let cells = WIDTH.min(area.width.saturating_sub(4));
    let inner = usize::from(cells).saturating_sub(2);
    let mut body: Vec<Line> = Vec::new();
    for Paragraph { text, is_grave } in &words.paragraphs {
        let style = if *is_grave { theme.bad } else { theme.plain };
        body.extend(paragraph(&clean_line(text), " ", style, inner + 1));
    }
    let mut cursor = None;
    if dialog.reason.is_some() || dialog.name.is_some() {
        body.push(Line::raw(""));
    }
    for (label, editor, has_keys) in inputs(dialog) {
        let (line, column) = input(theme, label, editor, inner);
        if has_keys {
            cursor = Some((column, body.len() as u16));
        }
        body.push(line);
        if let Some(error) = dialog.error.as_deref().filter(|_| has_keys) {
            let indent = " ".repeat(LABEL + 3);
            body.push(Line::styled(indent + &shorten(error, inner.saturating_sub(LABEL + 3)), theme.bad));
        }
    }
    body.push(Line::raw(""));
    let keys = words.keys.iter().flat_map(|(key, what)| {
        [Span::styled(format!(" {key}"), theme.accent), Span::styled(format!(" {what}  "), theme.plain)]
    });
    body.push(Line::from_iter(keys));
    let height = (body.len() as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - cells) / 2,
        y: area.y + (area.height.saturating_sub(height)) / 2,
        width: cells,
        height,
    };
    // One cell on either side separates its text from the content below.
    frame.render_widget(Clear, Rect { x: place.x - 1, width: cells + 2, ..place });
    let below = panel(frame, theme, place, true, &clean_line(&words.title), Span::raw(""));
    lines(frame, below, body);
    let rule = Rect { y: place.y + height - 1, height: 1, ..place };
    frame.render_widget(Line::styled("━".repeat(usize::from(cells)), theme.accent), rule);
    if let Some((x, y)) = cursor {
        frame.set_cursor_position(Position { x: below.x + x.min(cells - 1), y: below.y + y });
    }
}

/// The inputs: label, text so far, and whether it has the focus.
fn inputs(dialog: &Dialog) -> impl Iterator<Item = (&'static str, &Editor, bool)> {
    let name = match dialog.question {
        Question::Out { .. } => Some("Its name"),
        Question::SystemPrompt => Some("Text"),
        Question::RenameConversation { .. } => Some("Title"),
        _ => None,
    };
    let is_form = name.is_some();
    let reason = dialog.reason.iter().map(|editor| ("Reason", editor, !dialog.in_name));
    let typed = dialog.name.iter().map(move |editor| (name.unwrap_or_default(), editor, dialog.in_name));
    reason.chain(typed).filter(move |_| is_form)
}

/// An input line, and the cursor's column. Of a long input the end before the cursor is visible.
fn input(theme: &Theme, label: &str, editor: &Editor, cells: usize) -> (Line<'static>, u16) {
    let room = cells.saturating_sub(LABEL + 4);
    let all: Vec<char> = editor.before_cursor().chars().collect();
    let mut before = String::new();
    for letter in all.iter().rev() {
        let longer: String = std::iter::once(*letter).chain(before.chars()).collect();
        if width(&longer) > room {
            break;
        }
        before = longer;
    }
    let after = &editor.text()[editor.before_cursor().len()..];
    let column = (LABEL + 3 + width(&before)) as u16;
    let text = fit(&format!("{before}{after}"), room + 1);
    let line = [Span::styled(format!(" {}> ", fit(label, LABEL)), theme.accent), Span::styled(text, theme.plain)];
    (Line::from_iter(line), column)
}
