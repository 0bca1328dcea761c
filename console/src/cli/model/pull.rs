//! `console model pull`: puts a model on nodes. One node downloads it or receives it from this machine, and the others
//! copy it from there; with `--from`, all copy it from a node that has it. All files of a split model are brought.
use std::sync::Arc;

use clap::Args;
use common::{digest::Sha256, fault::Fault};
use protocol::models::{ModelFile, family, files_of};
use serde_json::json;

use super::{
    ModelTargets, Where, check_hashes,
    choice::advised,
    dial, name_of, show,
    source::{self, ModelSource},
    transfer::Transfer,
    upload::LocalModel,
};
use crate::cli::{
    Failure,
    shared::{confirm::Rehearsal, find_node::find, options::Nodes, output},
};
use crate::client::{
    cluster::Cluster,
    pull::{self, Download, PullOutcome, PullProgress},
    session::Session,
};

/// Options of `console model pull`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pull {
    /// Short name of a well-known model (qwen3.5-4b, or qwen3.5-4b:q8_0 for another quantization; console model search
    /// lists them), hf:OWNER/REPO:FILE, https://.., http://.., a GGUF file on this machine, or with --from the name of a
    /// file on that node; any file of a split model stands for all of them
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Copy the model from this node (name or address)
    #[arg(long, value_name = "NODE", conflicts_with_all = ["name", "sha256"])]
    from: Option<String>,
    /// Bring only this file, also of a split model, and store it under this name [default: the last part of the source]
    #[arg(long, value_name = "NAME.gguf")]
    name: Option<String>,
    /// Expected SHA-256 of the file, of a split model that of each file in order [default: what the server reports, if
    /// anything]
    #[arg(long, value_name = "HEX,..", value_delimiter = ',', value_parser = <Sha256 as std::str::FromStr>::from_str)]
    sha256: Vec<Sha256>,
    #[command(flatten)]
    pub(super) to: Where,
    #[command(flatten)]
    rehearsal: Rehearsal,
}

impl Pull {
    /// The download of a source to nodes; with `from`, the copy of a model that the node has.
    pub(crate) fn to(source: &str, from: Option<&str>, nodes: &[String]) -> Self {
        let nodes = Nodes { nodes: nodes.to_vec() };
        let to = Where { nodes, node: Vec::new(), json: false };
        let from = from.map(str::to_owned);
        Self { source: source.into(), from, name: None, sha256: Vec::new(), to, rehearsal: Rehearsal::default() }
    }
}

/// The result for nodes that have all files now.
#[derive(Debug, Default)]
pub(crate) struct Transferred {
    /// The files that were stored, with the names of their nodes.
    pub(crate) stored: Vec<(String, ModelFile)>,
    /// Names of the nodes that had all files before.
    had: Vec<String>,
    /// Names of the excluded nodes that did not answer.
    left_out: Vec<String>,
}

/// Runs the command.
pub(super) async fn run(options: Pull) -> Result<u8, Failure> {
    let done = fetch(&options).await?;
    Ok(done.map_or(0, |done| show(&done.stored, Some(&done.had), &done.left_out, options.to.json)))
}

/// Brings the model; `None` after a dry run.
///
/// # Errors
/// The source is unknown, or a node cannot store a file.
pub(crate) async fn fetch(options: &Pull) -> Result<Option<Transferred>, Failure> {
    match &options.from {
        Some(from) => copy_from(options, from).await,
        None => bring(options, source::resolve(&options.source).await?).await,
    }
}

/// Copies a model from a node.
async fn copy_from(options: &Pull, from: &str) -> Result<Option<Transferred>, Failure> {
    source::check_on_node(&options.source)?;
    let names = files_of(&options.source);
    let ModelTargets { cluster, places, left_out } = dial(&options.to).await?;
    let from = find(&cluster, from)?;
    let places: Vec<usize> = places.into_iter().filter(|place| *place != from).collect();
    if !is_real(options, "copy", &names, &cluster, &places) {
        return Ok(None);
    }
    let (source, sessions) = (cluster.nodes[from].session()?, sessions(&cluster, &places)?);
    let tell = progress(&cluster, &places, &names);
    let outcome = pull::copy(&source, &sessions, &names, Vec::new(), &tell).await;
    drop(tell);
    let done = finished(names_of(&cluster, &places), outcome, &names, &cluster).await?;
    Ok(Some(Transferred { left_out, ..done }))
}

/// Brings a model to the first node, from where the others copy it.
async fn bring(options: &Pull, source: ModelSource) -> Result<Option<Transferred>, Failure> {
    let names = match &options.name {
        Some(name) => vec![name.clone()],
        None => files_of(&source.file_name()),
    };
    names.first().map_or(Ok(()), |name| name_of(name))?;
    check_hashes(&options.sha256, names.len())?;
    let ModelTargets { cluster, places, left_out } = dial(&options.to).await?;
    let how = match &source {
        ModelSource::File(_) => "send",
        ModelSource::Url { .. } => "download",
    };
    if !is_real(options, how, &names, &cluster, &places) {
        return Ok(None);
    }
    let sessions = sessions(&cluster, &places)?;
    let outcome = match source {
        ModelSource::File(path) => {
            let local = LocalModel::read(&path, &names, &options.sha256).await?;
            let tell = progress(&cluster, &places, &names);
            upload(&local, &sessions, &names, &tell).await
        }
        ModelSource::Url { url, name } => {
            let mut download = match names.as_slice() {
                [stored] => Download::single(url, stored.clone()),
                _ => Download::of(&url, &name),
            };
            for (file, hash) in download.files.iter_mut().zip(&options.sha256) {
                file.sha256 = Some(*hash);
            }
            let tell = progress(&cluster, &places, &names);
            pull::pull(&sessions, &download, &tell).await
        }
    };
    let done = finished(names_of(&cluster, &places), outcome, &names, &cluster).await?;
    Ok(Some(Transferred { left_out, ..done }))
}

/// Sends a model to the first node, from where the others copy it.
async fn upload(
    local: &LocalModel,
    sessions: &[Arc<Session>],
    names: &[String],
    tell: &Arc<PullProgress>,
) -> Result<PullOutcome, Fault> {
    let Some(first) = sessions.first() else { return Ok(PullOutcome::default()) };
    let sent = local.send(first, tell.as_ref()).await?;
    let stored = sent.into_iter().map(|file| (0, file)).collect();
    pull::copy(first, sessions, names, stored, tell).await
}

fn sessions(cluster: &Cluster, places: &[usize]) -> Result<Vec<Arc<Session>>, Failure> {
    places.iter().map(|place| Ok(cluster.nodes[*place].session()?)).collect()
}

fn names_of(cluster: &Cluster, places: &[usize]) -> Vec<String> {
    places.iter().map(|place| cluster.name(&cluster.nodes[*place]).to_owned()).collect()
}

/// The function that prints the progress of these nodes. Dropping it erases the line.
fn progress(cluster: &Cluster, places: &[usize], names: &[String]) -> Arc<PullProgress> {
    let nodes = names_of(cluster, places);
    let transfer = Transfer::new(&label(names), &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    Arc::new(move |node, report| transfer.tell(node, report))
}

/// The name of a model in its progress: `big (3 files)`, or that of its only file.
fn label(names: &[String]) -> String {
    match names {
        [first, _, ..] => format!("{} ({} files)", family(first), names.len()),
        _ => names.concat(),
    }
}

/// The result of a transfer to nodes with these names. Nodes that had all files already are named on standard error.
///
/// # Errors
/// A node lacks a file; the failure names all such nodes, and those that have all files.
async fn finished(
    nodes: Vec<String>,
    outcome: Result<PullOutcome, Fault>,
    names: &[String],
    cluster: &Cluster,
) -> Result<Transferred, Failure> {
    let failure = match outcome {
        Ok(PullOutcome { stored, failed }) => {
            let complete = (0..nodes.len()).filter(|node| failed.iter().all(|(index, _)| index != node));
            let done: Vec<String> = complete.clone().map(|node| nodes[node].clone()).collect();
            let had = complete.filter(|node| stored.iter().all(|(index, _)| index != node));
            let had: Vec<String> = had.map(|node| nodes[node].clone()).collect();
            match Failure::of_nodes(failed.into_iter().map(|(_, fault)| fault), done) {
                Some(failure) => failure,
                None => {
                    for node in &had {
                        output::note(&output::clean(&format!("{node} already has {}", label(names))));
                    }
                    let stored = stored.into_iter().map(|(index, file)| (nodes[index].clone(), file)).collect();
                    return Ok(Transferred { stored, had, left_out: Vec::new() });
                }
            }
        }
        Err(fault) => fault.into(),
    };
    Err(advised(failure, &cluster.usable().unwrap_or_default()).await)
}

/// Whether to transfer the files (`false` for a dry run). A transfer never replaces a file on a node.
fn is_real(options: &Pull, how: &str, names: &[String], cluster: &Cluster, places: &[usize]) -> bool {
    let nodes = names_of(cluster, places);
    let what = output::clean(&format!("{how} {} to {}", label(names), nodes.join(", ")));
    let plan = json!({"model": names.first(), "files": names, "nodes": nodes});
    options.rehearsal.is_real(&what, &plan, options.to.json)
}

#[cfg(test)]
mod tests {
    use common::{fault::FaultKind, units::Bytes};
    use protocol::models::FileState;

    use super::*;

    fn file(model: &str) -> ModelFile {
        let (model, folder, state) = (model.to_owned(), "/models".to_owned(), FileState::Complete);
        ModelFile { model, folder, size: Bytes(9), state, identity: None, sha256: None, content: None }
    }

    #[tokio::test]
    async fn nodes_that_lack_a_file_and_those_that_have_all_are_named() {
        let nodes = ["pi1", "pi2", "pi3", "pi4"].map(str::to_owned).to_vec();
        let cluster = Cluster::dial(&[]).await;
        let names = files_of("big-00001-of-00002.gguf");
        let fault = |node: &str| Fault::new(node, FaultKind::StoreCancelled);
        let stored = vec![(0, file(&names[0])), (1, file(&names[1]))];
        let failed = vec![(1, fault("pi2")), (3, fault("pi4"))];
        let outcome = Ok(PullOutcome { stored: stored.clone(), failed });
        let failure = finished(nodes.clone(), outcome, &names, &cluster).await.expect_err("two nodes lack a file");
        let error = failure.json()["error"].take();
        assert_eq!((&error["node"], &error["done"]), (&json!("pi2"), &json!(["pi1", "pi3"])), "{error}");
        assert_eq!(error["others"][0]["node"], "pi4");
        let outcome = Ok(PullOutcome { stored, failed: Vec::new() });
        let done = finished(nodes, outcome, &names, &cluster).await.expect("all nodes have all files");
        assert_eq!((done.stored[1].0.as_str(), done.had), ("pi2", vec!["pi3".to_owned(), "pi4".to_owned()]));
    }

    #[test]
    fn progress_names_a_split_model_without_the_numbers_of_its_files() {
        assert_eq!(label(&files_of("big-00002-of-00003.gguf")), "big (3 files)");
        assert_eq!(label(&files_of("m.gguf")), "m.gguf");
    }
}
