//! `console bench node`: measures nodes, or this machine with the brambled next to this program, with real work.
use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use common::{fault::Fault, precision::KvFormat};
use protocol::bench::{BENCH_REPEATS_MAX, BENCH_THREADS_MAX, Bench, BenchKernels, BenchNode, MATRIX_DEFAULT};
use serde_json::{Value, json};
use telemetry::{
    BenchFound, KernelBench, NodeBench,
    bench::{kernels_table, node_table},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{
        Failure,
        shared::{
            brambled::{child, tell_progress},
            find_node::find,
            interrupts::Interrupts,
            options::model_name,
            output,
        },
    },
    client::{
        assign::report,
        bench::bench,
        cluster::Cluster,
        session::{self, Session},
        with_port,
    },
};

/// Time limit for an excluded node to release its shard.
const SETTLE: Duration = Duration::from_secs(5);

/// The results of one machine.
#[derive(Debug, Default)]
struct MeasuredNode {
    address: String,
    name: String,
    node: Option<NodeBench>,
    kernels: Option<KernelBench>,
    failure: Option<Failure>,
}

/// Runs the command. The first signal cancels the running benchmark, the second ends the command at once.
pub(super) async fn run(options: NodeOptions) -> Result<u8, Failure> {
    let nodes: Vec<String> = if options.local { Vec::new() } else { options.nodes.clone() };
    if nodes.is_empty() && !options.only.is_empty() {
        let message = "cannot select nodes by name: no nodes are given".into();
        return Err(Failure::Usage { message, next: "add --nodes A,B,.. or set BRAMBLE_NODES" });
    }
    let benches: Arc<Vec<Bench>> = Arc::new(options.benches(!nodes.is_empty()));
    for bench in benches.iter() {
        bench.check().map_err(|message| Failure::Usage { message, next: "console bench node --help" })?;
    }
    let mut interrupts = Interrupts::listen()?;
    if nodes.is_empty() {
        // Dropping the future kills the child process.
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

/// The addresses of the nodes given by name or address in `only`; of all nodes if it is empty.
async fn which(nodes: &[String], only: &[String]) -> Result<Vec<String>, Failure> {
    let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    if only.is_empty() {
        return Ok(addresses);
    }
    let cluster = Cluster::dial(&addresses).await;
    only.iter().map(|who| find(&cluster, who).map(|index| addresses[index].clone())).collect()
}

/// Measures the nodes one after another, or all at once with `--parallel`. The results have the order of `nodes`.
async fn ask_all(
    nodes: &[String],
    benches: &Arc<Vec<Bench>>,
    options: &NodeOptions,
    cancel: &CancellationToken,
) -> Vec<MeasuredNode> {
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

async fn of_node(address: String, benches: Arc<Vec<Bench>>, cancel: CancellationToken) -> MeasuredNode {
    let mut answer = MeasuredNode { address, ..MeasuredNode::default() };
    let session = match session::open(&answer.address).await {
        Ok(session) => session,
        Err(fault) => return MeasuredNode { failure: Some(fault.into()), ..answer },
    };
    answer.name.clone_from(&session.identity.name);
    if let Err(fault) = settled(&session).await {
        return MeasuredNode { failure: Some(fault.into()), ..answer };
    }
    let name = &session.identity.name;
    for wanted in benches.iter() {
        let found = bench(&session, wanted.clone(), &|progress| tell_progress(name, progress), &cancel).await;
        match found {
            Ok(found) => answer.take(found),
            Err(fault) => return MeasuredNode { failure: Some(fault.into()), ..answer },
        }
    }
    answer
}

/// Waits until a node that was excluded a moment ago has released its shard, at most [`SETTLE`].
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

/// Measures this machine, without a daemon.
async fn here(options: &NodeOptions, benches: &[Bench]) -> Result<MeasuredNode, Failure> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let mut answer = MeasuredNode { name: host.unwrap_or_else(|| "here".into()), ..MeasuredNode::default() };
    for bench in benches {
        let found = child(bench, options.model.as_deref(), &answer.name).await?;
        answer.take(found);
    }
    Ok(answer)
}

impl MeasuredNode {
    fn take(&mut self, found: BenchFound) {
        match found {
            BenchFound::Node(node) => self.node = Some(*node),
            BenchFound::Kernels(kernels) => self.kernels = Some(kernels),
            // Only `console bench links` requests these.
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

/// Prints the result of one machine. With JSON, only its failure: [`finish`] prints the results of all.
fn show(json: bool, answer: &MeasuredNode) {
    if !json {
        output::line(&output::clean(&answer.lines().join("\n")));
    }
    if let Some(failure) = &answer.failure {
        failure.report(false);
    }
}

/// Prints all results if they are wanted as JSON. Returns the exit code of the first failure, or 0.
fn finish(json: bool, answers: &[MeasuredNode]) -> u8 {
    if json {
        let list: Vec<Value> = answers.iter().map(MeasuredNode::object).collect();
        output::line(&json!({"nodes": list}).to_string());
    }
    answers.iter().find_map(|answer| answer.failure.as_ref()).map_or(0, Failure::code)
}

/// Options of `console bench node`.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct NodeOptions {
    /// Measure only these nodes, by name or address [default: all]
    #[arg(value_name = "NODE", conflicts_with = "local")]
    pub(super) only: Vec<String>,
    /// Nodes to measure, one after another; each must be idle. Without nodes, this machine is measured, without a
    /// daemon.
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
    /// Measure this machine with the brambled next to this program, even if BRAMBLE_NODES names nodes
    #[arg(long)]
    pub(super) local: bool,
    /// Measure all nodes at the same time
    #[arg(long)]
    pub(super) parallel: bool,
    /// Model file; each node looks up its name in its model folders
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "kernels")]
    pub(super) model: Option<PathBuf>,
    /// Measure matrix products only; without --model, of synthetic matrices
    #[arg(long)]
    kernels: bool,
    /// Compute threads [default: all allowed cores; 1 for matrix products]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: Option<u16>,
    /// Prompt lengths in tokens [default: 32,128,512 within the model's context]
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "kernels")]
    prefill: Vec<u32>,
    /// Context lengths to decode at, in tokens [default: 0,1000,5000 within the model's context]
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "kernels")]
    context: Vec<u32>,
    /// Tokens to decode at each context length
    #[arg(long, value_name = "N", default_value_t = 16)]
    tokens: u32,
    /// Repeats, of which the median is reported [default: 3; 9 for matrix products]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_REPEATS_MAX)))]
    repeats: Option<u32>,
    /// Format of the KV cache: f16, q8_0, q4_0 or f32
    #[arg(long, default_value = "f16", value_parser = <KvFormat as std::str::FromStr>::from_str)]
    kv: KvFormat,
    /// MiB of memory to read for the bandwidth, which must exceed the caches [default: a quarter of the free
    /// memory, at most 1024]
    #[arg(long, value_name = "N")]
    read_mib: Option<u32>,
    /// Formats of matrix products, in the names of llama.cpp [default: all, or those of the model]
    #[arg(long, value_name = "FORMAT,..", value_delimiter = ',')]
    formats: Vec<String>,
    /// Kernel tables for matrix products; all: every table that the machine can run [default: the one in use]
    #[arg(long, value_name = "TABLE,..", value_delimiter = ',')]
    tables: Vec<String>,
    /// Token counts of matrix products [default: 1,4,8,128]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    product_tokens: Vec<u32>,
    /// Largest number of rows of matrix products
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT)]
    rows: u32,
    /// Columns of synthetic matrices
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT)]
    columns: u32,
    #[arg(from_global)]
    json: bool,
}

impl NodeOptions {
    /// The benchmarks to run: the whole model, then its matrix products. Nodes receive the model's name, this
    /// machine its path.
    pub(super) fn benches(&self, on_nodes: bool) -> Vec<Bench> {
        let model = self.model.as_ref().map(|model| model.to_string_lossy().into_owned());
        let model = model.map(|model| if on_nodes { model_name(&model) } else { model });
        let node = model.clone().filter(|_| !self.kernels).map(|model| {
            Bench::Node(BenchNode {
                model,
                threads: self.threads,
                prefill: self.prefill.clone(),
                context: self.context.clone(),
                tokens: self.tokens,
                repeats: self.repeats.unwrap_or(3),
                kv: self.kv,
                read_mib: self.read_mib,
            })
        });
        let kernels = Bench::Kernels(BenchKernels {
            model,
            threads: self.threads.unwrap_or(1),
            formats: self.formats.clone(),
            tables: self.tables.clone(),
            tokens: self.product_tokens.clone(),
            rows: self.rows,
            columns: self.columns,
            repeats: self.repeats.unwrap_or(9),
        });
        node.into_iter().chain([kernels]).collect()
    }
}
