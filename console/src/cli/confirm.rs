//! Asks before something is done that an operator should have thought about.
use std::io::{IsTerminal, stdin};

use super::{Failure, output};

/// Whether a question can be asked, or was answered beforehand: looked at before anything is dialled.
///
/// # Errors
/// There is no terminal to ask on, and no `--yes`.
pub(super) fn check(yes: bool) -> Result<(), Failure> {
    if yes || stdin().is_terminal() && std::io::stderr().is_terminal() {
        return Ok(());
    }
    let message = "this needs a yes, and there is no terminal to ask on".into();
    Err(Failure::Usage { message, next: "add --yes" })
}

/// Asks on the terminal; `yes` answers beforehand.
///
/// # Errors
/// The answer was no.
pub(super) async fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    output::note_part(&format!("{question} [y/N] "));
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(anyhow::Error::from)?.map_err(anyhow::Error::from)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Declined) }
}
