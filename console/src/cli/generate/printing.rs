//! Prints an answer as it arrives. What the model thinks is printed on a terminal only, and dim: it is no part of the
//! answer.
use std::io::{IsTerminal, stdout};

use crate::cli::shared::{
    output,
    paint::{self, Shade},
};

/// Prints a part of what the model thinks.
pub(super) fn thought(part: &str) {
    if stdout().is_terminal() {
        output::text(&Shade::Quiet.paint(&output::clean(part), paint::is_on()));
    }
}

/// Prints a part of the answer. `follows_thought`: the first part, after a thought.
pub(super) fn content(part: &str, follows_thought: bool) {
    if follows_thought && stdout().is_terminal() {
        output::text("\n\n");
    }
    output::text(&output::clean(part));
}

/// Ends the line of an answer that failed, if a part of it was printed.
pub(super) fn end_line(thought: &str, text: &str) {
    if !text.is_empty() || (!thought.is_empty() && stdout().is_terminal()) {
        output::line("");
    }
}
