//! Text from outside made safe to draw: no control characters, nothing that turns the writing direction around.

use shared::text::is_unsafe;

/// What a tab becomes.
const TAB: &str = "    ";

/// The text without anything that a terminal could obey. New lines stay, `\r\n` becomes `\n`, a tab four spaces.
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

/// The text on one line: new lines become spaces.
pub fn clean_line(text: &str) -> String {
    clean(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_left_but_the_new_line() {
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        let left: Vec<char> = clean(&all).chars().filter(|letter| letter.is_control()).collect();
        assert_eq!(left, ['\n']);
        assert_eq!(clean("\u{1b}]0;title\u{7}a\u{202e}b"), "]0;titleab");
        assert_eq!(clean_line("a\r\nb"), "a b");
        assert_eq!(clean("👩‍👩‍👧 é"), "👩‍👩‍👧 é");
    }
}
