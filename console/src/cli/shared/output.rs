//! Standard output and standard error. A reader that closes its end (`console status | head -1`) never causes a
//! panic.
use std::{
    io::{self, ErrorKind, Write},
    sync::OnceLock,
};

use common::text::is_unsafe;

/// The first error of standard output, if it cannot be written any more. Process-wide.
static LOST: OnceLock<(ErrorKind, String)> = OnceLock::new();

/// Prints text unchanged and flushes it.
pub fn text(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The first error is kept.
        let _ = LOST.set((error.kind(), error.to_string()));
    }
}

/// Prints a line.
pub fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// Whether standard output cannot be written any more.
pub fn is_closed() -> bool {
    LOST.get().is_some()
}

/// Why output was lost. `None` if the reader closed its end on purpose (broken pipe).
pub fn failure() -> Option<&'static str> {
    LOST.get().filter(|(kind, _)| *kind != ErrorKind::BrokenPipe).map(|(_, reason)| reason.as_str())
}

/// Prints part of a line on standard error.
pub fn note_part(text: &str) {
    // There is no place left to report an error of standard error.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a line on standard error.
pub fn note(line: &str) {
    note_part(&format!("{line}\n"));
}

/// Text of a model or a node without characters that move the cursor, ring the bell or change the writing
/// direction.
pub fn clean(text: &str) -> String {
    let clean = text.chars().map(|character| match character {
        '\n' | '\t' => character,
        _ if is_unsafe(character) => '\u{fffd}',
        _ => character,
    });
    clean.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert_eq!(clean("a\u{1b}[2J\u{202e}b\n\tc\u{2066}"), "a\u{fffd}[2J\u{fffd}b\n\tc\u{fffd}");
    }
}
