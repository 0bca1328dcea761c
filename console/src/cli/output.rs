//! Standard output: a closed pipe (`console status | head -1`) ends the printing, not the program.
use std::io::{self, Write};

/// Prints text as it is and flushes it.
pub(super) fn text(text: &str) {
    let mut out = io::stdout().lock();
    // Nobody reads any more: nothing left to tell.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a line.
pub(super) fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// Text of a model or a node, without what could move the cursor or ring the bell.
pub(super) fn clean(text: &str) -> String {
    let keeps = |character: char| !character.is_control() || matches!(character, '\n' | '\t');
    text.chars().map(|character| if keeps(character) { character } else { '\u{fffd}' }).collect()
}
