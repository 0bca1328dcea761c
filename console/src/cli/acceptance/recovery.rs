//! The step that loses a node during an answer, and measures how the answer continues.
use std::{process::Stdio, sync::Arc, time::Duration};

use anyhow::anyhow;
use protocol::message::Generate;
use tokio::{
    process::Command,
    sync::mpsc::channel,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use topology::Topology;

use super::{
    Acceptance,
    answers::{Serving, assign},
    bed::TestBed,
};
use crate::{
    cli::{Failure, shared::stderr::last_line},
    client::{
        cluster::{Cluster, ClusterNode},
        event::GenerateEvent,
        generate::generate,
        host,
        operate::begin,
        recovery::rolling,
        session::Session,
    },
    operator::acceptance::{
        RecoveryFacts,
        ids::{IdsDiffer, first_difference},
        prompts::STORY,
    },
};

/// Time limit for a login over ssh.
const LOGIN: Duration = Duration::from_secs(20);
/// The command that kills the daemon, without `sudo`.
const KILLS: [&str; 5] = ["systemctl", "kill", "-s", "KILL", "brambled"];
/// Time limit for the command that kills the daemon.
const KILL: Duration = Duration::from_secs(30);
/// Time limit for all nodes to serve the topology again.
const BACK: Duration = Duration::from_secs(120);
/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// The answer lasts about so long, so that the loss falls into it.
const ANSWER_SECONDS: f64 = 12.0;
/// Bounds of its tokens.
const TOKENS: [u32; 2] = [32, 512];
/// The node is lost after this many tokens.
const TOKENS_BEFORE: usize = 8;
/// Longest answer, with all pauses.
const WHOLE: Duration = Duration::from_secs(240);
/// Most queued events.
const EVENTS_MAX: usize = 64;

/// Why no node can be lost on purpose.
pub(super) fn obstacle(options: &Acceptance, cluster: &Cluster) -> Option<String> {
    let reports = || cluster.nodes.iter().filter_map(ClusterNode::report);
    if let Some(report) = reports().find(|report| !report.recovers) {
        return Some(format!("{} does not recover its topology (recover = true in its configuration)", report.name));
    }
    let is_killed = options.ssh || options.kill_command.is_some();
    let loose = reports().find(|report| !report.supervised).filter(|_| !is_killed)?;
    Some(format!("no supervisor would start {} again, and neither --ssh nor --kill-command is given", loose.name))
}

/// Why the daemon of a node cannot be killed over ssh: a node does not let this user log in, or run the command as root
/// without a question. Checked before the test, because this step is its last one. `sudo -l COMMAND` runs nothing, and
/// succeeds for users who may run only this command.
pub(super) async fn ssh_obstacle(nodes: &[(String, String)]) -> Option<String> {
    let order = [&["-l"][..], &KILLS].concat();
    for (name, address) in nodes {
        if let Err(reason) = finish(sudo_over_ssh(host(address), &order), LOGIN).await {
            let next = "allow this command without a password there, or pass --kill-command";
            return Some(format!("`sudo -n {}` over ssh on {name} {reason} ({next})", order.join(" ")));
        }
    }
    None
}

/// A command as root on another machine, which can ask for nothing.
fn sudo_over_ssh(host: &str, order: &[&str]) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, "sudo", "-n"]).args(order);
    command
}

/// Runs a command to its end. An error follows the name of the command.
async fn finish(mut command: Command, limit: Duration) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let ended = timeout(limit, command.output()).await;
    let ended = ended.map_err(|_| format!("did not end within {} s", limit.as_secs()))?;
    let ended = ended.map_err(|error| format!("cannot be started: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!("failed with {}: {}", ended.status, last_line(&said)))
}

/// How the node is lost.
enum Loss {
    /// `ssh NODE sudo systemctl kill -s KILL brambled`.
    Ssh,
    /// A shell command.
    Shell(String),
    /// Another node restarts it at once, without a drain.
    Restart,
}

/// Loses the last node of the topology of all nodes during an answer.
pub(super) async fn lose(bed: &mut TestBed, options: &Acceptance) -> Result<RecoveryFacts, Failure> {
    bed.clear_others().await?;
    let count = bed.nodes.len();
    let (serving, _) = assign(bed, count).await?;
    let answer = answer_tokens(bed, serving.topology.context_length);
    let tokens = serving.tokens(&STORY).await?;
    let request = serving.request(tokens.clone(), answer, 0);
    let nodes = serving.ordered().await?;
    let expected = timeout(WHOLE, stream(&nodes, request.clone(), usize::MAX, std::future::pending())).await;
    let expected = expected.map_err(|_| late())??;
    let loss = match (&options.kill_command, options.ssh) {
        (Some(command), _) => Loss::Shell(command.clone()),
        (None, true) => Loss::Ssh,
        (None, false) => Loss::Restart,
    };
    let victim = serving.topology.members.last().map(|member| (member.name.clone(), member.address.clone()));
    let (name, address) = victim.ok_or_else(|| anyhow!("the topology has no members"))?;
    let losing = carry_out(&loss, bed, &name, &address);
    let found = timeout(WHOLE, stream(&nodes, request, TOKENS_BEFORE, losing)).await.map_err(|_| late())??;
    if found.resumed == 0 {
        return Err(anyhow!("the answer ended before {name} was lost: use a larger model").into());
    }
    let back = served_again(bed, &serving.topology, found.lost).await;
    // The topology may be another one by now: without all ranks, sums are rounded differently.
    let differs = match back {
        Some(_) => {
            let sessions = bed.sessions().await?;
            let again = Serving { sessions, topology: serving.topology };
            again.differs(&tokens, &expected.ids, &found.ids).await?
        }
        None => first_difference(&expected.ids, &found.ids).map(|at| IdsDiffer { at, margin: None }),
    };
    Ok(RecoveryFacts {
        node: name,
        how: if matches!(loss, Loss::Restart) { "restarted" } else { "killed" }.to_owned(),
        pause_ms: found.pause.as_secs_f64() * 1e3,
        resumed: found.resumed,
        tokens_before: found.before as u32,
        tokens: found.ids.len() as u32,
        differs,
        back_ms: back.map(|back| back.as_secs_f64() * 1e3),
    })
}

fn late() -> Failure {
    anyhow!("the answer did not end within {} s", WHOLE.as_secs()).into()
}

/// Tokens of the answer, by the measured speed.
fn answer_tokens(bed: &TestBed, context: u32) -> u32 {
    let layouts = [&bed.report.steps.all, &bed.report.steps.pair, &bed.report.steps.single];
    let layout = layouts.into_iter().find_map(|outcome| outcome.found.as_ref());
    let story = layout.and_then(|layout| layout.answers.iter().find(|answer| answer.prompt == STORY.name));
    let wanted = story.map_or(128.0, |story| story.speeds.decode * ANSWER_SECONDS);
    let room = context.saturating_sub(STORY.tokens_max as u32 + 1).max(TOKENS[0]);
    (wanted as u32).clamp(TOKENS[0], TOKENS[1]).min(room)
}

/// An answer with a loss in it.
struct LossyAnswer {
    ids: Vec<u32>,
    /// Tokens before the loss.
    before: usize,
    resumed: u32,
    /// Longest time without a token after the loss.
    pause: Duration,
    /// When the node was lost.
    lost: Instant,
}

/// Runs a request, and `losing` once so many tokens have arrived.
async fn stream(
    nodes: &[Arc<Session>],
    request: Generate,
    before: usize,
    losing: impl Future<Output = Result<(), Failure>>,
) -> Result<LossyAnswer, Failure> {
    let cancel = CancellationToken::new();
    let (events, mut received) = channel(EVENTS_MAX);
    let running = async {
        generate(nodes, request, &cancel, &events).await;
        drop(events);
        std::future::pending::<()>().await;
    };
    let now = Instant::now();
    let mut answer = LossyAnswer { ids: Vec::new(), before: 0, resumed: 0, pause: Duration::ZERO, lost: now };
    let (mut latest, mut is_lost) = (now, false);
    tokio::pin!(running);
    tokio::pin!(losing);
    loop {
        let is_due = answer.ids.len() >= before && !is_lost;
        tokio::select! {
            event = received.recv() => match event {
                Some(GenerateEvent::Token(token)) => {
                    let now = Instant::now();
                    if is_lost {
                        answer.pause = answer.pause.max(now - latest.max(answer.lost));
                    }
                    latest = now;
                    answer.ids.extend(token.id);
                }
                Some(GenerateEvent::Moved { .. }) => answer.resumed += 1,
                Some(GenerateEvent::Failed(fault)) => return Err(fault.into()),
                Some(GenerateEvent::Finished(_)) | None => break,
                Some(_) => {}
            },
            result = &mut losing, if is_due => {
                result?;
                (is_lost, answer.lost, answer.before) = (true, Instant::now(), answer.ids.len());
            }
            () = &mut running => {}
        }
    }
    if !is_lost && before != usize::MAX {
        return Err(anyhow!("the answer ended before the node was lost").into());
    }
    Ok(answer)
}

async fn carry_out(loss: &Loss, bed: &TestBed, name: &str, address: &str) -> Result<(), Failure> {
    let host = host(address);
    let command = match loss {
        Loss::Restart => {
            let addresses: Vec<String> = bed.nodes.iter().map(|(_, address)| address.clone()).collect();
            let cluster = Cluster::dial(&addresses).await;
            let which = cluster.find(name).ok_or_else(|| anyhow!("{name} is not among the nodes"))?;
            begin(&cluster, &[which], 0).await?;
            return Ok(());
        }
        Loss::Ssh => sudo_over_ssh(host, &KILLS),
        Loss::Shell(line) => {
            let mut command = Command::new("sh");
            command.args(["-c", line]).env("BRAMBLE_NODE", name).env("BRAMBLE_HOST", host);
            command
        }
    };
    finish(command, KILL).await.map_err(|reason| anyhow!("the command that kills {name} {reason}").into())
}

/// Waits until all members serve the topology again; the time since the loss.
async fn served_again(bed: &TestBed, topology: &Topology, lost: Instant) -> Option<Duration> {
    let addresses: Vec<String> = bed.nodes.iter().map(|(_, address)| address.clone()).collect();
    let deadline = Instant::now() + BACK;
    while Instant::now() < deadline {
        let cluster = Cluster::dial(&addresses).await;
        let reports = cluster.nodes.iter().filter_map(ClusterNode::report);
        let serving: Vec<&str> =
            reports.filter(|report| report.serves(topology)).map(|report| report.name.as_str()).collect();
        // A rolling restart that still runs would restore the topology once more.
        let is_over = rolling(&cluster).await.is_none_or(|rolling| !rolling.is_running());
        if is_over && topology.members.iter().all(|member| serving.contains(&member.name.as_str())) {
            return Some(lost.elapsed());
        }
        sleep(LOOK).await;
    }
    None
}
