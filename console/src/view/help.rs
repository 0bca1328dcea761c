//! The help page: the keys of the current page, those of all pages, the mouse, the command line, the other pages, and the
//! glossary. On a read-only dashboard and in a replay without the keys that are refused there.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    keymap::{Action, NavigateAction, Page, Panel, Place},
    state::{State, command},
    view::{
        format::{fit, wrap_words},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Width of the keys' column, in cells.
const KEYS: usize = 22;
/// Width of the terms' column, in cells.
const TERMS: usize = 28;
/// The document that defines the terms; the help page shows the same table.
const ARCHITECTURE: &str = include_str!("../../../ARCHITECTURE.md");
/// What the mouse does.
const MOUSE: [(&str, &str); 6] = [
    ("click a tab", "open the page"),
    ("click a row", "select it; again: open it"),
    ("click a column head", "sort by it; again: reverse"),
    ("click a key below", "do what the key does"),
    ("wheel", "scroll what is under the pointer"),
    ("Shift and drag", "select text, in most terminals; m releases the mouse"),
];

/// Renders the page over the whole screen; returns the total and the visible number of lines.
pub(super) fn draw(first: usize, state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> (usize, usize) {
    frame.render_widget(Clear, area);
    let all = content(state, theme, usize::from(area.width));
    let height = usize::from(area.height).saturating_sub(1);
    let first = first.min(all.len().saturating_sub(height));
    let remark = if all.len() > height { "↓ ↑ scroll, any other key closes" } else { "any key closes" };
    let title = format!("Help: page {}", state.screen.focus.page.title());
    let area = panel(frame, theme, area, true, &title, Span::styled(remark, theme.dim));
    let count = all.len();
    lines(frame, area, all.into_iter().skip(first));
    (count, height)
}

fn content(state: &State, theme: &Theme, cells: usize) -> Vec<Line<'static>> {
    let page = state.screen.focus.page;
    let mut content = Vec::new();
    let own = [Some(Place::On(page)), page.has_table().then_some(Place::Tables)];
    let box_below = page.panels().contains(&Panel::Prompt).then_some(Place::Prompt);
    let about = about(state, page);
    content.push(Line::from_iter([
        Span::styled(format!(" Page {}", page.title()), theme.accent),
        Span::styled(format!(": {about}"), theme.plain),
    ]));
    for place in own.into_iter().chain([box_below]).flatten() {
        let title = if place == Place::On(page) { String::new() } else { place.title() };
        content.extend(section(state, theme, cells, place, &title));
    }
    for place in [Place::Tour, Place::Replay, Place::Anywhere, Place::Panels, Place::Filter] {
        content.extend(section(state, theme, cells, place, &place.title()));
    }
    content.push(Line::styled(" Mouse", theme.plain));
    content.extend(MOUSE.iter().flat_map(|(key, what)| row(theme, cells, KEYS, key, what)));
    content.push(Line::styled(" Command line (:)", theme.plain));
    let words = command::WORDS.iter();
    content.extend(words.flat_map(|(word, what)| row(theme, cells, KEYS, &format!(":{word}"), what)));
    for other in Page::ALL.into_iter().filter(|other| *other != page) {
        let place = Place::On(other);
        content.extend(section(state, theme, cells, place, &place.title()));
    }
    content.push(Line::styled(" Terms", theme.plain));
    content.extend(glossary().flat_map(|(term, meaning)| row(theme, cells, TERMS, term, &meaning.replace('`', ""))));
    content
}

/// What a page is for: the description of the key that opens it.
fn about(state: &State, page: Page) -> &'static str {
    let action = Action::Navigate(NavigateAction::Show(page));
    state.preferences.keys.all().find(|binding| binding.action == action).map_or("", |binding| binding.what)
}

/// The keys of one section below its title; nothing if none of them is available.
fn section(state: &State, theme: &Theme, cells: usize, place: Place, title: &str) -> Vec<Line<'static>> {
    let rows = state.preferences.keys.all().filter(|binding| {
        let has_place = binding.place == place && state.offers_place(place);
        has_place && !binding.keys.is_empty() && state.offers(binding.action)
    });
    let rows = rows.flat_map(|binding| row(theme, cells, KEYS, &binding.keys_text(), binding.what));
    let mut section: Vec<Line> = rows.collect();
    if !section.is_empty() && !title.is_empty() {
        section.insert(0, Line::styled(format!(" {title}"), theme.plain));
    }
    section
}

/// A key or a term, and its meaning on as many lines as needed.
fn row(theme: &Theme, cells: usize, column: usize, title: &str, meaning: &str) -> Vec<Line<'static>> {
    let ranges = wrap_words(meaning, cells.saturating_sub(column + 4).max(20));
    let lines = ranges.into_iter().enumerate().map(|(index, range)| {
        let title = Span::styled(format!("   {}", fit(if index == 0 { title } else { "" }, column)), theme.accent);
        Line::from_iter([title, Span::styled(meaning[range].trim_end().to_owned(), theme.plain)])
    });
    lines.collect()
}

/// Terms and their meanings, from the glossary's table in ARCHITECTURE.md.
fn glossary() -> impl Iterator<Item = (&'static str, &'static str)> {
    let section = ARCHITECTURE.split_once("\n## Glossary\n").map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(table, _)| table);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.filter(|row| *row != ("term", "meaning"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::Story,
        state::{Focus, preferences::ReplayStatus},
    };

    fn texts(state: &State) -> Vec<String> {
        content(state, &Theme::colour(), 100).iter().map(Line::to_string).collect()
    }

    fn place_of(lines: &[String], part: &str) -> usize {
        lines.iter().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{part} is missing: {lines:#?}"))
    }

    #[test]
    fn help_begins_with_the_keys_of_the_page() {
        let mut story = Story::finished();
        story.state.screen.focus = Focus::first_of(Page::Sync);
        let lines = texts(&story.state);
        assert!(lines[0].starts_with(" Page Sync: who delays whom"), "{}", lines[0]);
        assert!(lines[1].starts_with("   v "), "{}", lines[1]);
        let parts = ["All pages", "Mouse", "Command line", "Page Requests", "Terms"];
        assert!(parts.is_sorted_by_key(|part| place_of(&lines, part)), "{lines:#?}");
        assert!(lines.iter().all(|line| crate::view::format::width(line) <= 100));
    }

    #[test]
    fn help_of_a_replay_shows_its_keys_and_none_that_acts() {
        let mut story = Story::finished();
        story.state.readonly = true;
        assert!(!texts(&story.state).iter().any(|line| line.contains("This recording") || line.contains("assign the")));
        story.state.preferences.replay = Some(ReplayStatus::default());
        let lines = texts(&story.state);
        let at = place_of(&lines, "This recording");
        assert!(lines[at + 1].contains("Space") && lines[at + 10].contains("Backspace"), "{lines:#?}");
        for refused in ["exclude /", "to the prompt box", "restart all", "pause / continue the display"] {
            assert!(!lines.iter().any(|line| line.contains(refused)), "{refused} is refused");
        }
    }

    #[test]
    fn glossary_has_every_term_of_the_document() {
        let terms: Vec<(&str, &str)> = glossary().collect();
        assert!(terms.len() > 40, "{} terms", terms.len());
        assert!(terms.iter().all(|(term, meaning)| !term.contains('`') && meaning.ends_with('.')), "{terms:?}");
        assert!(terms.contains(&("node", "One machine that runs `brambled`.")));
    }
}
