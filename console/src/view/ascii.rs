//! What stands in for a character where the terminal knows ASCII alone: one cell for one cell, so that no column moves.
use ratatui::buffer::Buffer;

use crate::view::format::width;

/// Replaces every character of a picture that is not ASCII.
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

/// The character of ASCII that is the most like it.
pub(super) fn stand_in(symbol: &str) -> char {
    let first = symbol.chars().next().unwrap_or(' ');
    match first {
        // A letter with marks that stand behind it.
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

/// Dots of a Braille pattern.
fn dots(pattern: char) -> usize {
    (pattern as u32 & 0xff).count_ones() as usize
}

/// Latin letters without their marks.
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
    fn wide_characters_keep_their_cells_and_marks_fall_away() {
        let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width: 16, height: 1 });
        buffer.set_string(0, 0, "日x👩‍👩‍👧e\u{301}ü━█▁→…", ratatui::style::Style::new());
        replace(&mut buffer);
        let text: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "??x??eu=#.>~    ");
    }

    #[test]
    fn heights_of_small_graphs_stay_apart() {
        let heights: Vec<char> = ["▁", "▂", "▃", "▄", "▅", "▆", "▇"].into_iter().map(stand_in).collect();
        assert_eq!(heights, ['.', ':', '-', '=', '*', '%', '#']);
    }
}
