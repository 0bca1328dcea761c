//! `console bench`: measures nodes and links with real work. More benchmarks: `bramble-bench`, a program for developers.
mod links;
mod node;

use super::{
    Failure,
    shared::need::{Need, Reach},
};

/// Subcommands of `console bench`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum Bench {
    /// Measure nodes or this machine: read bandwidth, load time, prefill, decode, memory, kernels
    Node(node::NodeOptions),
    /// Measure the links between nodes: round-trip time, throughput of each pair, and incast
    Links(links::Links),
}

impl Bench {
    /// The nodes that the command contacts.
    pub(super) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::Node(node) if node.local => Reach::Otherwise("measures this machine because of --local"),
            Self::Node(node) => Reach::Nodes(&mut node.nodes, Need::May),
            Self::Links(links) => Reach::Nodes(&mut links.nodes, Need::Acts),
        }
    }
}

/// Runs the command.
pub(super) async fn run(bench: Bench) -> Result<u8, Failure> {
    match bench {
        Bench::Node(node) => node::run(node).await,
        Bench::Links(links) => links::run(links).await,
    }
}
