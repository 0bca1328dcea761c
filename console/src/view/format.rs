//! Fits text and numbers into cells: by display width, never cutting through a character.
use std::ops::Range;

use common::units::Nanoseconds;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Display width of a text in cells.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text in exactly `cells` cells: padded at the end, or cut with an ellipsis.
pub fn fit(text: &str, cells: usize) -> String {
    let text = shorten(text, cells);
    let padding = cells.saturating_sub(width(&text));
    text + &" ".repeat(padding)
}

/// The text, right-aligned in `cells` cells.
pub fn fit_right(text: &str, cells: usize) -> String {
    let text = shorten(text, cells);
    " ".repeat(cells.saturating_sub(width(&text))) + &text
}

/// The text, cut with an ellipsis if it is wider than `cells` cells.
pub fn shorten(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut used = 0;
    for grapheme in text.graphemes(true) {
        used += width(grapheme);
        if used + 1 > cells {
            break;
        }
        short.push_str(grapheme);
    }
    if cells > 0 {
        short.push('…');
    }
    short
}

/// The text in exactly `cells` cells, cut after a word if there is one to end at.
pub fn fit_words(text: &str, cells: usize) -> String {
    let short = shorten(text, cells);
    let cut = short.strip_suffix('…').filter(|_| width(text) > cells);
    let words = cut.filter(|cut| !text[cut.len()..].starts_with(' ')).and_then(|cut| cut.rsplit_once(' '));
    match words {
        Some((words, _)) => fit(&format!("{} …", words.trim_end()), cells),
        None => fit(&short, cells),
    }
}

/// A time in at most six cells.
pub fn short_time(time: Nanoseconds) -> String {
    match time.0 as f64 {
        ns if ns < 999.5e3 => format!("{:.0}us", ns / 1e3),
        ns if ns < 9.995e6 => format!("{:.2}ms", ns / 1e6),
        ns if ns < 99.95e6 => format!("{:.1}ms", ns / 1e6),
        ns if ns < 999.5e6 => format!("{:.0}ms", ns / 1e6),
        ns if ns < 99.95e9 => format!("{:.1}s", ns / 1e9),
        ns => format!("{:.0}s", ns / 1e9),
    }
}

/// A time in at most five cells.
pub fn tight_time(time: Nanoseconds) -> String {
    match time.0 as f64 {
        ns if ns < 999.5e3 => format!("{:.0}us", ns / 1e3),
        ns if ns < 9.95e6 => format!("{:.1}ms", ns / 1e6),
        ns if ns < 999.5e6 => format!("{:.0}ms", ns / 1e6),
        ns if ns < 99.95e9 => format!("{:.1}s", ns / 1e9),
        ns => format!("{:.0}s", ns / 1e9),
    }
}

/// Milliseconds with three significant digits.
pub fn milliseconds(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2} ms")
    } else if value < 99.95 {
        format!("{value:.1} ms")
    } else {
        format!("{value:.0} ms")
    }
}

/// A share in whole percent.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Breaks a text into lines of at most `cells` cells, after spaces if possible. Returns byte ranges.
pub fn wrap_words(text: &str, cells: usize) -> Vec<Range<usize>> {
    wrap(text, cells, true)
}

/// Breaks a text into lines of at most `cells` cells at any character. Returns byte ranges.
pub fn wrap_anywhere(text: &str, cells: usize) -> Vec<Range<usize>> {
    wrap(text, cells, false)
}

fn wrap(text: &str, cells: usize, at_words: bool) -> Vec<Range<usize>> {
    let cells = cells.max(2);
    let mut lines = Vec::new();
    let mut start = 0;
    for line in text.split('\n') {
        let end = start + line.len();
        wrap_line(text, start..end, cells, at_words, &mut lines);
        start = end + 1;
    }
    lines
}

fn wrap_line(text: &str, line: Range<usize>, cells: usize, at_words: bool, lines: &mut Vec<Range<usize>>) {
    let (mut begin, mut used) = (line.start, 0);
    // The last possible break, and the cells used up to it.
    let mut gap: Option<(usize, usize)> = None;
    for (at, grapheme) in text[line.clone()].grapheme_indices(true) {
        let at = line.start + at;
        let wide = width(grapheme);
        if used + wide > cells && !(at_words && grapheme == " ") {
            let (to, before) = gap.take().filter(|_| at_words).unwrap_or((at, used));
            lines.push(begin..to);
            begin = to;
            used -= before;
        }
        used += wide;
        if grapheme == " " {
            gap = Some((at + 1, used));
        }
    }
    lines.push(begin..line.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_wrap(text: &str, cells: usize, expected: &[&str]) {
        let lines: Vec<&str> = wrap_words(text, cells).into_iter().map(|range| &text[range]).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn tight_time_takes_at_most_five_cells() {
        for exponent in 0..12 {
            for digits in [1.0, 1.5, 9.94, 9.96, 9.994, 9.996] {
                let time = tight_time(Nanoseconds((digits * 10f64.powi(exponent)) as u64));
                assert!(width(&time) <= 5, "{time}");
            }
        }
        assert_eq!(tight_time(Nanoseconds(1_250_000)), "1.2ms");
    }

    #[test]
    fn lines_break_after_spaces_and_inside_long_words() {
        check_wrap("to be or not", 6, &["to be ", "or not"]);
        check_wrap("incredible", 4, &["incr", "edib", "le"]);
        check_wrap("a\n\nb", 4, &["a", "", "b"]);
        check_wrap("", 4, &[""]);
        check_wrap("日本語で", 5, &["日本", "語で"]);
        check_wrap("👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧", 4, &["👩‍👩‍👧👩‍👩‍👧", "👩‍👩‍👧"]);
        check_wrap("ab      cd", 4, &["ab      ", "cd"]);
    }

    #[test]
    fn wrapping_keeps_all_text_within_the_width() {
        let text = "Die Würde 日本語 is\tinviolable 👩‍👩‍👧 e\u{301}e\u{301}e\u{301}\n  and so on ".repeat(7);
        for cells in 2..40 {
            for lines in [wrap_words(&text, cells), wrap_anywhere(&text, cells)] {
                let joined: String = lines.iter().map(|line| &text[line.clone()]).collect();
                assert_eq!(joined, text.replace('\n', ""));
                for line in lines {
                    assert!(width(text[line.clone()].trim_end()) <= cells, "{:?} in {cells}", &text[line]);
                }
            }
        }
    }

    #[test]
    fn fitted_text_has_the_requested_width() {
        assert_eq!(fit("node", 6), "node  ");
        assert_eq!(fit("raspberry", 6), "raspb…");
        assert_eq!(fit("日本語", 4), "日… ");
        assert_eq!(fit("日本語", 0), "");
        let words = ["lost: connection reset", "short", "connection"].map(|text| fit_words(text, 9));
        assert_eq!(words, ["lost: …  ", "short    ", "connecti…"]);
        assert_eq!(fit_right("7", 3), "  7");
    }

    #[test]
    fn times_take_at_most_six_cells() {
        for power in 0..14 {
            for factor in [1.0, 9.994, 9.9951, 9.9999] {
                let time = short_time(Nanoseconds((factor * 10f64.powi(power)) as u64));
                assert!(time.len() <= 6, "{time}");
            }
        }
        assert_eq!(short_time(Nanoseconds(812_000)), "812us");
        assert_eq!(short_time(Nanoseconds(1_200_000)), "1.20ms");
    }
}
