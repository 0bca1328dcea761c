//! Python with llama_cpp: a program on its standard input, answers on its standard output.
use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, anyhow};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    time::timeout,
};

use super::LlamaPlace;
use crate::{
    cli::{Failure, shared::stderr::last_line},
    operator::acceptance::llama::{LlamaAnswer, LlamaPrompt, python_program, read_python},
};

/// Time limit for all answers.
const ANSWERS: Duration = Duration::from_secs(480);
/// Most bytes of each output that are read. A truncated one is not valid JSON.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

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
    let outputs = child.stdout.take().zip(child.stderr.take());
    let (out, err) = outputs.context("Python has no standard output")?;
    let (mut out, mut err) = (out.take(OUTPUT_BYTES_MAX), err.take(OUTPUT_BYTES_MAX));
    let program = python_program(&place.model.to_string_lossy(), prompts);
    let asking = async {
        stdin.write_all(program.as_bytes()).await.context("Python does not read its program")?;
        drop(stdin);
        let (mut printed, mut said) = (Vec::new(), Vec::new());
        let read = tokio::try_join!(out.read_to_end(&mut printed), err.read_to_end(&mut said));
        read.context("cannot read the output of Python")?;
        let status = child.wait().await.context("cannot wait for Python")?;
        Ok::<_, anyhow::Error>((status, printed, said))
    };
    let ended = timeout(ANSWERS, asking).await;
    let ended = ended.map_err(|_| anyhow!("llama_cpp did not answer within {} s", ANSWERS.as_secs()))?;
    let (status, printed, said) = ended?;
    if !status.success() {
        let said = String::from_utf8_lossy(&said);
        return Err(anyhow!("Python failed with {status}: {}", last_line(&said)).into());
    }
    let answers = read_python(&String::from_utf8_lossy(&printed), prompts);
    Ok(answers.map_err(|reason| anyhow!("llama.cpp: {reason}"))?)
}
