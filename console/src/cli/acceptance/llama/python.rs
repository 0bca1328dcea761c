//! Python with llama_cpp: a program on its standard input, answers on its standard output.
use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, anyhow};
use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

use super::LlamaPlace;
use crate::{
    cli::Failure,
    operator::acceptance::llama::{LlamaAnswer, LlamaPrompt, python_program, read_python},
};

/// Time limit for all answers.
const ANSWERS: Duration = Duration::from_secs(480);

/// Runs Python, here or on a node.
pub(super) async fn ask(
    python: &Path,
    place: &LlamaPlace<'_>,
    prompts: &[LlamaPrompt],
) -> Result<Vec<LlamaAnswer>, Failure> {
    let mut command = match place.host {
        Some(host) => {
            let mut command = Command::new("ssh");
            command.args(["-o", "BatchMode=yes", "--", host]).arg(python);
            command
        }
        None => Command::new(python),
    };
    command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", python.display()))?;
    let mut stdin = child.stdin.take().context("Python has no standard input")?;
    let program = python_program(&place.model.to_string_lossy(), prompts);
    stdin.write_all(program.as_bytes()).await.context("Python does not read its program")?;
    drop(stdin);
    let ended = timeout(ANSWERS, child.wait_with_output()).await;
    let ended = ended.map_err(|_| anyhow!("llama_cpp did not answer within {} s", ANSWERS.as_secs()))?;
    let ended = ended.context("cannot wait for Python")?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.lines().last().unwrap_or_default();
        return Err(anyhow!("Python failed with {}: {last}", ended.status).into());
    }
    let answers = read_python(&String::from_utf8_lossy(&ended.stdout), prompts);
    Ok(answers.map_err(|reason| anyhow!("llama.cpp: {reason}"))?)
}
