//! Sanitises text from outside for display: removes control characters and characters that change the writing
//! direction.

use common::text::is_unsafe;

/// Replacement of a tab.
const TAB: &str = "    ";

/// Removes everything that a terminal could interpret. New lines stay, `\r\n` becomes `\n`, a tab four spaces.
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => clean.push('\n'),
            '\t' => clean.push_str(TAB),
            _ if is_unsafe(letter) => {}
            _ => clean.push(letter),
        }
    }
    clean
}

/// As [`clean`], on one line: new lines become spaces.
pub fn clean_line(text: &str) -> String {
    clean(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_lines_survive_of_control_characters() {
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        let left: Vec<char> = clean(&all).chars().filter(|letter| letter.is_control()).collect();
        assert_eq!(left, ['\n']);
        assert_eq!(clean("\u{1b}]0;title\u{7}a\u{202e}b"), "]0;titleab");
        assert_eq!(clean_line("a\r\nb"), "a b");
        assert_eq!(clean("👩‍👩‍👧 é"), "👩‍👩‍👧 é");
    }
}
