//! The question before something is done to nodes, in the middle of the screen.
use ratatui::{
    Frame,
    layout::{Position, Rect},
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    state::{State, operation::Dialog, plan::preview},
    view::{
        format::{width, wrap_words},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Widest box.
const WIDTH: u16 = 72;

/// Draws the question, if one waits, over everything else.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let Some(dialog) = &state.dialog else { return };
    let (title, text) = words(state, dialog);
    let cells = WIDTH.min(area.width.saturating_sub(4));
    let inner = usize::from(cells).saturating_sub(2);
    let mut body: Vec<Line> =
        wrap_words(&text, inner).into_iter().map(|range| Line::raw(format!(" {}", &text[range]))).collect();
    let mut cursor = None;
    if let Dialog::Exclude { reason, .. } = dialog {
        let tail = |text: &str| text.chars().rev().take(inner.saturating_sub(10)).collect::<Vec<_>>();
        let before: String = tail(reason.before_cursor()).into_iter().rev().collect();
        cursor = Some((10 + width(&before) as u16, body.len() as u16 + 1));
        let after = &reason.text()[reason.before_cursor().len()..];
        body.push(Line::raw(""));
        body.push(Line::from_iter([Span::styled(" Reason > ", theme.accent), Span::raw(format!("{before}{after}"))]));
    }
    body.push(Line::raw(""));
    body.push(Line::from_iter([
        Span::styled(" Enter", theme.accent),
        Span::styled(" yes   ", theme.plain),
        Span::styled("Esc", theme.accent),
        Span::styled(" no", theme.plain),
    ]));
    let height = (body.len() as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - cells) / 2,
        y: area.y + (area.height.saturating_sub(height)) / 2,
        width: cells,
        height,
    };
    frame.render_widget(Clear, place);
    let below = panel(frame, theme, place, true, &title, Span::raw(""));
    lines(frame, below, body);
    let rule = Rect { y: place.y + height - 1, height: 1, ..place };
    frame.render_widget(Line::styled("━".repeat(usize::from(cells)), theme.accent), rule);
    if let Some((x, y)) = cursor {
        frame.set_cursor_position(Position { x: below.x + x.min(cells - 1), y: below.y + y });
    }
}

fn words(state: &State, dialog: &Dialog) -> (String, String) {
    let name = |place: &usize| state.nodes[*place].name().to_owned();
    match dialog {
        Dialog::Restart { which, continues } => {
            let names = which.iter().map(name).collect::<Vec<_>>().join(", ");
            let first = if *continues { "Go on with the restart of" } else { "Restart, one by one:" };
            let text = format!(
                "{first} {names}? Each finishes what runs (at most its drain time), ends, is started again by its \
                 supervisor, and the topology is assigned anew before the next one goes. Prompts wait meanwhile. Any \
                 trouble stops it where it is."
            );
            ("Rolling restart".to_owned(), text)
        }
        Dialog::Exclude { node, .. } => {
            let rest = state.usable().len().saturating_sub(1);
            let text = format!(
                "Take {} out? What runs may finish within 20 s, then the topology is assigned anew on the {rest} other \
                 nodes. It stays out, also over restarts, until it is taken in again.",
                name(node)
            );
            (format!("Take {} out", name(node)), text)
        }
        Dialog::Assign { candidate } => (format!("Assign {candidate}"), preview(state, candidate).join("\n")),
        Dialog::Include { node } => {
            let reason =
                state.exclusion(&state.nodes[*node]).and_then(|entry| entry.reason.clone()).unwrap_or_default();
            let text = format!(
                "Take {} in again? It is out for: {reason}. What runs may finish within 20 s, then the topology is \
                 assigned anew with it.",
                name(node)
            );
            (format!("Take {} in", name(node)), crate::state::clean::clean_line(&text))
        }
    }
}
