//! Finds the brambled executable of this machine.
use std::{
    ffi::OsString,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, anyhow, bail};
use protocol::bench::{BENCH_OUTPUT_BYTES_MAX, Bench};
use telemetry::{BenchFound, BenchProgress};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::Command,
};

use crate::cli::shared::output;

/// The path of brambled: next to this program, otherwise on PATH.
///
/// # Errors
/// There is no such file.
pub(crate) fn path() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let beside = own.with_file_name("brambled");
    if beside.is_file() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("brambled")).find(|path| path.is_file());
    found.ok_or_else(|| anyhow!("brambled is neither next to {} nor on PATH; build or install it", own.display()))
}

pub(crate) async fn child(bench: &Bench, model: Option<&Path>, name: &str) -> anyhow::Result<BenchFound> {
    let arguments = bench.arguments(model).context("links are measured between nodes: pass them with --nodes")?;
    let printed = printed(arguments, name).await?;
    let found = match bench {
        Bench::Node(_) => serde_json::from_slice(&printed).map(BenchFound::Node),
        Bench::Kernels(_) => serde_json::from_slice(&printed).map(BenchFound::Kernels),
        Bench::Network(_) => bail!("links are measured between nodes: pass them with --nodes"),
    };
    found.context("brambled and console have different releases")
}

/// Runs the brambled next to this program as a child process, which ends with this process, and returns its standard
/// output. Shows its progress under `name`.
pub(crate) async fn printed(arguments: Vec<OsString>, name: &str) -> anyhow::Result<Vec<u8>> {
    let program = path()?;
    let mut command = Command::new(&program);
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    // The child ends when its standard input closes, so this end stays open.
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (out, err) = out.zip(err).context("brambled has no standard output")?;
    let printing = async {
        let mut bytes = Vec::new();
        // Truncated output is not valid JSON, which the caller reports.
        let _ = out.take(BENCH_OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
        bytes
    };
    let telling = async {
        let mut lines = BufReader::new(err.take(BENCH_OUTPUT_BYTES_MAX)).lines();
        let mut last = String::new();
        while let Ok(Some(line)) = lines.next_line().await {
            match line.parse() {
                Ok(progress) => tell_progress(name, &progress),
                Err(_) => last = line,
            }
        }
        last
    };
    let (printed, last) = tokio::join!(printing, telling);
    let status = child.wait().await.context("cannot wait for brambled")?;
    drop(stdin);
    if !status.success() {
        bail!(if last.is_empty() { anyhow!("brambled failed with {status}") } else { anyhow!(last) });
    }
    Ok(printed)
}

/// Shows the current measurement if standard error is a terminal.
pub(crate) fn tell_progress(name: &str, progress: &BenchProgress) {
    if std::io::stderr().is_terminal() {
        output::note(&format!("{}: {}", output::clean(name), output::clean(&progress.to_string())));
    }
}
