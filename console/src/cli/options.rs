//! The options of every command, with their bounds.
use std::path::PathBuf;

use clap::Args;
use shared::{
    protocol::bench::{self, BENCH_REPEATS_MAX, BENCH_THREADS_MAX, BenchKernels, BenchNode, MATRIX_DEFAULT},
    schedule::Choice,
    topology::{Exchange, KvFormat, Layout, exclusion::REASON_LENGTH_MAX, planner::Goal},
};

use super::{
    bench::BenchWhat,
    confirm::Consent,
    endpoint::Endpoint,
    look::Look,
    reach::{Need, Reach},
    sampling::Sampling,
};
use crate::{
    client::assign::SLOTS_DEFAULT,
    wanted::{Asked, Wanted},
};

pub(super) fn node(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        Err("a node is ADDRESS[:PORT]".into())
    } else {
        Ok(text.into())
    }
}

pub(super) fn layout(text: &str) -> Result<Layout, String> {
    text.parse().map_err(|error: shared::topology::SpecError| error.to_string())
}

/// The nodes that a command speaks to: `reach` fills them in from what the whole program was told.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Nodes {
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
}

/// What to assign, beside nodes and model.
#[derive(Clone, Debug, Args)]
pub(super) struct Assignment {
    /// tpN, ppS-tpN or dpR-ppS-tpN: R replicas of S stages of N nodes; with roles prefill:tpN+decode:tpM [default: the planner's best for
    /// --goal; tp over all nodes if nodes share a machine]
    #[arg(long, value_parser = layout)]
    pub(super) topology: Option<Layout>,
    /// Optimise the default topology for: balanced (fewest nodes that fit, then ranks while answers get faster, then replicas), latency (a whole
    /// answer: TTFT plus 127 tokens), ttft, tpot or throughput
    #[arg(long, default_value = "balanced", value_parser = <Goal as std::str::FromStr>::from_str)]
    pub(super) goal: Goal,
    /// Shares of each layer, for the ranks of a stage or for all nodes, for example 3,2,1 [default: equal]
    #[arg(long, value_delimiter = ',', value_name = "W,W,..", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    weights: Vec<u32>,
    /// Layers of each stage, for example 12,10 [default: balanced by what layers and output cost]
    #[arg(long, value_delimiter = ',', value_name = "L,L,..", value_parser = clap::value_parser!(u32).range(1..=1024))]
    layers: Vec<u32>,
    /// Format of the KV cache: f16, q8_0 or f32 [default: f16]
    #[arg(long, value_parser = <KvFormat as std::str::FromStr>::from_str)]
    kv: Option<KvFormat>,
    /// Format of the partial sums between nodes: f32, f16 or q80 [default: f32]
    #[arg(long, value_parser = <Exchange as std::str::FromStr>::from_str)]
    pub(super) exchange: Option<Exchange>,
    /// How nodes sum: auto times direct, rs-ag and star on the links; or one of these, doubling, ring, two-level [default: auto]
    #[arg(long, value_parser = <Choice as std::str::FromStr>::from_str)]
    collective: Option<Choice>,
    /// Longest sequence in tokens [default: the model's, at most 4096]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
}

impl Assignment {
    /// What was asked of a topology with this model.
    pub(super) fn asked(&self, model: &str) -> Asked {
        Asked {
            model: model_name(model),
            layout: self.topology,
            weights: self.weights.clone(),
            layers: self.layers.clone(),
            kv: self.kv,
            exchange: self.exchange,
            collective: self.collective,
            context_length: self.context,
            slots: SLOTS_DEFAULT,
            goal: self.goal,
        }
    }

    /// What is wanted of `nodes` nodes.
    pub(super) fn wanted(&self, nodes: usize, model: &str) -> Wanted {
        self.asked(model).wanted(nodes)
    }
}

/// A model is named by its file name: nodes look below their own folders.
fn model_name(model: &str) -> String {
    let name = std::path::Path::new(model).file_name();
    name.map_or_else(|| model.into(), |name| name.to_string_lossy().into_owned())
}

/// Options of the dashboard.
#[derive(Clone, Debug, Args)]
pub(super) struct Dashboard {
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
    /// Model file name; assigned when the dashboard opens, unless it is served already. A running topology is replaced only after a question
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    #[command(flatten)]
    pub(super) assignment: Assignment,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(super) session: super::arrange::Session,
}

/// Most daemons that a demo starts.
pub(super) const DEMO_NODES_MAX: u16 = 8;

/// Options of `console bench`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub(super) struct Bench {
    #[command(subcommand)]
    pub(super) what: Option<BenchWhat>,
    /// Measure only these, by name or address [default: all]
    #[arg(value_name = "NODE", conflicts_with = "local")]
    pub(super) only: Vec<String>,
    /// Measured one after the other; each must be idle. Without any: this machine, without a daemon.
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
    /// Measure this machine by the brambled next to this program, also where BRAMBLE_NODES names nodes
    #[arg(long)]
    pub(super) local: bool,
    /// Measure all nodes at the same time
    #[arg(long)]
    pub(super) parallel: bool,
    /// Model file; its name is looked for in the model folders of every node
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "kernels")]
    pub(super) model: Option<PathBuf>,
    /// Matrix products only; without --model of made-up matrices
    #[arg(long)]
    kernels: bool,
    /// Compute threads [default: all allowed cores; of matrix products 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: Option<u16>,
    /// Lengths of prompts, in tokens [default: 32,128,512 as far as the model's context goes]
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "kernels")]
    prefill: Vec<u32>,
    /// Contexts to decode at, in tokens [default: 0,1000,5000 as far as the model's context goes]
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "kernels")]
    context: Vec<u32>,
    /// Tokens to decode at each context
    #[arg(long, value_name = "N", default_value_t = 16)]
    tokens: u32,
    /// Repeats; the median counts [default: 3; of matrix products 9]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_REPEATS_MAX)))]
    repeats: Option<u32>,
    /// Format of the KV cache: f16, q8_0 or f32
    #[arg(long, default_value = "f16", value_parser = <KvFormat as std::str::FromStr>::from_str)]
    kv: KvFormat,
    /// Memory to read for the bandwidth, in MiB; more than all caches hold [default: a quarter of what is free, at most 1024]
    #[arg(long, value_name = "N")]
    read_mib: Option<u32>,
    /// Formats of matrix products, as llama.cpp names them [default: all, or those of the model]
    #[arg(long, value_name = "FORMAT,..", value_delimiter = ',')]
    formats: Vec<String>,
    /// Kernel tables of matrix products [default: the one that is used; `all`: every one that the machine can run]
    #[arg(long, value_name = "TABLE,..", value_delimiter = ',')]
    tables: Vec<String>,
    /// Tokens of matrix products [default: 1,4,8,128]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    product_tokens: Vec<u32>,
    /// Most rows of matrix products
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT)]
    rows: u32,
    /// Columns of made-up matrices
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT)]
    columns: u32,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Demo {
    /// Daemons to start, if that was said.
    ///
    /// # Errors
    /// Addresses stand where their number is meant.
    pub(super) fn count(&self) -> Result<Option<u16>, String> {
        self.nodes
            .as_deref()
            .map(|text| daemons(text).and_then(|_| text.parse().map_err(|_| String::new())))
            .transpose()
    }
}

fn daemons(text: &str) -> Result<String, String> {
    let count = text.parse::<u16>().ok().filter(|count| (1..=DEMO_NODES_MAX).contains(count));
    let wrong = || format!("{text} is no number of daemons: console demo --nodes 1 to {DEMO_NODES_MAX}");
    count.map(|_| text.to_owned()).ok_or_else(wrong)
}

impl Bench {
    /// The nodes that it is about.
    pub(super) fn reach(&mut self) -> Reach<'_> {
        match &mut self.what {
            Some(what) => what.reach(),
            None if self.local => Reach::Otherwise("measures this machine, as --local says"),
            None => Reach::Nodes(&mut self.nodes, Need::May),
        }
    }

    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match &self.what {
            Some(what) => what.json(),
            None => self.json,
        }
    }

    /// What to ask for: the whole model, then products of its matrices. Nodes hear the model's name, this machine its path.
    pub(super) fn benches(&self, on_nodes: bool) -> Vec<bench::Bench> {
        let model = self.model.as_ref().map(|model| model.to_string_lossy().into_owned());
        let model = model.map(|model| if on_nodes { model_name(&model) } else { model });
        let node = model.clone().filter(|_| !self.kernels).map(|model| {
            bench::Bench::Node(BenchNode {
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
        let kernels = bench::Bench::Kernels(BenchKernels {
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

/// Options of `console demo`.
#[derive(Clone, Debug, Args)]
pub(super) struct Demo {
    /// Daemons to start, 1 to 8 [default: as many as the topology has, 4 without one]
    // A text, as the option of the same name of the whole program has.
    #[arg(long, value_name = "N", value_parser = daemons)]
    nodes: Option<String>,
    /// A GGUF file [default: the demo model]
    #[arg(long, value_name = "FILE")]
    pub(super) model: Option<PathBuf>,
    /// Print a text and a profile and exit; the default where there is no terminal
    #[arg(long)]
    pub(super) once: bool,
    /// Go through what can be seen and what can go wrong, step by step; exit code 1 if a step was not seen
    #[arg(long, conflicts_with_all = ["nodes", "topology"])]
    pub(super) tour: bool,
    /// The text to complete
    #[arg(long, default_value = "ROMEO:")]
    pub(super) prompt: String,
    /// Print JSON (with --once)
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) session: super::arrange::Session,
    #[command(flatten)]
    pub(super) assignment: Assignment,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// A text to complete, and how.
#[derive(Clone, Debug, Args)]
pub(super) struct Completing {
    /// The text to complete
    #[arg(long, required_unless_present = "prompt_file")]
    pub(super) prompt: Option<String>,
    /// Read the text from a file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(super) prompt_file: Option<PathBuf>,
    /// Report the K most probable tokens of each step
    #[arg(long, default_value_t = 0, value_name = "K", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub(super) logprobs: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) assignment: Assignment,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(super) consent: Consent,
}

/// Options of `console generate`.
#[derive(Clone, Debug, Args)]
pub(super) struct Generate {
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
    /// Model file; its name is looked for in the model folders of every node. With --url the model's name [default there: the one served]
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "url")]
    pub(super) model: Option<String>,
    #[command(flatten)]
    pub(super) completing: Completing,
    #[command(flatten)]
    pub(super) endpoint: Endpoint,
}

/// Options of `console profile`.
#[derive(Clone, Debug, Args)]
pub(super) struct Profile {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Model file; its name is looked for in the model folders of every node
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: String,
    #[command(flatten)]
    pub(super) completing: Completing,
    /// Write every all-reduce as events for ui.perfetto.dev or chrome://tracing, one track a rank
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write folded stacks, as flame graphs take them
    #[arg(long, value_name = "FILE")]
    pub(super) folded: Option<PathBuf>,
    /// Write every all-reduce of every rank as it was recorded, as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) records: Option<PathBuf>,
}

/// Options of `console status`.
#[derive(Clone, Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    pub(super) look: Look,
}

/// A reason as people read it later.
fn reason(text: &str) -> Result<String, String> {
    let fits = (1..=REASON_LENGTH_MAX).contains(&text.trim().len()) && !text.chars().any(char::is_control);
    if fits { Ok(text.trim().into()) } else { Err(format!("one line of 1 to {REASON_LENGTH_MAX} bytes")) }
}

/// Options of `console restart`.
#[derive(Clone, Debug, Args)]
pub(super) struct Restart {
    /// Restart only these, by name or address, in this order [default: all that are not out]
    #[arg(value_name = "NODE")]
    pub(super) only: Vec<String>,
    #[command(flatten)]
    pub(super) rolling: super::rolling::Flags,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    pub(super) consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// What `console exclude` and `console include` share.
#[derive(Clone, Debug, Args)]
pub(super) struct Change {
    /// The node, by name or address
    #[arg(value_name = "NODE")]
    pub(super) node: String,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    pub(super) consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `console exclude`.
#[derive(Clone, Debug, Args)]
pub(super) struct Exclude {
    #[command(flatten)]
    pub(super) change: Change,
    /// Why: whoever looks at the cluster later will read it
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(super) reason: String,
}

/// Options of `console include`.
#[derive(Clone, Debug, Args)]
pub(super) struct Include {
    #[command(flatten)]
    pub(super) change: Change,
}

/// Options of `console tokenize`.
#[derive(Clone, Debug, Args)]
pub(super) struct Tokenize {
    /// A GGUF file on this machine
    #[arg(long, value_name = "FILE")]
    pub(super) model: PathBuf,
    /// The text
    #[arg(long)]
    pub(super) text: String,
    /// Leave out the token that begins a text
    #[arg(long)]
    pub(super) no_bos: bool,
    /// Read special tokens like <|eot_id|> in the text as such
    #[arg(long)]
    pub(super) special: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// `console topology`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Topology {
    /// Print the running topology as a file that `assign` takes
    Show {
        /// Which nodes.
        #[command(flatten)]
        nodes: Nodes,
        /// How often.
        #[command(flatten)]
        look: Look,
    },
    /// Say what a topology file would give every node, without loading anything
    Check(TopologyFile),
    /// Assign what a topology file says
    Assign(super::topology::AssignFile),
    /// Let the members that answer go on without those that are lost, where they are no majority
    TakeOver(super::node::TakeOver),
}

/// A topology file.
#[derive(Clone, Debug, Args)]
pub(super) struct TopologyFile {
    /// The file (TOML): model, and a [[stage]] with nodes, weights and layers for each stage
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Print an object
    #[arg(long)]
    pub(super) json: bool,
}

impl Topology {
    /// The nodes that it is about.
    pub(super) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::Show { nodes, .. } => Reach::Nodes(&mut nodes.nodes, Need::Looks),
            Self::Check(_) | Self::Assign(_) => Reach::Otherwise("speaks to the nodes that its file names"),
            Self::TakeOver(options) => Reach::Nodes(&mut options.nodes.nodes, Need::Acts),
        }
    }

    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match self {
            Self::Show { look, .. } => look.json,
            Self::Check(file) => file.json,
            Self::Assign(assign) => assign.file.json,
            Self::TakeOver(options) => options.json,
        }
    }
}
