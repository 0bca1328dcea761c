//! ASCII replacements for terminals without Unicode: one cell for one cell, so that columns stay in place.
use ratatui::buffer::Buffer;

use crate::view::format::width;

/// Replaces every character of a buffer that is not ASCII.
pub(super) fn replace(buffer: &mut Buffer) {
    let area = buffer.area;
    for y in area.top()..area.bottom() {
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            let cells = (width(symbol) as u16).max(1);
            if !symbol.is_ascii() {
                let other = stand_in(symbol);
                for covered in x..(x + cells).min(area.right()) {
                    buffer[(covered, y)].set_char(other);
                }
            }
            x += cells;
        }
    }
}

/// The most similar ASCII character.
pub(super) fn stand_in(symbol: &str) -> char {
    let first = symbol.chars().next().unwrap_or(' ');
    match first {
        // A letter followed by combining marks.
        ' '..='~' => first,
        '\u{a0}' => ' ',
        '─' | '┄' | '┈' | '╌' | '–' | '—' | '−' | '‐' => '-',
        '━' | '═' | '┅' | '┉' => '=',
        '│' | '┃' | '║' | '┆' | '┊' | '▏' | '▎' | '▍' | '▕' => '|',
        '┌'..='╋' | '╒'..='╬' | '╭'..='╰' => '+',
        '█' | '▓' | '■' | '▉' | '▊' | '▇' => '#',
        '▒' | '▆' => '%',
        '▅' | '▋' => '*',
        '░' | '▁' => '.',
        '▂' | '·' | '•' | '∙' => ':',
        '▃' => '-',
        '▄' | '▌' | '▐' | '▀' => '=',
        '←' | '◀' | '◂' | '«' | '‹' | '≤' => '<',
        '→' | '▶' | '▸' | '»' | '›' | '≥' => '>',
        '↑' | '▲' | '▴' | '⌃' => '^',
        '↓' | '▼' | '▾' | '⌄' => 'v',
        '…' => '~',
        '●' | '◆' | '★' | '✱' | '⏺' => '*',
        '○' | '◇' | '☆' => 'o',
        '✓' | '✔' => '+',
        '✗' | '✘' | '×' => 'x',
        '‘' | '’' | '′' => '\'',
        '“' | '”' | '″' => '"',
        'µ' | 'μ' => 'u',
        'Σ' => 'S',
        '\u{2800}'..='\u{28ff}' => ['.', '.', ':', ':', '-', '=', '+', '*', '#'][dots(first)],
        _ => letter(first),
    }
}

/// Number of dots of a Braille pattern.
fn dots(pattern: char) -> usize {
    (pattern as u32 & 0xff).count_ones() as usize
}

/// A Latin letter without its diacritics.
fn letter(letter: char) -> char {
    match letter {
        'À'..='Å' => 'A',
        'Ç' => 'C',
        'È'..='Ë' => 'E',
        'Ì'..='Ï' => 'I',
        'Ñ' => 'N',
        'Ò'..='Ö' | 'Ø' => 'O',
        'Ù'..='Ü' => 'U',
        'à'..='å' => 'a',
        'ç' => 'c',
        'è'..='ë' => 'e',
        'ì'..='ï' => 'i',
        'ñ' => 'n',
        'ò'..='ö' | 'ø' => 'o',
        'ù'..='ü' => 'u',
        'ß' => 's',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;

    use super::*;

    #[test]
    fn wide_characters_keep_their_cells_and_marks_are_dropped() {
        let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width: 16, height: 1 });
        buffer.set_string(0, 0, "日x👩‍👩‍👧e\u{301}ü━█▁→…", ratatui::style::Style::new());
        replace(&mut buffer);
        let text: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "??x??eu=#.>~    ");
    }

    #[test]
    fn heights_of_bars_stay_distinguishable() {
        let heights: Vec<char> = ["▁", "▂", "▃", "▄", "▅", "▆", "▇"].into_iter().map(stand_in).collect();
        assert_eq!(heights, ['.', ':', '-', '=', '*', '%', '#']);
    }
}
