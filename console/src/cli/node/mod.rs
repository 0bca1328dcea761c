//! `console node`: shows, finds, adds, removes, cordons and excludes nodes.
mod check;
mod cordon;
pub(crate) mod discover;
mod exclude;
mod membership;
mod replace;
mod show;

use std::path::PathBuf;

use crate::{
    cli::{
        Failure,
        shared::{
            need::{Need, Reach},
            options::{Change, Exclude, Include, Nodes},
        },
    },
    client::{cluster::Cluster, with_port},
};

/// Subcommands of `console node`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum NodeCommand {
    /// Add a node to the running topology without interrupting requests
    Add(Change),
    /// Check whether the cluster can keep serving without a node (exit 1 if not)
    Check(check::Check),
    /// Stop scheduling new requests on a node and its replica; running requests continue. Undo: uncordon
    Cordon(cordon::Cordon),
    /// List the nodes that announce themselves on the local network
    Discover(discover::Discover),
    /// Exclude a node and assign the topology to the remaining nodes. Undo: include
    Exclude(Exclude),
    /// Include an excluded node and assign the topology with it, or schedule requests again on a cordoned one
    #[command(visible_alias = "uncordon")]
    Include(Include),
    /// Remove a node from the running topology and the saved cluster (unlike exclude, without a stored reason)
    Remove(Change),
    /// Put a new node into the position of another one, which may be dead: adopt it, copy the model, assign the topology
    Replace(replace::Replace),
    /// Show all details of a node, with its problems and their remedies
    Show(show::Show),
}

impl NodeCommand {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        let nodes = match self {
            Self::Add(change) | Self::Remove(change) => &mut change.nodes,
            Self::Check(check) => return Reach::Nodes(&mut check.nodes.nodes, Need::Looks),
            Self::Cordon(cordon) => &mut cordon.exclude.change.nodes,
            Self::Discover(_) => return Reach::Otherwise("listens for all nodes of the network"),
            Self::Exclude(exclude) => &mut exclude.change.nodes,
            Self::Include(include) => &mut include.change.nodes,
            Self::Replace(replace) => &mut replace.nodes,
            Self::Show(show) => return Reach::Nodes(&mut show.nodes.nodes, Need::Looks),
        };
        Reach::Nodes(&mut nodes.nodes, Need::Acts)
    }
}

/// Runs `console node`. `kept` is the saved cluster, which follows its nodes, and `key` its key file.
pub(crate) async fn run(node: NodeCommand, kept: Option<&str>, key: Option<PathBuf>) -> Result<u8, Failure> {
    match node {
        NodeCommand::Add(change) => membership::join(change, kept).await,
        NodeCommand::Check(check) => check::run(check).await,
        NodeCommand::Cordon(options) => cordon::run(options).await,
        NodeCommand::Discover(discover) => discover::run(discover).await,
        NodeCommand::Exclude(exclude) => exclude::run_exclude(exclude).await,
        NodeCommand::Include(include) => exclude::run_include(include).await,
        NodeCommand::Remove(change) => membership::leave(change, kept).await,
        NodeCommand::Replace(replace) => replace::run(replace, kept, key).await,
        NodeCommand::Show(show) => show::run(show).await,
    }
}

/// Connects to the named nodes, and to `more`.
pub(crate) async fn dial(nodes: &Nodes, more: Option<&str>) -> Cluster {
    let named = nodes.nodes.iter().map(String::as_str).chain(more);
    let mut addresses: Vec<String> = Vec::new();
    for address in named.map(with_port) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Cluster::dial(&addresses).await
}
