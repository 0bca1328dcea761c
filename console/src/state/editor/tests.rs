//! Tests of the prompt box.
use super::*;

/// Applies `action` to the text `before`; `|` marks the cursor.
#[track_caller]
fn check(before: &str, action: fn(&mut Editor), after: &str) {
    let (left, right) = before.split_once('|').expect("the test marks the cursor");
    let mut editor = Editor::new(&format!("{left}{right}"));
    editor.cursor = left.len();
    action(&mut editor);
    assert_eq!(format!("{}|{}", editor.before_cursor(), &editor.text[editor.cursor..]), after);
}

#[test]
fn cursor_moves_by_grapheme() {
    check("a|b", Editor::right, "ab|");
    check("e\u{301}|x", Editor::left, "|e\u{301}x");
    check("|👩‍👩‍👧!", Editor::right, "👩‍👩‍👧|!");
    check("日本|", Editor::left, "日|本");
    check("🇩🇪|🇫🇷", Editor::right, "🇩🇪🇫🇷|");
    check("|", Editor::left, "|");
    check("|", Editor::right, "|");
}

#[test]
fn erasing_removes_whole_graphemes() {
    check("x👩‍👩‍👧|", Editor::erase_before, "x|");
    check("|e\u{301}x", Editor::erase_after, "|x");
    check("|", Editor::erase_before, "|");
    check("x|", Editor::erase_after, "x|");
    check("to be or| not", Editor::erase_word, "to be | not");
    check("to be   |", Editor::erase_word, "to |");
    check("a\nbc|d", Editor::erase_to_start, "a\n|d");
    check("a\nb|cd\ne", Editor::erase_to_end, "a\nb|\ne");
}

#[test]
fn cursor_moves_by_words_and_lines() {
    check("to be| or", Editor::word_left, "to |be or");
    check("to| be or", Editor::word_right, "to be| or");
    check("a\nbc|d\ne", Editor::line_start, "a\n|bcd\ne");
    check("a\n|bcd\ne", Editor::line_end, "a\nbcd|\ne");
    check("abc\nd|", Editor::up, "a|bc\nd");
    check("a\nbcd|", Editor::up, "a|\nbcd");
    check("ab|c\nd\n", Editor::down, "abc\nd|\n");
    check("日本|語\n123", Editor::down, "日本語\n12|3");
}

#[test]
fn combining_mark_joins_its_base_and_moves_the_cursor() {
    let mut editor = Editor::new("\u{301}x");
    editor.cursor = 0;
    editor.insert("e");
    assert_eq!(editor.before_cursor(), "e\u{301}");
}

#[test]
fn pasted_control_characters_are_removed() {
    let mut editor = Editor::default();
    editor.insert("a\u{1b}[31mb\r\nc\td\u{7}\u{9b}e");
    assert_eq!(editor.text(), "a[31mb\nc    de");
}

#[test]
fn paste_beyond_the_limit_is_cut_at_a_character() {
    let mut editor = Editor::new(&"x".repeat(PROMPT_BOX_BYTES_MAX - 1));
    assert!(!editor.insert("é"));
    assert_eq!(editor.text().len(), PROMPT_BOX_BYTES_MAX - 1);
    assert!(editor.insert("y"));
    assert!(!editor.insert("z"));
    assert_eq!(editor.text().len(), PROMPT_BOX_BYTES_MAX);
}

#[test]
fn history_restores_older_prompts_and_the_unsent_one() {
    let mut editor = Editor::new("first");
    assert_eq!(editor.take(), "first");
    editor.insert("second");
    editor.take();
    editor.insert("draft");
    let mut seen = Vec::new();
    for action in [Editor::up, Editor::up, Editor::up, Editor::down, Editor::down, Editor::down] {
        action(&mut editor);
        seen.push(editor.text().to_owned());
    }
    assert_eq!(seen, ["second", "first", "first", "second", "draft", "draft"]);
}

#[test]
fn history_is_bounded_and_drops_repetitions() {
    let mut editor = Editor::default();
    for number in 0..HISTORY_MAX + 5 {
        editor.insert(&number.to_string());
        editor.take();
        editor.insert(&number.to_string());
        editor.take();
    }
    assert_eq!(editor.history.len(), HISTORY_MAX);
    assert_eq!(editor.history[0], "5");
}
