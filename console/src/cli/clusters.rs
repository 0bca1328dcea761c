//! `console clusters`: clusters that are kept by name. Where none is named, the chosen one is used, or the only one.
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Failure, confirm::Rehearsal, options::node, output};
use crate::clusters::{Clusters, ClustersError, Kept, check_name, default_path};

/// `console clusters`.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// Show the clusters that are kept, and which of them is used where none is named
    List(List),
    /// Keep a cluster, or change what is kept of it
    Add(Add),
    /// Forget a cluster; its nodes hear nothing of it
    Remove(Named),
    /// Use this one where none is named
    Use(Named),
}

/// Options of `console clusters list`.
#[derive(Clone, Debug, Args)]
pub(super) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `console clusters add`.
#[derive(Clone, Debug, Args)]
pub(super) struct Add {
    /// A name for it
    #[arg(value_name = "NAME", value_parser = cluster_name)]
    name: String,
    /// Its nodes as ADDRESS[:PORT], in the order replica, stage, rank
    #[arg(value_name = "NODE", value_delimiter = ',', required = true, value_parser = node)]
    addresses: Vec<String>,
    /// File with its key [default: the usual one]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    rehearsal: Rehearsal,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A cluster by its name.
#[derive(Clone, Debug, Args)]
pub(super) struct Named {
    /// The cluster
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    rehearsal: Rehearsal,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A name that a cluster can have.
pub(super) fn cluster_name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.into())
}

impl From<ClustersError> for Failure {
    fn from(error: ClustersError) -> Self {
        let next = match &error {
            ClustersError::Io { .. } => "make the folder writable, or name the nodes with --nodes",
            ClustersError::Refused { .. } => {
                "correct the file, or remove it and keep them anew with console clusters add"
            }
            ClustersError::Unknown { .. } => {
                "console clusters list shows them; console clusters add NAME NODE.. keeps one"
            }
        };
        match error {
            ClustersError::Unknown { .. } => Self::Usage { message: error.to_string(), next },
            _ => Self::State { message: error.to_string(), next },
        }
    }
}

/// The file with the clusters.
pub(super) fn path() -> Result<PathBuf, Failure> {
    default_path().ok_or_else(|| Failure::Usage {
        message: "there is no home folder to keep clusters in".into(),
        next: "set HOME or XDG_CONFIG_HOME, or name the nodes with --nodes",
    })
}

impl Command {
    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match self {
            Self::List(list) => list.json,
            Self::Add(add) => add.json,
            Self::Remove(named) | Self::Use(named) => named.json,
        }
    }
}

/// Runs the command.
pub(super) fn run(command: Command) -> Result<u8, Failure> {
    let path = path()?;
    let mut clusters = Clusters::read(&path)?;
    let (name, said, rehearsal, json) = match command {
        Command::List(list) => {
            show(&clusters, list.json);
            return Ok(0);
        }
        Command::Add(Add { name, addresses, key_file, rehearsal, json }) => {
            // Another folder may be the current one next time.
            let key = key_file.map(std::path::absolute).transpose().map_err(anyhow::Error::from)?;
            let count = addresses.len();
            clusters.all.insert(name.clone(), Kept { nodes: addresses, key });
            let is_default = clusters.default_cluster().is_some_and(|(used, _)| used == name);
            let how = if is_default {
                "used where none is named"
            } else {
                "used with --cluster; console clusters use makes it the default"
            };
            let nodes = if count == 1 { "node" } else { "nodes" };
            (name, format!("is kept, {count} {nodes}; it is {how}"), rehearsal, json)
        }
        Command::Remove(Named { name, rehearsal, json }) => {
            clusters.named(&name)?;
            clusters.all.remove(&name);
            clusters.default.take_if(|default| *default == name);
            (name, "is forgotten".into(), rehearsal, json)
        }
        Command::Use(Named { name, rehearsal, json }) => {
            clusters.named(&name)?;
            clusters.default = Some(name.clone());
            (name, "is used where none is named".into(), rehearsal, json)
        }
    };
    if !rehearsal.is_real(&format!("cluster {name} {said}"), &object(&clusters), json) {
        return Ok(0);
    }
    clusters.write(&path)?;
    if json {
        output::line(&object(&clusters).to_string());
    } else {
        output::line(&format!("cluster {name} {said}"));
    }
    Ok(0)
}

/// A kept cluster gets or loses nodes: where that cannot be written, the command has worked all the same, and says so.
pub(super) fn follow(cluster: Option<&str>, add: &[String], remove: &[String]) {
    let Some(name) = cluster else { return };
    let written = || -> Result<bool, Failure> {
        let path = path()?;
        let mut clusters = Clusters::read(&path)?;
        let has_changed = clusters.follow(name, add, remove)?;
        if has_changed {
            clusters.write(&path)?;
        }
        Ok(has_changed)
    };
    match written() {
        Ok(true) => output::note(&format!("the kept cluster {name} has changed with it")),
        Ok(false) => {}
        Err(failure) => output::note(&format!("console: the kept cluster {name} does not follow: {failure}")),
    }
}

fn object(clusters: &Clusters) -> Value {
    let used = clusters.default_cluster().map(|(name, _)| name);
    let one = |(name, kept): (&String, &Kept)| json!({"name": name, "nodes": kept.nodes, "key_file": kept.key, "used": Some(name.as_str()) == used});
    json!({"clusters": clusters.all.iter().map(one).collect::<Value>()})
}

fn show(clusters: &Clusters, json: bool) {
    if json {
        return output::line(&object(clusters).to_string());
    }
    if clusters.all.is_empty() {
        return output::line("no cluster is kept; next: console clusters add NAME NODE..");
    }
    let used = clusters.default_cluster().map(|(name, _)| name);
    for (name, kept) in &clusters.all {
        let mark = if Some(name.as_str()) == used { "*" } else { " " };
        output::line(&format!("{mark} {name:<16}  {}", output::clean(&kept.nodes.join(","))));
    }
}
