//! llama-server: asked over HTTP; started for the test if none runs, on a node through a tunnel of ssh.
use std::{
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, anyhow};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::{LlamaPlace, SERVER};
use crate::{
    cli::Failure,
    http::{Api, HttpRequest, Url},
    operator::acceptance::llama::{CONTEXT, LlamaAnswer, LlamaPrompt, read_server, server_body},
};

/// Time limit to load the model.
const LOAD: Duration = Duration::from_secs(240);
/// Time limit for an answer.
const ANSWER: Duration = Duration::from_secs(240);
/// Time limit for a state.
const HEALTH: Duration = Duration::from_secs(5);
/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// Asks a running server.
pub(super) async fn ask(url: &Url, prompts: &[LlamaPrompt]) -> Result<Vec<LlamaAnswer>, Failure> {
    let api = Api::new(url.clone(), None);
    let mut answers = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let body = server_body(prompt);
        let request = HttpRequest { path: "/completion", body: Some(&body), request_id: None };
        let answer = api.json(&request, ANSWER).await;
        // The report contains the reason, and no address.
        let answer = answer.map_err(|error| anyhow!(error.to_string().replace(api.at(), SERVER)))?;
        answers.push(read_server(&answer).map_err(|reason| anyhow!("llama.cpp: {reason}"))?);
    }
    Ok(answers)
}

/// Starts a server, asks it, and ends it.
pub(super) async fn start_and_ask(
    program: &Path,
    place: &LlamaPlace<'_>,
    prompts: &[LlamaPrompt],
) -> Result<Vec<LlamaAnswer>, Failure> {
    // A port that is free here is probably free on a node, too.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    let port = port.context("cannot find a free port")?.port();
    let mut child = start(program, place, port)?;
    let url: Url = format!("http://127.0.0.1:{port}").parse()?;
    loaded(&url, &mut child).await?;
    let answers = ask(&url, prompts).await;
    // A server on a node ends with its terminal.
    child.start_kill().context("cannot end llama-server")?;
    child.wait().await.context("cannot end llama-server")?;
    answers
}

fn start(program: &Path, place: &LlamaPlace<'_>, port: u16) -> Result<Child, Failure> {
    let mut command = match place.host {
        Some(host) => {
            let mut command = Command::new("ssh");
            let tunnel = format!("{port}:127.0.0.1:{port}");
            command.args(["-tt", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-L", &tunnel, "--", host]);
            command.arg(program);
            command
        }
        None => Command::new(program),
    };
    command.arg("--model").arg(&place.model).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--ctx-size", &CONTEXT.to_string(), "--parallel", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    Ok(command.spawn().with_context(|| format!("cannot start {}", program.display()))?)
}

/// Waits until the server has loaded the model.
async fn loaded(url: &Url, child: &mut Child) -> Result<(), Failure> {
    let api = Api::new(url.clone(), None);
    let deadline = Instant::now() + LOAD;
    let request = HttpRequest { path: "/health", body: None, request_id: None };
    loop {
        if api.json(&request, HEALTH).await.is_ok() {
            return Ok(());
        }
        if let Some(status) = child.try_wait().context("cannot wait for llama-server")? {
            return Err(anyhow!("llama-server ended with {status} before it had loaded the model").into());
        }
        if Instant::now() > deadline {
            return Err(anyhow!("llama-server did not load the model within {} s", LOAD.as_secs()).into());
        }
        sleep(LOOK).await;
    }
}
