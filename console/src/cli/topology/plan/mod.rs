//! `console topology plan`: ranks the layouts for nodes by simulated speed. Nodes are measured, or described by options.
mod node_file;

use std::path::PathBuf;

use clap::Args;
use common::{latency::ratio, limits::NODES_MAX};
use planner::{
    cost::{Demand, PlanNode, PlanStage},
    holding::PANEL_ROWS,
    search::{self, Candidate, Goal},
    simulate::NodeProfile,
    working::RankMemory,
};
use protocol::bench::{Bench, BenchNode};
use serde_json::{Value, json};
use telemetry::BenchFound;
use tokio_util::sync::CancellationToken;
use topology::sizes::ModelSizes;

use crate::cli::{
    Failure, cluster,
    shared::{
        hypothetical_cluster::{self, Hypothetical},
        interrupts::Interrupts,
        output,
        sessions::open,
    },
    topology::preview::memory_object,
};
use crate::{
    client::{
        assign::{SLOTS_DEFAULT, report, reports},
        bench::bench,
        network::{Effort, measure},
        session, with_port,
    },
    operator::planner_query,
};

/// Names the nodes of commands that get none on the command line.
const NODES_VARIABLE: &str = "BRAMBLE_NODES";
/// Rows of the table without `--all`.
const ROWS: usize = 8;

/// Options of `console topology plan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanOptions {
    /// Nodes as ADDRESS[:PORT]; each reports its memory and is measured with the model [default: hypothetical
    /// nodes]
    #[arg(value_name = "NODE", value_delimiter = ',', env = NODES_VARIABLE)]
    named: Vec<String>,
    /// Nodes given by `--nodes` or `--cluster`; they take precedence over `named`.
    #[arg(skip)]
    pub(crate) typed: Vec<String>,
    #[command(flatten)]
    hypothetical: Hypothetical,
    /// Number of hypothetical nodes [default without nodes: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
    count: Option<u16>,
    /// Memory of each hypothetical node
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = hypothetical_cluster::bytes)]
    memory: u64,
    /// Plan for the nodes of a TOML file: a [[node]] table each, with name, free_mib and optionally profile and
    /// speed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "memory"])]
    described: Option<PathBuf>,
    /// Objective: balanced (fewest nodes that fit, then ranks while they help, then replicas), latency (whole
    /// answer: TTFT plus 127 tokens), ttft, tpot or throughput
    #[arg(long, default_value = "balanced", value_parser = <Goal as std::str::FromStr>::from_str)]
    goal: Goal,
    /// Longest sequence in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    context: u32,
    /// Print all layouts, including those that do not fit
    #[arg(long)]
    all: bool,
}

impl PlanOptions {
    /// The nodes to measure.
    fn live(&self) -> &[String] {
        if self.typed.is_empty() { &self.named } else { &self.typed }
    }

    /// Whether the plan is for existing nodes.
    fn is_live(&self) -> bool {
        self.described.is_none() && self.count.is_none() && !self.live().is_empty()
    }

    /// Whether nodes were given for this command, and not only by the environment.
    fn names_nodes(&self) -> bool {
        let variable = std::env::var(NODES_VARIABLE).unwrap_or_default();
        !self.typed.is_empty() || (!self.named.is_empty() && self.named.join(",") != variable)
    }

    /// Points out that the nodes are hypothetical although a cluster is saved.
    fn tell_saved(&self) {
        let is_default = self.described.is_none() && self.count.is_none() && self.live().is_empty();
        // A plan for hypothetical nodes needs no saved cluster, so a broken file is no failure.
        if let Some((name, _)) = cluster::saved(None).ok().flatten().filter(|_| is_default) {
            output::note(&format!("these nodes are hypothetical; for your nodes: --cluster {name}"));
        }
    }

    /// The requirements for a layout.
    pub(crate) fn demand(&self) -> Demand {
        Demand {
            context: self.context,
            slots: SLOTS_DEFAULT,
            kv: self.hypothetical.kv,
            exchange: self.hypothetical.exchange,
            choice: self.hypothetical.collective,
            link: self.hypothetical.link(),
            prompt: self.hypothetical.prompt.min(self.context),
        }
    }

    /// `count` hypothetical nodes with `memory` bytes each.
    pub(crate) fn described(&self, count: usize, memory: u64) -> Vec<PlanNode> {
        let nodes = (1..=count).map(|number| PlanNode {
            name: format!("{}-{number}", self.hypothetical.profile.name),
            profile: self.hypothetical.profile.clone(),
            memory: hypothetical_cluster::free(memory),
            panel_rows: PANEL_ROWS,
            link: None,
        });
        nodes.collect()
    }
}

/// Plans for the nodes and prints the ranking. With `--json`, the plan is the only object, also if no layout fits.
pub(crate) async fn run(options: PlanOptions) -> Result<u8, Failure> {
    if options.described.is_some() && options.names_nodes() {
        let message = "--described cannot be combined with other nodes: its file already names the nodes".into();
        return Err(Failure::Usage { message, next: "remove one of them" });
    }
    let sizes = options.hypothetical.sizes()?;
    options.tell_saved();
    let (nodes, links) = if let Some(path) = &options.described {
        (node_file::nodes(path, options.hypothetical.link())?, None)
    } else if options.is_live() {
        Interrupts::listen()?.end(probe_all(options.live(), &options, &sizes)).await?
    } else {
        (options.described(usize::from(options.count.unwrap_or(8)), options.memory), None)
    };
    let plan = search::plan(&sizes, &nodes, &options.demand(), options.goal);
    let failure = too_large(&sizes, &plan);
    if options.hypothetical.json {
        let mut object = object(&options, &sizes, &nodes, &plan);
        object["links"] = json!(links);
        // `dropped` has the reason of every layout, the failure only that of one.
        if let Some(failure) = failure {
            return Ok(failure.report_in(object));
        }
        output::line(&object.to_string());
        return Ok(0);
    }
    print(&options, &sizes, &nodes, &plan);
    links.iter().for_each(|links| output::line(&output::clean(links)));
    failure.map_or(Ok(0), Err)
}

/// The failure of a plan in which no layout fits.
fn too_large(sizes: &ModelSizes, plan: &search::Plan) -> Option<Failure> {
    let dropped = plan.dropped.last().filter(|_| plan.ranked.is_empty())?;
    let message = format!("no layout fits; {}: {}", dropped.layout, dropped.reason);
    let has_experts = sizes.spec.kinds.iter().any(|kind| kind.feed_forward.experts().is_some());
    let next = match has_experts {
        true => "use more nodes, more memory, --kv q8_0, or experts_on_disk = true on the nodes",
        false => "use more nodes, more memory, a smaller model or context, or --kv q8_0",
    };
    Some(Failure::State { message, next })
}

/// Benchmarks the nodes with the model, one after another, then measures the links between them. Also returns a
/// line on the source of the link figures.
async fn probe_all(
    live: &[String],
    options: &PlanOptions,
    sizes: &ModelSizes,
) -> Result<(Vec<PlanNode>, Option<String>), Failure> {
    let mut nodes = Vec::new();
    for node in live {
        nodes.push(probe(&with_port(node), options, sizes).await?);
    }
    if options.hypothetical.types_link() || nodes.len() < 2 {
        return Ok((nodes, None));
    }
    let sessions = open(live).await?;
    let measured = measure(&sessions, Effort::short(sessions.len()), &|_, _| {}, &CancellationToken::new()).await;
    if let Err(fault) = measured {
        // Earlier measurements of the nodes are better than none.
        output::note(&output::clean(&format!("cannot measure the links, using earlier figures or defaults: {fault}")));
    }
    let reports = reports(&sessions).await?;
    let known = || reports.iter().map(|report| (report.name.as_str(), report.measured.links.as_slice()));
    for (report, link) in reports.iter().zip(planner_query::links(known())) {
        // An excluded node has no session here.
        if let Some(node) = nodes.iter_mut().find(|node| node.name == report.name) {
            node.link = link.map(|link| options.hypothetical.over(link));
        }
    }
    let now = reports.iter().map(|report| report.unix_ms).max().unwrap_or(0);
    Ok((nodes, Some(planner_query::links_known(known(), now))))
}

async fn probe(address: &str, options: &PlanOptions, sizes: &ModelSizes) -> Result<PlanNode, Failure> {
    let session = session::open(address).await?;
    let report = report(&session).await?;
    let name = report.name.clone();
    let model = std::path::Path::new(&options.hypothetical.model).file_name();
    let model = model.map_or_else(|| options.hypothetical.model.clone(), |name| name.to_string_lossy().into_owned());
    let wanted = Bench::Node(BenchNode {
        model,
        threads: None,
        prefill: vec![128],
        context: vec![0],
        tokens: 16,
        repeats: 1,
        kv: options.hypothetical.kv,
        read_mib: None,
    });
    let found = bench(&session, wanted, &|_| {}, &CancellationToken::new()).await?;
    let BenchFound::Node(found) = found else {
        return Err(
            anyhow::anyhow!("node {name} returned results of matrix products instead of the model benchmark").into()
        );
    };
    // Values that no benchmark measures come from the profile of a machine with the same instruction set.
    let base = if report.kernels == "neon" { NodeProfile::pi4() } else { NodeProfile::pi5() };
    let profile = NodeProfile::measured(&name, &found, sizes, &base);
    let memory = report.free_next_to_shard().map_or(0, |free| free.0);
    Ok(PlanNode { name, profile, memory, panel_rows: PANEL_ROWS, link: None })
}

/// Names of a replica's nodes, stage by stage.
fn members(stages: &[PlanStage], nodes: &[PlanNode]) -> String {
    let ranks = stages.iter().flat_map(|stage| &stage.ranks);
    let names: Vec<&str> = ranks.map(|rank| nodes[rank.node].name.as_str()).collect();
    names.join(",")
}

/// The command-line arguments of an assignment: nodes and layout, and shares and layers where they differ from the
/// defaults.
fn arguments(candidate: &Candidate, nodes: &[PlanNode]) -> String {
    let all: Vec<String> = candidate.replicas.iter().map(|stages| members(stages, nodes)).collect();
    let mut text = format!("--nodes {} --topology {}", all.join(","), candidate.layout);
    let ranks = candidate.replicas.iter().flatten().flat_map(|stage| &stage.ranks);
    let weights: Vec<u32> = ranks.map(|rank| rank.weight).collect();
    if weights.iter().any(|weight| *weight != weights[0]) {
        let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
        text.push_str(&format!(" --weights {}", weights.join(",")));
    }
    let first = candidate.replicas.first().map_or(&[][..], Vec::as_slice);
    if first.len() > 1 {
        let layers: Vec<String> = first.iter().map(|stage| stage.layers.len().to_string()).collect();
        text.push_str(&format!(" --layers {}", layers.join(",")));
    }
    text
}

/// One row per node of a candidate, with its memory by use in MiB.
fn division(candidate: &Candidate, nodes: &[PlanNode]) -> Vec<String> {
    let ranks = candidate.replicas.iter().flatten().flat_map(|stage| &stage.ranks);
    let rows = ranks.zip(candidate.memory.iter().flatten()).map(|(rank, memory)| {
        let parts = [memory.weights, memory.kv, memory.state, memory.working, memory.total()];
        let parts = parts.map(|part| format!(" {:>8.1}", part.0 as f64 / (1_u64 << 20) as f64)).concat();
        format!("  {:<26} {parts}", nodes[rank.node].name)
    });
    rows.collect()
}

fn print(options: &PlanOptions, sizes: &ModelSizes, nodes: &[PlanNode], plan: &search::Plan) {
    output::line(&format!("{}, context {}", options.hypothetical.line(sizes, options.is_live()), options.context));
    output::line("topology     nodes  tok/s  all tok/s  TTFT       GiB/node  network");
    let rows = if options.all { plan.ranked.len() } else { ROWS };
    for candidate in plan.ranked.iter().take(rows) {
        let prediction = &candidate.prediction;
        output::line(&format!(
            "{:<11}  {:>5}  {:>5.2}  {:>9.2}  {:<9}  {:>8.2}  {:>5.0} %",
            candidate.layout,
            candidate.layout.node_count(),
            ratio(1e9, prediction.tpot.0 as f64),
            prediction.throughput,
            prediction.ttft,
            candidate.memory_max().0 as f64 / (1_u64 << 30) as f64,
            100.0 * prediction.network[1],
        ));
    }
    if let Some(best) = plan.ranked.first() {
        output::line(&output::clean(&format!("best for {}: {}", options.goal, arguments(best, nodes))));
        output::line("memory per node, MiB:      weights       KV    state  working    total");
        division(best, nodes).iter().for_each(|row| output::line(&output::clean(row)));
    }
    for dropped in plan.dropped.iter().filter(|_| options.all) {
        output::line(&output::clean(&format!("{:<11}  {}", dropped.layout, dropped.reason)));
    }
    plan.warnings.iter().for_each(|warning| output::line(&output::clean(&format!("warning: {warning}"))));
}

fn stage_object(stage: &PlanStage, memory: &[RankMemory], nodes: &[PlanNode]) -> Value {
    let ranks = stage.ranks.iter().zip(memory).map(|(rank, memory)| {
        json!({"node": nodes[rank.node].name, "weight": rank.weight, "bytes": memory.total().0,
            "memory": memory_object(memory)})
    });
    json!({"layers": [stage.layers.start, stage.layers.end], "ranks": ranks.collect::<Vec<Value>>()})
}

/// The stages of a replica. `memory`: of its ranks, stage by stage.
fn replica_object(stages: &[PlanStage], memory: &[RankMemory], nodes: &[PlanNode]) -> Value {
    let parts = memory.chunks(stages.first().map_or(1, |stage| stage.ranks.len().max(1)));
    stages.iter().zip(parts).map(|(stage, memory)| stage_object(stage, memory, nodes)).collect()
}

fn candidate_object(candidate: &Candidate, nodes: &[PlanNode]) -> Value {
    let prediction = &candidate.prediction;
    let replicas = candidate.replicas.iter().zip(&candidate.memory);
    let replicas: Value = replicas.map(|(stages, memory)| replica_object(stages, memory, nodes)).collect();
    json!({"topology": candidate.layout.to_string(), "nodes": candidate.layout.node_count(),
        "ttft_ms": prediction.ttft.milliseconds(), "tpot_ms": prediction.tpot.milliseconds(),
        "tokens_per_second": ratio(1e9, prediction.tpot.0 as f64), "throughput": prediction.throughput,
        "network_fraction": {"prefill": prediction.network[0], "decode": prediction.network[1]},
        "memory_max": candidate.memory_max().0, "replicas": replicas, "assign": arguments(candidate, nodes)})
}

fn node_object(node: &PlanNode, options: &PlanOptions) -> Value {
    let link = node.link.unwrap_or_else(|| options.hypothetical.link());
    json!({"name": node.name, "memory": node.memory, "alpha_us": link.alpha_ns as f64 / 1e3,
        "bandwidth_mbit": link.bits_per_second as f64 / 1e6, "profile": node.profile.name,
        "read_bytes_per_second": node.profile.read_bytes_per_second, "decode_share": node.profile.decode_share,
        "macs_per_second": node.profile.macs_per_second})
}

fn object(options: &PlanOptions, sizes: &ModelSizes, nodes: &[PlanNode], plan: &search::Plan) -> Value {
    let mut object = options.hypothetical.object(sizes, options.is_live());
    object["goal"] = json!(options.goal.to_string());
    object["context"] = json!(options.context);
    object["nodes"] = nodes.iter().map(|node| node_object(node, options)).collect();
    object["ranked"] = plan.ranked.iter().map(|candidate| candidate_object(candidate, nodes)).collect();
    object["dropped"] = plan
        .dropped
        .iter()
        .map(|dropped| json!({"topology": dropped.layout.to_string(), "reason": dropped.reason.to_string()}))
        .collect();
    object["warnings"] = json!(plan.warnings);
    object
}
