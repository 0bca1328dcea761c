//! Asks before something is done that an operator should have thought about.
use std::io::{IsTerminal, stdin};

use super::{Failure, output};

/// Asks on the terminal; `yes` answers beforehand. Where nobody can answer, `--yes` is required.
///
/// # Errors
/// The answer was no, or there is no terminal to ask on.
pub(super) async fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let message = "this needs a yes, and there is no terminal to ask on".into();
        return Err(Failure::Usage { message, next: "add --yes" });
    }
    output::note_part(&format!("{question} [y/N] "));
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(anyhow::Error::from)?.map_err(anyhow::Error::from)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Declined) }
}
