//! Progress of long operations on standard error: a bar on a terminal, nothing elsewhere.
use std::io::{IsTerminal, stderr};

use crate::cli::shared::output;

/// Width of a bar in characters.
const CELLS: u64 = 30;

/// Whether bars are shown: standard error is a terminal.
pub(crate) fn is_drawn() -> bool {
    stderr().is_terminal()
}

/// Updates the progress bar unless `quiet`; at `total` the bar is removed.
pub(crate) fn tell(what: &str, done: u64, total: u64, quiet: bool) {
    if quiet || !is_drawn() {
        return;
    }
    output::note_part(&if done < total { format!("\r{}\x1b[K", bar(what, done, total)) } else { "\r\x1b[K".into() });
}

/// Removes a bar that may not have reached its end.
pub(crate) fn clear() {
    if is_drawn() {
        output::note_part("\r\x1b[K");
    }
}

fn bar(what: &str, done: u64, total: u64) -> String {
    let (done, total) = (done.min(total), total.max(1));
    // u128 holds the bytes of large models times the cells.
    let full = (u128::from(done) * u128::from(CELLS) / u128::from(total)) as usize;
    let percent = u128::from(done) * 100 / u128::from(total);
    format!("{what} [{}{}] {percent:>3} %", "#".repeat(full), "-".repeat(CELLS as usize - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_up_and_never_beyond_its_end() {
        assert_eq!(bar("x", 0, 4), format!("x [{}]   0 %", "-".repeat(30)));
        assert_eq!(bar("x", 2, 4), format!("x [{}{}]  50 %", "#".repeat(15), "-".repeat(15)));
        assert_eq!(bar("x", 9, 4), format!("x [{}] 100 %", "#".repeat(30)));
        assert_eq!(bar("x", 0, 0), bar("x", 0, 1));
        assert!(bar("x", u64::MAX, u64::MAX).ends_with("100 %"));
    }
}
