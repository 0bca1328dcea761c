//! Makes text from outside safe for logs and terminals; the single definition of unsafe characters. Pure.

/// Whether a character could start a line, control a terminal or reverse the writing direction: control characters,
/// bidirectional embeddings, overrides and isolates, line and paragraph separators, the byte order mark.
pub fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// The text on one line; unsafe characters become spaces.
pub fn one_line(text: &str) -> String {
    text.chars().map(|letter| if is_unsafe(letter) { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_unsafe_is_left_on_the_line() {
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        assert!(!one_line(&all).chars().any(is_unsafe));
        assert_eq!(one_line("a\nb\u{1b}[2J\u{9b}c\u{202e}d"), "a b [2J c d");
        assert_eq!(one_line("👩‍👩‍👧 é"), "👩‍👩‍👧 é", "joiners and letters stay");
    }
}
