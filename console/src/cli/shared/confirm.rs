//! Confirmation of commands that change the cluster. They describe the change and ask on a terminal. Without a terminal
//! they refuse and name `--yes`. With `--dry-run` they describe the change and do nothing.
use std::io::{BufRead, IsTerminal, Read, stdin};

use clap::Args;
use serde_json::{Value, json};

use crate::cli::{Failure, shared::output};

/// Longest answer in bytes, which is also that of a terminal's line.
const ANSWER_BYTES_MAX: u64 = 4096;

/// For commands that add something and replace nothing: they do not ask, but have a dry run.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Rehearsal {
    /// Show the planned change without making it
    #[arg(long)]
    dry_run: bool,
}

impl Rehearsal {
    /// Whether to execute the command. In a dry run, prints `what`, and with `json` also `plan`.
    pub(crate) fn is_real(self, what: &str, plan: &Value, json: bool) -> bool {
        if self.dry_run {
            say_plan(what, plan, json);
        }
        !self.dry_run
    }
}

fn say_plan(what: &str, plan: &Value, json: bool) {
    if json {
        output::line(&plan_object(what, plan).to_string());
    } else {
        output::line(&format!("would do: {what}"));
    }
}

fn plan_object(what: &str, plan: &Value) -> Value {
    json!({"dry_run": true, "would": what, "plan": plan})
}

/// A question as the statement of a dry run.
fn stated(question: &str) -> String {
    question.replacen('?', ".", 1)
}

/// The object that [`Consent::obtain`] prints in a dry run with `json`, for a command that adds to it.
pub(crate) fn dry_run_object(question: &str, plan: &Value) -> Value {
    plan_object(&stated(question), plan)
}

/// The operator's consent to a change.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Confirmation")]
pub struct Consent {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Show the planned change without making it, even with --yes
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl Consent {
    /// Checks, before any node is contacted, that the question can be asked or was answered by an option.
    ///
    /// # Errors
    /// There is neither a terminal to ask on nor `--yes`.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.yes || self.dry_run || has_person() {
            return Ok(());
        }
        let message = "this needs a confirmation, and there is no terminal to ask on".into();
        Err(Failure::Usage { message, next: "add --yes, or --dry-run to see the planned change" })
    }

    /// [`Self::check`] and [`Self::obtain`] in one, for commands that ask only if something would be lost.
    ///
    /// # Errors
    /// There is neither a terminal to ask on nor `--yes` (the message contains `question`), or the answer was no.
    pub(crate) async fn obtain_late(self, question: &str, plan: &Value, json: bool) -> Result<bool, Failure> {
        if let Err(Failure::Usage { message, next }) = self.check() {
            return Err(Failure::Usage { message: format!("{question} {message}"), next });
        }
        self.obtain(question, plan, json).await
    }

    /// Whether to continue: asks on the terminal, unless `--yes` was given. `false` in a dry run, which prints the
    /// question as a statement, and with `json` also `plan`.
    ///
    /// # Errors
    /// The answer was no.
    pub(crate) async fn obtain(self, question: &str, plan: &Value, json: bool) -> Result<bool, Failure> {
        if self.dry_run {
            say_plan(&stated(question), plan, json);
            return Ok(false);
        }
        if !self.yes {
            ask(question).await?;
        }
        Ok(true)
    }
}

async fn ask(question: &str) -> Result<(), Failure> {
    let answer = ask_line(&format!("{question} [y/N] ")).await?;
    if matches!(answer.as_str(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Declined) }
}

/// Whether questions can be asked: standard input and standard error are terminals.
pub(crate) fn has_person() -> bool {
    stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks for a line of text, and returns it without blanks at its ends.
///
/// # Errors
/// The input has ended, or cannot be read.
pub(crate) async fn ask_line(question: &str) -> Result<String, Failure> {
    output::note_part(question);
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(anyhow::Error::from)?.map_err(anyhow::Error::from)?;
    // A line has at least its end.
    if answer.is_empty() { Err(Failure::Declined) } else { Ok(answer.trim().to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ConsentLine {
        #[command(flatten)]
        consent: Consent,
    }

    #[test]
    fn object_of_a_dry_run_states_the_change() {
        let object = dry_run_object("Assign tp2 to 2 nodes?", &json!({"nodes": 2}));
        assert_eq!(object, json!({"dry_run": true, "would": "Assign tp2 to 2 nodes.", "plan": {"nodes": 2}}));
    }

    #[tokio::test]
    async fn yes_continues_and_dry_run_does_not() {
        let obtain = async |consent: Consent| {
            consent.check().expect("it is answered");
            consent.obtain("Stop it?", &Value::Null, true).await.expect("it is answered")
        };
        assert!(obtain(Consent { yes: true, dry_run: false }).await);
        assert!(!obtain(Consent { yes: false, dry_run: true }).await);
        let both = ConsentLine::try_parse_from(["x", "--yes", "--dry-run"]).expect("both are allowed");
        assert!(!obtain(both.consent).await, "the dry run has priority");
    }
}
