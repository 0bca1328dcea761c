//! The options of `console acceptance`.
use std::path::PathBuf;

use clap::Args;

use crate::{
    cli::shared::{
        confirm::Consent,
        need::{Need, Reach},
        options::Nodes,
    },
    operator::acceptance::AcceptanceStep,
};

/// Options of `console acceptance`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  console acceptance --model llama-3.2-1b\n  console acceptance --ssh --llama-cpp \
    /usr/local/bin/llama-server --llama-on pi1\n  console acceptance --again links,all\n  console acceptance --show \
    acceptance.json\n\nThe test replaces the running topology, and restores it at the end, after a failure and after \
    Ctrl-C. Exit code 6: a goal was missed; 1: a step failed.")]
pub(crate) struct Acceptance {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Model as for console run: a file on the nodes, a name of the catalogue, or hf:OWNER/REPO:FILE [default: the running
    /// model, or the only one that the nodes have]
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Run only these steps: machines, links, nodes, load, single, pair, all, llama, recovery
    #[arg(long, value_name = "STEP,..", value_delimiter = ',', value_parser = <AcceptanceStep as std::str::FromStr>::from_str)]
    pub(super) only: Vec<AcceptanceStep>,
    /// Repeat these steps, even if they are finished
    #[arg(long, value_name = "STEP,..", value_delimiter = ',', value_parser = <AcceptanceStep as std::str::FromStr>::from_str)]
    pub(super) again: Vec<AcceptanceStep>,
    /// Write the report to PATH.json and PATH.md; finished steps of an earlier run in PATH.json are kept
    #[arg(long, value_name = "PATH", default_value = "acceptance")]
    pub(super) out: PathBuf,
    /// Keep all nodes under load for N seconds
    #[arg(long, value_name = "N", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=1800))]
    pub(super) load_seconds: u64,
    /// llama-server, its folder, a Python with llama_cpp, or the URL of a running llama-server [default: llama-server on
    /// PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) llama_cpp: Option<PathBuf>,
    /// Run llama.cpp on this node, over ssh [default: on this machine]
    #[arg(long, value_name = "NODE", requires = "llama_cpp")]
    pub(super) llama_on: Option<String>,
    /// The model's file where llama.cpp runs [default: its name in /var/lib/bramble/models]
    #[arg(long, value_name = "FILE")]
    pub(super) llama_model: Option<PathBuf>,
    /// Kill the daemon of a node with `ssh NODE sudo systemctl kill -s KILL brambled` [default: another node restarts it
    /// without a drain]
    #[arg(long)]
    pub(super) ssh: bool,
    /// Kill the daemon of a node with this shell command, which receives the node's name in $BRAMBLE_NODE and its host in
    /// $BRAMBLE_HOST
    #[arg(long, value_name = "COMMAND", conflicts_with = "ssh")]
    pub(super) kill_command: Option<String>,
    /// Print the report in FILE instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "again", "model", "compare"])]
    pub(super) show: Option<PathBuf>,
    /// Compare two reports instead of measuring
    #[arg(long, value_names = ["FILE", "FILE"], num_args = 2, conflicts_with_all = ["only", "again", "model"])]
    pub(super) compare: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) consent: Consent,
    #[arg(from_global)]
    pub(super) json: bool,
}

impl Acceptance {
    /// Whether the command only reads reports.
    pub(crate) fn is_local(&self) -> bool {
        self.show.is_some() || !self.compare.is_empty()
    }

    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        if self.is_local() {
            return Reach::Otherwise("reads reports");
        }
        Reach::Nodes(&mut self.nodes.nodes, Need::Acts)
    }
}
