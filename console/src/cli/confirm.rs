//! The one way in which commands that act ask: they say what will happen and ask on a terminal; without one they refuse and name `--yes`;
//! with `--dry-run` they say it and do nothing.
use std::io::{IsTerminal, stdin};

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, output};

/// For what adds something and replaces nothing: it is not asked about, but can be tried.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct Rehearsal {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

impl Rehearsal {
    /// Whether it is to be done for real; else says what would be done, `plan` with --json.
    pub(super) fn is_real(self, what: &str, plan: &Value, json: bool) -> bool {
        if self.dry_run {
            say_plan(what, plan, json);
        }
        !self.dry_run
    }
}

fn say_plan(what: &str, plan: &Value, json: bool) {
    if json {
        output::line(&json!({"dry_run": true, "would": what, "plan": plan}).to_string());
    } else {
        output::line(&format!("would do: {what}"));
    }
}

/// Whether something may be done.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct Consent {
    /// Do not ask
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub(super) dry_run: bool,
}

impl Consent {
    /// Whether a question can be asked, or was answered beforehand: looked at before anything is dialled.
    ///
    /// # Errors
    /// There is no terminal to ask on, and no `--yes`.
    pub(super) fn check(self) -> Result<(), Failure> {
        if self.yes || self.dry_run || stdin().is_terminal() && std::io::stderr().is_terminal() {
            return Ok(());
        }
        let message = "this needs a yes, and there is no terminal to ask on".into();
        Err(Failure::Usage { message, next: "add --yes, or --dry-run to see what would be done" })
    }

    /// As [`Self::check`] and [`Self::obtain`], for what is asked only where something would be lost.
    ///
    /// # Errors
    /// There is no terminal to ask on, with what would be lost; or the answer was no.
    pub(super) async fn obtain_late(self, question: &str, plan: &Value, json: bool) -> Result<bool, Failure> {
        if let Err(Failure::Usage { message, next }) = self.check() {
            return Err(Failure::Usage { message: format!("{question} {message}"), next });
        }
        self.obtain(question, plan, json).await
    }

    /// Whether to go on: asks on the terminal, unless it was answered beforehand. With `--dry-run` it says what would be done, `plan` with
    /// --json, and the answer is no.
    ///
    /// # Errors
    /// The answer was no.
    pub(super) async fn obtain(self, question: &str, plan: &Value, json: bool) -> Result<bool, Failure> {
        if self.dry_run {
            say_plan(&question.replacen('?', ".", 1), plan, json);
            return Ok(false);
        }
        if !self.yes {
            ask(question).await?;
        }
        Ok(true)
    }
}

async fn ask(question: &str) -> Result<(), Failure> {
    output::note_part(&format!("{question} [y/N] "));
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(anyhow::Error::from)?.map_err(anyhow::Error::from)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Declined) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        consent: Consent,
    }

    #[tokio::test]
    async fn a_yes_goes_on_and_a_dry_run_does_not() {
        let obtain = async |consent: Consent| {
            consent.check().expect("it is answered");
            consent.obtain("Stop it?", &Value::Null, true).await.expect("it is answered")
        };
        assert!(obtain(Consent { yes: true, dry_run: false }).await);
        assert!(!obtain(Consent { yes: false, dry_run: true }).await);
        assert!(Line::try_parse_from(["x", "--yes", "--dry-run"]).is_err(), "one or the other");
    }
}
