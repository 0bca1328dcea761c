//! `console model pull`: puts a model file on nodes. The first node downloads it or receives it from this machine, and
//! the others copy it from there; with `--from`, all copy it from a node that has it.
use std::{path::Path, sync::Arc};

use anyhow::Context;
use clap::Args;
use common::{digest::Sha256, fault::Fault};
use protocol::models::{FileState, ModelFile, ModelsRequest, files_of};
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    Where,
    choice::advised,
    dial, name_of, show,
    source::{self, ModelSource},
    transfer::Transfer,
};
use crate::cli::{
    Failure,
    shared::{confirm::Rehearsal, find_node::find, output},
};
use crate::client::{
    cluster::{Cluster, ClusterNode},
    models,
    session::Session,
};

/// Nodes that copy a file from the same node at a time.
const COPIES_MAX: usize = 4;

/// Options of `console model pull`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pull {
    /// hf:OWNER/REPO:FILE, https://.., http://.., a GGUF file on this machine, or with --from the name of a file on
    /// that node
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

/// Runs the command.
pub(super) async fn run(options: Pull) -> Result<u8, Failure> {
    match &options.from {
        Some(from) => copy_from(&options, from).await,
        None => bring(&options, source::resolve(&options.source)?).await,
    }
}

/// Copies a file, and the other parts of its model, from a node.
async fn copy_from(options: &Pull, from: &str) -> Result<u8, Failure> {
    let model = &options.source;
    source::check_on_node(model)?;
    let (cluster, places) = dial(&options.to).await?;
    let from = find(&cluster, from)?;
    let places: Vec<usize> = places.into_iter().filter(|place| *place != from).collect();
    if !is_real(options, "copy", model, &cluster, &places) {
        return Ok(0);
    }
    let mut done = Vec::new();
    for file in files_of(model) {
        done.extend(copy(&cluster, from, &places, &file).await?);
    }
    Ok(show(&done, options.to.json))
}

/// Brings a file to the first node, from where the others copy it.
async fn bring(options: &Pull, source: ModelSource) -> Result<u8, Failure> {
    let model = options.name.clone().unwrap_or_else(|| source.file_name());
    name_of(&model)?;
    let (cluster, places) = dial(&options.to).await?;
    let how = match &source {
        ModelSource::File(_) => "send",
        ModelSource::Url { .. } => "download",
    };
    if !is_real(options, how, &model, &cluster, &places) {
        return Ok(0);
    }
    let Some((first, rest)) = places.split_first() else { return Ok(0) };
    let node = &cluster.nodes[*first];
    let name = cluster.name(node);
    let stored = match source {
        ModelSource::File(path) => send(&path, &model, options.sha256, node, name).await?,
        ModelSource::Url { url, .. } => {
            let session = node.session()?;
            let transfer = Transfer::new(&model, &[name]);
            let request = ModelsRequest::Pull { url, model: model.clone(), sha256: options.sha256 };
            models::stored(&session, request, &|step, done, total| transfer.tell(0, step, done, total)).await?
        }
    };
    let mut done = vec![(name.to_owned(), stored)];
    done.extend(copy(&cluster, *first, rest, &model).await?);
    Ok(show(&done, options.to.json))
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

/// Copies a file from one node to the others that do not have it yet, to a few at a time. If a copy fails, the others
/// still end.
async fn copy(cluster: &Cluster, from: usize, to: &[usize], model: &str) -> Result<Vec<(String, ModelFile)>, Failure> {
    let mut lacking: Vec<(String, Arc<Session>)> = Vec::new();
    for place in to {
        let node = &cluster.nodes[*place];
        let (name, session) = (cluster.name(node).to_owned(), node.session()?);
        let files = models::list(&session).await?;
        if files.iter().any(|file| file.model == model && file.state != FileState::Partial) {
            output::note(&output::clean(&format!("{name} already has {model}")));
        } else {
            lacking.push((name, session));
        }
    }
    let names: Vec<&str> = lacking.iter().map(|(name, _)| name.as_str()).collect();
    let transfer = Arc::new(Transfer::new(model, &names));
    let room = Arc::new(Semaphore::new(COPIES_MAX));
    let mut copies = JoinSet::new();
    for (index, (name, session)) in lacking.iter().cloned().enumerate() {
        let (transfer, room) = (Arc::clone(&transfer), Arc::clone(&room));
        let request = ModelsRequest::Fetch { model: model.into(), from: cluster.nodes[from].address.clone() };
        copies.spawn(async move {
            // The semaphore is never closed.
            let _permit = room.acquire_owned().await;
            let tell = &|step, done, total| transfer.tell(index, step, done, total);
            (index, name, models::stored(&session, request, tell).await)
        });
    }
    let mut copied = copies.join_all().await;
    drop(transfer);
    copied.sort_by_key(|(index, ..)| *index);
    let copied: Result<Vec<_>, Fault> = copied.into_iter().map(|(_, name, file)| Ok((name, file?))).collect();
    match copied {
        Ok(done) => Ok(done),
        Err(fault) => Err(advised(fault.into(), &cluster.usable().unwrap_or_default()).await),
    }
}
