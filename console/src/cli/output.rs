//! Both outputs. Nobody who stops reading (`console status | head -1`) or hangs up ends the program with a panic.
use std::{
    io::{self, ErrorKind, Write},
    sync::OnceLock,
};

use shared::text::is_unsafe;

/// Why standard output takes nothing more. There is one a process.
static LOST: OnceLock<(ErrorKind, String)> = OnceLock::new();

/// Prints text as it is and flushes it.
pub(super) fn text(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The first reason stays.
        let _ = LOST.set((error.kind(), error.to_string()));
    }
}

/// Prints a line.
pub(super) fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// Whether standard output takes nothing more.
pub(super) fn is_closed() -> bool {
    LOST.get().is_some()
}

/// Why something that was printed did not arrive; a reader that left had enough.
pub(super) fn failure() -> Option<&'static str> {
    LOST.get().filter(|(kind, _)| *kind != ErrorKind::BrokenPipe).map(|(_, reason)| reason.as_str())
}

/// Prints a part of a line on standard error.
pub(super) fn note_part(text: &str) {
    // Nobody there to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a line on standard error.
pub(super) fn note(line: &str) {
    note_part(&format!("{line}\n"));
}

/// Text of a model or a node, without what could move the cursor, ring the bell or turn the writing direction around.
pub(super) fn clean(text: &str) -> String {
    let keeps = |character: char| !is_unsafe(character) || matches!(character, '\n' | '\t');
    text.chars().map(|character| if keeps(character) { character } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert_eq!(clean("a\u{1b}[2J\u{202e}b\n\tc\u{2066}"), "a\u{fffd}[2J\u{fffd}b\n\tc\u{fffd}");
    }
}
