//! `console cluster`: clusters saved by name. A command without `--cluster` and nodes uses the default cluster: the
//! one chosen with `console cluster use`, or the only one.
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::{
    Failure,
    shared::{confirm::Rehearsal, options::node, output},
};
use crate::client::clusters::{Clusters, ClustersError, Kept, check_name, default_path};

/// Subcommands of `console cluster`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// List the saved clusters; an asterisk marks the default
    List(ListClusters),
    /// Save a cluster, or replace a saved one
    Add(AddCluster),
    /// Remove a saved cluster; its nodes are not contacted
    Remove(Named),
    /// Make a saved cluster the default
    Use(Named),
}

/// Options of `console cluster list`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ListClusters {
    #[arg(from_global)]
    json: bool,
}

/// Options of `console cluster add`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AddCluster {
    /// Name of the cluster
    #[arg(value_name = "NAME", value_parser = cluster_name)]
    name: String,
    /// Nodes as ADDRESS[:PORT], in the order replica, stage, rank
    #[arg(value_name = "NODE", value_delimiter = ',', required = true, value_parser = node)]
    addresses: Vec<String>,
    /// Key file of the cluster [default: ~/.config/bramble/cluster.key]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    rehearsal: Rehearsal,
    #[arg(from_global)]
    json: bool,
}

/// Arguments of the commands that take the name of a saved cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct Named {
    /// Name of the cluster
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    rehearsal: Rehearsal,
    #[arg(from_global)]
    json: bool,
}

/// Parses the name of a cluster.
pub(crate) fn cluster_name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.into())
}

impl From<ClustersError> for Failure {
    fn from(error: ClustersError) -> Self {
        let next = match &error {
            ClustersError::Io { .. } => "make the folder writable, or pass the nodes with --nodes",
            ClustersError::Refused { .. } => {
                "correct the file, or remove it and save the clusters again with console cluster add"
            }
            ClustersError::Unknown { .. } => {
                "list the saved clusters with console cluster list, or save one with console cluster add NAME NODE.."
            }
        };
        match error {
            ClustersError::Unknown { .. } => Self::Usage { message: error.to_string(), next },
            _ => Self::State { message: error.to_string(), next },
        }
    }
}

/// The file of the saved clusters.
pub(crate) fn path() -> Result<PathBuf, Failure> {
    default_path().ok_or_else(|| Failure::Usage {
        message: "cannot save clusters: there is no home folder".into(),
        next: "set HOME or XDG_CONFIG_HOME, or pass the nodes with --nodes",
    })
}

/// Runs the command.
pub(crate) fn run(command: ClusterCommand) -> Result<u8, Failure> {
    let path = path()?;
    let mut clusters = Clusters::read(&path)?;
    let (name, said, rehearsal, json) = match command {
        ClusterCommand::List(list) => {
            show(&clusters, list.json);
            return Ok(0);
        }
        ClusterCommand::Add(AddCluster { name, addresses, key_file, rehearsal, json }) => {
            // The next command may run in another folder.
            let key = key_file.map(std::path::absolute).transpose().map_err(anyhow::Error::from)?;
            let count = addresses.len();
            clusters.all.insert(name.clone(), Kept { nodes: addresses, key });
            let is_default = clusters.default_cluster().is_some_and(|(used, _)| used == name);
            let how = if is_default {
                "the default"
            } else {
                "not the default; use it with --cluster, or make it the default with console cluster use"
            };
            let nodes = if count == 1 { "node" } else { "nodes" };
            (name, format!("is saved with {count} {nodes}; it is {how}"), rehearsal, json)
        }
        ClusterCommand::Remove(Named { name, rehearsal, json }) => {
            clusters.named(&name)?;
            clusters.all.remove(&name);
            clusters.default.take_if(|default| *default == name);
            (name, "is removed".into(), rehearsal, json)
        }
        ClusterCommand::Use(Named { name, rehearsal, json }) => {
            clusters.named(&name)?;
            clusters.default = Some(name.clone());
            (name, "is now the default".into(), rehearsal, json)
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

/// The name and the entry of the saved cluster `cluster`, or of the default one.
///
/// # Errors
/// The cluster is unknown, or the file of saved clusters is refused.
pub(crate) fn saved(cluster: Option<&str>) -> Result<Option<(String, Kept)>, Failure> {
    let known = default_path().map_or_else(|| Ok(Clusters::default()), |path| Clusters::read(&path))?;
    let found = match cluster {
        Some(name) => Some((name, known.named(name)?)),
        None => known.default_cluster(),
    };
    Ok(found.map(|(name, kept)| (name.to_owned(), kept.clone())))
}

/// Saves a cluster: a new one, or nodes that a saved one lacks. Returns whether that changed the file.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn save(name: &str, nodes: &[String], key: Option<PathBuf>) -> Result<bool, Failure> {
    change(|clusters| {
        if clusters.all.contains_key(name) {
            return clusters.follow(name, nodes, &[]);
        }
        clusters.all.insert(name.into(), Kept { nodes: nodes.to_vec(), key });
        Ok(true)
    })
}

/// Changes the file of saved clusters. `work` returns whether it changed something.
fn change(work: impl FnOnce(&mut Clusters) -> Result<bool, ClustersError>) -> Result<bool, Failure> {
    let path = path()?;
    let mut clusters = Clusters::read(&path)?;
    let has_changed = work(&mut clusters)?;
    if has_changed {
        clusters.write(&path)?;
    }
    Ok(has_changed)
}

/// Adds nodes to a saved cluster, or removes them. The command that calls this has already succeeded, so a failure is
/// only reported.
pub(crate) fn follow(cluster: Option<&str>, add: &[String], remove: &[String]) {
    let Some(name) = cluster else { return };
    tell(name, change(|clusters| clusters.follow(name, add, remove)));
}

/// Replaces a node of a saved cluster, at its position. As in [`follow`], a failure is only reported.
pub(crate) fn exchange(cluster: Option<&str>, old: &str, new: &str) {
    let Some(name) = cluster else { return };
    tell(name, change(|clusters| clusters.exchange(name, old, new).map(|()| true)));
}

/// Reports a change of a saved cluster, if there was one.
fn tell(name: &str, changed: Result<bool, Failure>) {
    match changed {
        Ok(true) => output::note(&format!("updated the nodes of the saved cluster {name}")),
        Ok(false) => {}
        Err(failure) => output::note(&format!("console: cannot update the saved cluster {name}: {failure}")),
    }
}

fn object(clusters: &Clusters) -> Value {
    let used = clusters.default_cluster().map(|(name, _)| name);
    let all = clusters.all.iter().map(|(name, kept)| {
        json!({"name": name, "nodes": kept.nodes, "key_file": kept.key, "used": Some(name.as_str()) == used})
    });
    json!({"clusters": all.collect::<Value>()})
}

fn show(clusters: &Clusters, json: bool) {
    if json {
        return output::line(&object(clusters).to_string());
    }
    if clusters.all.is_empty() {
        return output::line("no saved clusters; next: console cluster add NAME NODE..");
    }
    let used = clusters.default_cluster().map(|(name, _)| name);
    for (name, kept) in &clusters.all {
        let mark = if Some(name.as_str()) == used { "*" } else { " " };
        output::line(&format!("{mark} {name:<16}  {}", output::clean(&kept.nodes.join(","))));
    }
}
