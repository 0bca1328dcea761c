//! `console bench`: measures nodes, or this machine by the brambled beside the console, with real work.
mod ab;
mod drafts;
mod load;
mod matrix;
mod pages;
mod run;

use std::{ffi::OsString, io::IsTerminal, path::Path, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use shared::{
    protocol::{
        bench::{BENCH_OUTPUT_BYTES_MAX, Bench},
        error::Fault,
    },
    telemetry::{
        BenchFound, BenchProgress, KernelBench, NodeBench,
        bench::{kernels_table, node_table},
    },
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Command,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Failure, brambled, collectives, disaggregation,
    exclude::find,
    interrupts::Interrupts,
    links, options, output,
    reach::{Need, Reach},
};
use crate::client::{
    assign::report,
    bench::bench,
    cluster::Cluster,
    session::{self, Session},
    with_port,
};

/// What else is measured.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum BenchWhat {
    /// Layouts against each other, taking turns, with a verdict
    Ab(Box<ab::Ab>),
    /// All-reduces: between the nodes of a topology on their links, or between threads of this machine
    Collectives(Box<collectives::Collectives>),
    /// Drafts against none on a fixed set of prompts, taking turns: exit code 1 where they slow one down
    Drafts(Box<drafts::Drafts>),
    /// A prefill group against replicas that do both, on the same nodes: for which prompts roles are worth it
    Disagg(Box<disaggregation::Disaggregation>),
    /// Measure the links between nodes: round-trip time, throughput of each pair, and incast
    Links(links::Links),
    /// Two matrices: exit code 1 where the second is worse by more than the noise of their repeats
    Compare(pages::Compare),
    /// Ranks and replicas by lengths of prompts and answers by requests at a time; goes on where it was stopped
    Matrix(Box<matrix::Matrix>),
    /// A page about a matrix, with three graphs
    Report(pages::Report),
    /// A server's HTTP API under load: at a rate, from a trace, or so many requests at a time
    Serve(Box<load::Serve>),
}

impl BenchWhat {
    /// The nodes that it is about.
    pub(super) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::Ab(ab) => Reach::Nodes(ab.nodes(), Need::Acts),
            Self::Matrix(matrix) => Reach::Nodes(matrix.nodes(), Need::Acts),
            Self::Collectives(wanted) if wanted.local => Reach::Otherwise("measures this machine, as --local says"),
            Self::Collectives(wanted) => Reach::Nodes(&mut wanted.nodes, Need::May),
            Self::Disagg(wanted) => Reach::Nodes(&mut wanted.nodes, Need::Acts),
            Self::Links(links) => Reach::Nodes(&mut links.nodes, Need::Acts),
            Self::Drafts(_) | Self::Serve(_) => Reach::Otherwise("speaks to the HTTP API that --url names"),
            Self::Compare(_) | Self::Report(_) => Reach::Otherwise("reads files of this machine"),
        }
    }

    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match self {
            Self::Ab(ab) => ab.json,
            Self::Collectives(collectives) => collectives.json,
            Self::Drafts(drafts) => drafts.json,
            Self::Disagg(disaggregation) => disaggregation.json,
            Self::Compare(compare) => compare.json,
            Self::Links(links) => links.json,
            Self::Matrix(matrix) => matrix.json,
            Self::Report(_) => false,
            Self::Serve(serve) => serve.json,
        }
    }
}

/// A node that was taken out must hold nothing within this.
const SETTLE: Duration = Duration::from_secs(5);

/// What one machine answered.
#[derive(Debug, Default)]
struct Answer {
    address: String,
    name: String,
    node: Option<NodeBench>,
    kernels: Option<KernelBench>,
    failure: Option<Failure>,
}

/// Runs the command. The first signal cancels what runs, the second ends it at once.
pub(super) async fn run(options: options::Bench) -> Result<u8, Failure> {
    match options.what {
        Some(BenchWhat::Ab(wanted)) => return ab::run(*wanted).await,
        Some(BenchWhat::Collectives(wanted)) => return collectives::run(*wanted).await,
        Some(BenchWhat::Drafts(wanted)) => return drafts::run(*wanted).await,
        Some(BenchWhat::Disagg(wanted)) => return disaggregation::run(*wanted).await,
        Some(BenchWhat::Links(wanted)) => return links::run(wanted).await,
        Some(BenchWhat::Compare(wanted)) => return pages::compare(&wanted),
        Some(BenchWhat::Matrix(wanted)) => return matrix::run(*wanted).await,
        Some(BenchWhat::Report(wanted)) => return pages::report(&wanted),
        Some(BenchWhat::Serve(wanted)) => return load::run(*wanted).await,
        None => {}
    }
    let nodes: Vec<String> = if options.local { Vec::new() } else { options.nodes.clone() };
    if nodes.is_empty() && !options.only.is_empty() {
        let message = "no nodes named to find these among".into();
        return Err(Failure::Usage { message, next: "add --nodes A,B,.. or set BRAMBLE_NODES" });
    }
    let benches: Arc<Vec<Bench>> = Arc::new(options.benches(!nodes.is_empty()));
    for bench in benches.iter() {
        let usage = |message: String| Failure::Usage { message, next: "console bench --help" };
        bench.check().map_err(usage)?;
    }
    let mut interrupts = Interrupts::listen()?;
    if nodes.is_empty() {
        // What is dropped where it stands kills its child.
        let answer = interrupts.end(here(&options, &benches)).await?;
        show(options.json, &answer);
        return Ok(finish(options.json, &[answer]));
    }
    let nodes = interrupts.end(which(&nodes, &options.only)).await?;
    let cancel = CancellationToken::new();
    let asking = ask_all(&nodes, &benches, &options, &cancel);
    tokio::pin!(asking);
    let mut interrupted = None;
    let answers = loop {
        tokio::select! {
            answers = &mut asking => break answers,
            code = interrupts.next() => {
                if interrupted.replace(code).is_some() {
                    return Err(Failure::Interrupted { code });
                }
                cancel.cancel();
            }
        }
    };
    match interrupted {
        Some(code) => Err(Failure::Interrupted { code }),
        None => Ok(finish(options.json, &answers)),
    }
}

/// Addresses of the nodes that were named by name or address; without any of all.
async fn which(nodes: &[String], only: &[String]) -> Result<Vec<String>, Failure> {
    let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    if only.is_empty() {
        return Ok(addresses);
    }
    let cluster = Cluster::dial(&addresses).await;
    only.iter().map(|who| find(&cluster, who).map(|index| addresses[index].clone())).collect()
}

/// One node after the other, or all at once; in both cases in the order in which they were named.
async fn ask_all(
    nodes: &[String],
    benches: &Arc<Vec<Bench>>,
    options: &options::Bench,
    cancel: &CancellationToken,
) -> Vec<Answer> {
    let ask = |node: &String| of_node(node.clone(), Arc::clone(benches), cancel.clone());
    let mut answers = Vec::new();
    if options.parallel {
        let mut asked = JoinSet::new();
        for (index, node) in nodes.iter().enumerate() {
            let asking = ask(node);
            asked.spawn(async move { (index, asking.await) });
        }
        let mut found = asked.join_all().await;
        found.sort_by_key(|(index, _)| *index);
        answers.extend(found.into_iter().map(|(_, answer)| answer));
        answers.iter().for_each(|answer| show(options.json, answer));
    } else {
        for node in nodes {
            let answer = ask(node).await;
            if cancel.is_cancelled() {
                break;
            }
            show(options.json, &answer);
            answers.push(answer);
        }
    }
    answers
}

async fn of_node(address: String, benches: Arc<Vec<Bench>>, cancel: CancellationToken) -> Answer {
    let mut answer = Answer { address, ..Answer::default() };
    let session = match session::open(&answer.address).await {
        Ok(session) => session,
        Err(fault) => return Answer { failure: Some(fault.into()), ..answer },
    };
    answer.name.clone_from(&session.identity.name);
    if let Err(fault) = settled(&session).await {
        return Answer { failure: Some(fault.into()), ..answer };
    }
    let tell = |progress: &BenchProgress| tell(&session.identity.name, progress);
    for wanted in benches.iter() {
        match bench(&session, wanted.clone(), &tell, &cancel).await {
            Ok(found) => answer.take(found),
            Err(fault) => return Answer { failure: Some(fault.into()), ..answer },
        }
    }
    answer
}

/// A node that was taken out a moment ago lets its shard go when the others do: that is waited for.
async fn settled(session: &Session) -> Result<(), Fault> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let report = report(session).await?;
        let is_out = report.exclusions.of(&report.name, &session.address).is_some();
        if !is_out || report.topology.is_none() || Instant::now() > deadline {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// This machine, without a daemon.
async fn here(options: &options::Bench, benches: &[Bench]) -> Result<Answer, Failure> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let mut answer = Answer { name: host.unwrap_or_else(|| "here".into()), ..Answer::default() };
    for bench in benches {
        let found = child(bench, options.model.as_deref(), &answer.name).await?;
        answer.take(found);
    }
    Ok(answer)
}

async fn child(bench: &Bench, model: Option<&Path>, name: &str) -> anyhow::Result<BenchFound> {
    let arguments = bench.arguments(model).context("links are measured by nodes: name them with --nodes")?;
    let printed = printed(arguments, name).await?;
    let found = match bench {
        Bench::Node(_) => serde_json::from_slice(&printed).map(BenchFound::Node),
        Bench::Kernels(_) => serde_json::from_slice(&printed).map(BenchFound::Kernels),
        Bench::Network(_) => bail!("links are measured by nodes: name them with --nodes"),
    };
    found.context("brambled is of another release")
}

/// What the brambled beside this program prints as a child, which ends with it; tells of its progress as that of `name`.
pub(super) async fn printed(arguments: Vec<OsString>, name: &str) -> anyhow::Result<Vec<u8>> {
    let program = brambled::path()?;
    let mut command = Command::new(&program);
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    // Kept open: where it closes, the child ends.
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (out, err) = out.zip(err).context("brambled has no output")?;
    let printing = async {
        let mut bytes = Vec::new();
        // What is cut off is no JSON, which is said below.
        let _ = out.take(BENCH_OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
        bytes
    };
    let telling = async {
        let mut lines = BufReader::new(err.take(BENCH_OUTPUT_BYTES_MAX)).lines();
        let mut last = String::new();
        while let Ok(Some(line)) = lines.next_line().await {
            match line.parse() {
                Ok(progress) => tell(name, &progress),
                Err(_) => last = line,
            }
        }
        last
    };
    let (printed, last) = tokio::join!(printing, telling);
    let status = child.wait().await.context("cannot wait for brambled")?;
    drop(stdin);
    if !status.success() {
        bail!(if last.is_empty() { anyhow!("brambled ended with {status}") } else { anyhow!(last) });
    }
    Ok(printed)
}

/// Tells what is measured now, where somebody watches.
fn tell(name: &str, progress: &BenchProgress) {
    if std::io::stderr().is_terminal() {
        output::note(&format!("{}: {}", output::clean(name), output::clean(&progress.to_string())));
    }
}

impl Answer {
    fn take(&mut self, found: BenchFound) {
        match found {
            BenchFound::Node(node) => self.node = Some(*node),
            BenchFound::Kernels(kernels) => self.kernels = Some(kernels),
            // Only `bench links` asks for these.
            BenchFound::Network(_) => {}
        }
    }

    fn object(&self) -> Value {
        let mut object = json!({"address": (!self.address.is_empty()).then_some(&self.address),
            "name": (!self.name.is_empty()).then_some(&self.name), "node": self.node, "kernels": self.kernels});
        if let Some(failure) = &self.failure {
            object["error"] = failure.json()["error"].take();
        }
        object
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{} {}", self.name, self.address).trim().to_owned()];
        lines.extend(self.node.iter().flat_map(node_table));
        lines.extend(self.kernels.iter().flat_map(kernels_table));
        lines
    }
}

/// Prints an answer as soon as it is there; JSON waits for all of them.
fn show(json: bool, answer: &Answer) {
    if !json {
        output::line(&output::clean(&answer.lines().join("\n")));
    }
    if let Some(failure) = &answer.failure {
        failure.report(false);
    }
}

/// Prints all answers as JSON; returns the exit code, which is that of the first failure.
fn finish(json: bool, answers: &[Answer]) -> u8 {
    if json {
        let list: Vec<Value> = answers.iter().map(Answer::object).collect();
        output::line(&json!({"nodes": list}).to_string());
    }
    answers.iter().find_map(|answer| answer.failure.as_ref()).map_or(0, Failure::code)
}
