//! The help page: the table of keys, then the glossary.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Clear,
};

use crate::{
    keymap::{Keymap, Place},
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

/// Renders the page over the whole screen; returns the total and the visible number of lines.
pub(super) fn draw(first: usize, keys: &Keymap, theme: &Theme, frame: &mut Frame, area: Rect) -> (usize, usize) {
    frame.render_widget(Clear, area);
    let mut all = content(keys, theme);
    all.extend(glossary_lines(theme, usize::from(area.width)));
    let height = usize::from(area.height).saturating_sub(1);
    let first = first.min(all.len().saturating_sub(height));
    let remark = if all.len() > height { "↓ ↑ scroll, any other key closes" } else { "any key closes" };
    let area = panel(frame, theme, area, true, "Keys and terms", Span::styled(remark, theme.dim));
    let count = all.len();
    lines(frame, area, all.into_iter().skip(first));
    (count, height)
}

fn content(keys: &Keymap, theme: &Theme) -> Vec<Line<'static>> {
    let mut content = Vec::new();
    for place in Place::ALL.into_iter().filter(|place: &Place| keys.all().any(|binding| binding.place == *place)) {
        content.push(Line::styled(format!(" {}", place.title()), theme.plain));
        for binding in keys.all().filter(|binding| binding.place == place && !binding.keys.is_empty()) {
            let keys = Span::styled(format!("   {}", fit(&binding.keys_text(), KEYS)), theme.accent);
            content.push(Line::from_iter([keys, Span::styled(binding.what, theme.plain)]));
        }
    }
    content
}

/// Terms and their meanings, from the glossary's table in ARCHITECTURE.md.
fn glossary() -> impl Iterator<Item = (&'static str, &'static str)> {
    let section = ARCHITECTURE.split_once("\n## Glossary\n").map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(table, _)| table);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.filter(|row| *row != ("term", "meaning"))
}

fn glossary_lines(theme: &Theme, cells: usize) -> Vec<Line<'static>> {
    let mut content = vec![Line::styled(" Terms", theme.plain)];
    for (term, meaning) in glossary() {
        let meaning = meaning.replace('`', "");
        let mut title = term;
        for range in wrap_words(&meaning, cells.saturating_sub(TERMS + 4).max(20)) {
            let text = meaning[range].trim_end().to_owned();
            let term = Span::styled(format!("   {}", fit(title, TERMS)), theme.accent);
            content.push(Line::from_iter([term, Span::styled(text, theme.plain)]));
            title = "";
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::glossary;

    #[test]
    fn glossary_has_every_term_of_the_document() {
        let terms: Vec<(&str, &str)> = glossary().collect();
        assert!(terms.len() > 40, "{} terms", terms.len());
        assert!(terms.iter().all(|(term, meaning)| !term.contains('`') && meaning.ends_with('.')), "{terms:?}");
        assert!(terms.contains(&("node", "One machine that runs `brambled`.")));
    }
}
