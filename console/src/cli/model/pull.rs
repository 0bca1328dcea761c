//! `console model pull`: puts a model file on nodes. One node downloads it or receives it from this machine, and the others
//! copy it from there; with `--from`, all copy it from a node that has it.
use std::{path::Path, sync::Arc};

use anyhow::Context;
use clap::Args;
use common::{digest::Sha256, fault::Fault};
use protocol::models::{ModelFile, files_of};
use serde_json::json;

use super::{
    Where,
    choice::advised,
    dial, name_of, show,
    source::{self, ModelSource},
    transfer::Transfer,
};
use crate::cli::{
    Failure,
    shared::{confirm::Rehearsal, find_node::find, options::Nodes, output},
};
use crate::client::{
    cluster::{Cluster, ClusterNode},
    models,
    pull::{self, Download, PullProgress, PulledFile},
    session::Session,
};

/// Options of `console model pull`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pull {
    /// Short name of a well-known model (qwen3.5-4b, or qwen3.5-4b:q8_0 for another quantization; console model search
    /// lists them), hf:OWNER/REPO:FILE, https://.., http://.., a GGUF file on this machine, or with --from the name of a
    /// file on that node
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Copy the file from this node (name or address)
    #[arg(long, value_name = "NODE", conflicts_with_all = ["name", "sha256"])]
    from: Option<String>,
    /// Name of the file on the nodes [default: the last part of the source]
    #[arg(long, value_name = "NAME.gguf")]
    name: Option<String>,
    /// Expected SHA-256 of the file [default: the hash that the server reports, if any]
    #[arg(long, value_name = "HEX", value_parser = <Sha256 as std::str::FromStr>::from_str)]
    sha256: Option<Sha256>,
    #[command(flatten)]
    pub(super) to: Where,
    #[command(flatten)]
    rehearsal: Rehearsal,
}

impl Pull {
    /// The download of a source to nodes; with `from`, the copy of a file that the node has.
    pub(crate) fn to(source: &str, from: Option<&str>, nodes: &[String]) -> Self {
        let nodes = Nodes { nodes: nodes.to_vec() };
        let to = Where { nodes, node: Vec::new(), json: false };
        let from = from.map(str::to_owned);
        Self { source: source.into(), from, name: None, sha256: None, to, rehearsal: Rehearsal::default() }
    }
}

/// Runs the command.
pub(super) async fn run(options: Pull) -> Result<u8, Failure> {
    Ok(fetch(&options).await?.map_or(0, |done| show(&done, options.to.json)))
}

/// The files that were stored, with the names of their nodes; `None` after a dry run.
///
/// # Errors
/// The source is unknown, or a node cannot store the file.
pub(crate) async fn fetch(options: &Pull) -> Result<Option<Vec<(String, ModelFile)>>, Failure> {
    match &options.from {
        Some(from) => copy_from(options, from).await,
        None => bring(options, source::resolve(&options.source).await?).await,
    }
}

/// Copies a file, and the other parts of its model, from a node.
async fn copy_from(options: &Pull, from: &str) -> Result<Option<Vec<(String, ModelFile)>>, Failure> {
    let model = &options.source;
    source::check_on_node(model)?;
    let (cluster, places) = dial(&options.to).await?;
    let from = find(&cluster, from)?;
    let places: Vec<usize> = places.into_iter().filter(|place| *place != from).collect();
    if !is_real(options, "copy", model, &cluster, &places) {
        return Ok(None);
    }
    let mut done = Vec::new();
    for file in files_of(model) {
        done.extend(copy(&cluster, from, &places, &file).await?);
    }
    Ok(Some(done))
}

/// Brings a file to the first node, from where the others copy it.
async fn bring(options: &Pull, source: ModelSource) -> Result<Option<Vec<(String, ModelFile)>>, Failure> {
    let model = options.name.clone().unwrap_or_else(|| source.file_name());
    name_of(&model)?;
    let (cluster, places) = dial(&options.to).await?;
    let how = match &source {
        ModelSource::File(_) => "send",
        ModelSource::Url { .. } => "download",
    };
    if !is_real(options, how, &model, &cluster, &places) {
        return Ok(None);
    }
    let done = match source {
        ModelSource::File(path) => {
            let Some((first, rest)) = places.split_first() else { return Ok(None) };
            let node = &cluster.nodes[*first];
            let stored = send(&path, &model, options.sha256, node, cluster.name(node)).await?;
            let mut done = vec![(cluster.name(node).to_owned(), stored)];
            done.extend(copy(&cluster, *first, rest, &model).await?);
            done
        }
        ModelSource::Url { url, .. } => {
            let sessions = sessions(&cluster, &places)?;
            let file = Download { url, model, sha256: options.sha256 };
            let (tell, names) = progress(&cluster, &places, &file.model);
            let pulled = pull::pull(&sessions, &file, &tell).await;
            drop(tell);
            done_by(&names, pulled, &file.model, &cluster).await?
        }
    };
    Ok(Some(done))
}

fn sessions(cluster: &Cluster, places: &[usize]) -> Result<Vec<Arc<Session>>, Failure> {
    places.iter().map(|place| Ok(cluster.nodes[*place].session()?)).collect()
}

/// The function that prints the progress of these nodes, and their names. Dropping the function erases the line.
fn progress(cluster: &Cluster, places: &[usize], model: &str) -> (Arc<PullProgress>, Vec<String>) {
    let names: Vec<String> = places.iter().map(|place| cluster.name(&cluster.nodes[*place]).to_owned()).collect();
    let transfer = Transfer::new(model, &names.iter().map(String::as_str).collect::<Vec<_>>());
    (Arc::new(move |node, step, done, total| transfer.tell(node, step, done, total)), names)
}

/// The transferred files with the names of their nodes. Nodes that had the file already are named on standard error.
async fn done_by(
    names: &[String],
    pulled: Result<Vec<PulledFile>, Fault>,
    model: &str,
    cluster: &Cluster,
) -> Result<Vec<(String, ModelFile)>, Failure> {
    let pulled = match pulled {
        Ok(pulled) => pulled,
        Err(fault) => return Err(advised(fault.into(), &cluster.usable().unwrap_or_default()).await),
    };
    for (index, name) in names.iter().enumerate() {
        if pulled.iter().all(|(done, _)| *done != index) {
            output::note(&output::clean(&format!("{name} already has {model}")));
        }
    }
    Ok(pulled.into_iter().map(|(index, file)| (names[index].clone(), file)).collect())
}

/// Whether to transfer the file (`false` for a dry run). A transfer never replaces a file on a node.
fn is_real(options: &Pull, how: &str, model: &str, cluster: &Cluster, places: &[usize]) -> bool {
    let names: Vec<&str> = places.iter().map(|place| cluster.name(&cluster.nodes[*place])).collect();
    let what = output::clean(&format!("{how} {model} to {}", names.join(", ")));
    options.rehearsal.is_real(&what, &json!({"model": model, "nodes": names}), options.to.json)
}

/// Sends a file of this machine to a node.
async fn send(
    path: &Path,
    model: &str,
    expected: Option<Sha256>,
    node: &ClusterNode,
    name: &str,
) -> Result<ModelFile, Failure> {
    output::note(&format!("reading {}", path.display()));
    let file = path.to_owned();
    let digest = tokio::task::spawn_blocking(move || models::digest(&file)).await;
    let digest = digest.context("the task that hashes the file failed")?;
    let (sha256, size) = digest.with_context(|| format!("cannot read {}", path.display()))?;
    if let Some(expected) = expected.filter(|expected| *expected != sha256) {
        let path = path.display();
        return Err(anyhow::anyhow!("checksum mismatch for {path}: expected {expected}, got {sha256}").into());
    }
    let session = node.session()?;
    let transfer = Transfer::new(model, &[name]);
    let upload = models::Upload { path, model, sha256, size };
    Ok(models::send(&session, upload, &|step, done, total| transfer.tell(0, step, done, total)).await?)
}

/// Copies a file from one node to the others that do not have it yet.
async fn copy(cluster: &Cluster, from: usize, to: &[usize], model: &str) -> Result<Vec<(String, ModelFile)>, Failure> {
    let sessions = sessions(cluster, to)?;
    let missing = pull::lacking(&sessions, model).await?;
    let others: Vec<(usize, Arc<Session>)> =
        missing.into_iter().map(|index| (index, Arc::clone(&sessions[index]))).collect();
    let (tell, names) = progress(cluster, to, model);
    let copied = pull::copy(&cluster.nodes[from].address, &others, model, &tell).await;
    drop(tell);
    done_by(&names, copied, model, cluster).await
}
