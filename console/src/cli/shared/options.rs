//! The options of the commands, with their bounds.
use std::path::PathBuf;

use assignment::draft::draft_file;
use clap::Args;
use collectives::Choice;
use common::precision::{Exchange, KvFormat};
use planner::search::Goal;
use topology::{Layout, exclusion::REASON_LENGTH_MAX};

use crate::cli::shared::{confirm::Consent, endpoint::Endpoint, sampling::Sampling, watch::Look};
use crate::{
    client::assign::SLOTS_DEFAULT,
    operator::desired::{DesiredTopology, TopologyRequest},
};

pub(crate) fn node(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        Err("a node is ADDRESS[:PORT]".into())
    } else {
        Ok(text.into())
    }
}

/// Parses a layout.
///
/// # Errors
/// Why the text is none.
pub fn layout(text: &str) -> Result<Layout, String> {
    text.parse().map_err(|error: topology::SpecError| error.to_string())
}

/// The nodes that a command contacts; `reach` fills them in from the global options.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Nodes {
    #[arg(skip)]
    pub(crate) nodes: Vec<String>,
}

/// The choice of a layout, and the context.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Topology")]
pub struct LayoutChoice {
    /// Layout: tpN, ppS-tpN or dpR-ppS-tpN (R replicas of S stages of N nodes), or with roles
    /// prefill:tpN+decode:tpM [default: the planner's choice for --goal; tp over all nodes if nodes share a machine]
    #[arg(long, value_parser = layout)]
    pub topology: Option<Layout>,
    /// Objective of the default layout: balanced (fewest nodes that fit, then ranks while answers get faster, then
    /// replicas), latency (whole answer: TTFT plus 127 tokens), ttft, tpot or throughput
    #[arg(long, default_value = "balanced", value_parser = <Goal as std::str::FromStr>::from_str)]
    pub(crate) goal: Goal,
    /// Longest sequence in tokens [default: as many as fit into memory, at most the model's limit]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
}

impl LayoutChoice {
    /// The requirements for a topology with this model.
    pub(crate) fn asked(&self, model: &str) -> TopologyRequest {
        TopologyRequest {
            model: model_name(model),
            layout: self.topology,
            weights: Vec::new(),
            layers: Vec::new(),
            kv: None,
            exchange: None,
            collective: None,
            context_length: self.context,
            slots: SLOTS_DEFAULT,
            draft: None,
            goal: self.goal,
        }
    }
}

/// The topology to assign, apart from nodes and model.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Topology")]
pub struct Assignment {
    /// The layout and the context.
    #[command(flatten)]
    pub layout: LayoutChoice,
    /// Relative shares of each layer, per rank of a stage or per node, for example 3,2,1 [default: equal]
    #[arg(long, hide_short_help = true, value_delimiter = ',', value_name = "W,W,..", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    weights: Vec<u32>,
    /// Number of layers of each stage, for example 12,10 [default: balanced by the cost of layers and output]
    #[arg(long, hide_short_help = true, value_delimiter = ',', value_name = "L,L,..", value_parser = clap::value_parser!(u32).range(1..=1024))]
    layers: Vec<u32>,
    /// Format of the KV cache: f16, q8_0, q4_0 or f32 [default: f16]
    #[arg(long, hide_short_help = true, value_parser = <KvFormat as std::str::FromStr>::from_str)]
    kv: Option<KvFormat>,
    /// Format of the partial sums that nodes exchange: f32, f16 or q80 [default: f32]
    #[arg(long, hide_short_help = true, value_parser = <Exchange as std::str::FromStr>::from_str)]
    pub exchange: Option<Exchange>,
    /// All-reduce algorithm: direct, rs-ag, star, doubling, ring, two-level, or auto to time the first three on the
    /// links [default: auto]
    #[arg(long, hide_short_help = true, value_parser = <Choice as std::str::FromStr>::from_str)]
    collective: Option<Choice>,
    /// Smaller model file with the same vocabulary that proposes tokens, which saves steps, or "mtp" for the block of the
    /// model's own file that predicts further tokens; needs a layout of one stage [default: none]
    #[arg(long, hide_short_help = true, value_name = "FILE|mtp")]
    draft: Option<String>,
}

impl Assignment {
    /// The requirements for a topology with this model.
    pub fn asked(&self, model: &str) -> TopologyRequest {
        TopologyRequest {
            weights: self.weights.clone(),
            layers: self.layers.clone(),
            kv: self.kv,
            exchange: self.exchange,
            collective: self.collective,
            draft: self.draft.as_deref().map(|draft| draft_file(&model_name(draft), model)),
            ..self.layout.asked(model)
        }
    }

    /// The topology to assign to `nodes` nodes.
    pub fn wanted(&self, nodes: usize, model: &str) -> DesiredTopology {
        self.asked(model).wanted(nodes)
    }
}

/// The file name of a model: each node looks it up in its own model folders.
pub(crate) fn model_name(model: &str) -> String {
    let name = std::path::Path::new(model).file_name();
    name.map_or_else(|| model.into(), |name| name.to_string_lossy().into_owned())
}

/// A text to complete, and how to print the result.
#[derive(Clone, Debug, Args)]
pub(crate) struct Completing {
    /// Text to complete
    #[arg(long, required_unless_present = "prompt_file")]
    pub(crate) prompt: Option<String>,
    /// Read the text from a file; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Report the K most probable tokens of each step
    #[arg(long, default_value_t = 0, value_name = "K", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub(crate) logprobs: u32,
    #[arg(from_global)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) assignment: Assignment,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

/// Options of `console generate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Generate {
    #[arg(skip)]
    pub(crate) nodes: Vec<String>,
    /// Model file on the nodes, or a part of its name [default: the running model, or the only one that the nodes have].
    /// With --url: the model's name [default: the served model]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) completing: Completing,
    #[command(flatten)]
    pub(crate) endpoint: Endpoint,
    #[command(flatten)]
    pub(crate) profiling: Profiling,
}

/// What `console generate` shows of where the time went.
#[derive(Clone, Debug, Args)]
pub(crate) struct Profiling {
    /// Show where the time went instead of the text: a table per node, the bottleneck, the straggler
    #[arg(long, conflicts_with = "url")]
    pub(crate) profile: bool,
    /// Write all all-reduces as trace events for ui.perfetto.dev or chrome://tracing, one track per rank
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub(crate) trace: Option<PathBuf>,
    /// Write folded stacks for flame graphs
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub(crate) folded: Option<PathBuf>,
    /// Write the raw all-reduce records of all ranks as JSON
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub(crate) records: Option<PathBuf>,
}

/// Options of `console status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) look: Look,
}

/// Parses a reason: one line, trimmed.
fn reason(text: &str) -> Result<String, String> {
    let fits = (1..=REASON_LENGTH_MAX).contains(&text.trim().len()) && !text.chars().any(char::is_control);
    if fits { Ok(text.trim().into()) } else { Err(format!("a reason is one line of 1 to {REASON_LENGTH_MAX} bytes")) }
}

/// Options that `console node exclude` and `console node include` share.
#[derive(Clone, Debug, Args)]
pub(crate) struct Change {
    /// Name or address of the node
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[arg(from_global)]
    pub(crate) json: bool,
}

/// Options of `console node exclude`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Exclude {
    #[command(flatten)]
    pub(crate) change: Change,
    /// Reason, shown to the other operators of the cluster
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: String,
}

/// Options of `console node include`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Include {
    #[command(flatten)]
    pub(crate) change: Change,
}

/// Options of `console tokenize`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tokenize {
    /// GGUF file on this machine
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Text to tokenize
    #[arg(long)]
    pub(crate) text: String,
    /// Omit the token that marks the beginning of a text
    #[arg(long)]
    pub(crate) no_bos: bool,
    /// Parse special tokens such as <|eot_id|> in the text
    #[arg(long)]
    pub(crate) special: bool,
    #[arg(from_global)]
    pub(crate) json: bool,
}
