//! What other command-line programs of this workspace share with `console`: how they find and contact nodes, their
//! options, output and failures.
use std::path::PathBuf;

use clap::Args;

use super::{cluster::cluster_name, key, shared::options::node, target};

pub use super::{
    generate::{Completion, complete, head, transfer},
    shared::{
        confirm::Consent,
        endpoint::Endpoint,
        failure::Failure,
        interrupts::Interrupts,
        need::Need,
        options::{Assignment, layout},
        output,
        sessions::assign_and_tell,
    },
    topology::ensure::{Obtained, clear_way, obtain},
};

/// The options that select nodes and the key to connect with, as `console` has them.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// Nodes as ADDRESS[:PORT], in the order replica, stage, rank [env: BRAMBLE_NODES=]
    #[arg(long, global = true, value_delimiter = ',', value_name = "A,B,..", value_parser = node)]
    nodes: Vec<String>,
    /// Use the nodes and the key of a saved cluster [default: the one chosen with console cluster use, or the only
    /// one]
    #[arg(long, global = true, value_name = "NAME", value_parser = cluster_name)]
    cluster: Option<String>,
    /// Key file of the cluster [default: ~/.config/bramble/cluster.key if it exists]
    #[arg(long, global = true, env = "BRAMBLE_KEY_FILE", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Connect without encryption to nodes that have no key
    #[arg(long, global = true, env = "BRAMBLE_INSECURE")]
    insecure: bool,
}

impl Connection {
    /// The nodes of a command: given, of a saved cluster, or of BRAMBLE_NODES. Loads the key for this process.
    ///
    /// # Errors
    /// There are no nodes although the command needs some, the cluster is unknown, or a file cannot be read.
    pub fn nodes(self, need: Need) -> Result<Vec<String>, Failure> {
        let chosen = target::choose(self.nodes, self.cluster, need, false)?;
        key::load(self.key.or(chosen.key).as_deref(), self.insecure)?;
        Ok(chosen.nodes)
    }

    /// Checks that neither nodes nor a cluster are given to a command that contacts none; `how` names what it uses
    /// instead, after "it".
    ///
    /// # Errors
    /// One of them is given.
    pub fn refuse(&self, how: &str) -> Result<(), Failure> {
        let given = [("--cluster", self.cluster.is_some()), ("--nodes", !self.nodes.is_empty())];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(target::needless(option, how)),
            None => Ok(()),
        }
    }
}
