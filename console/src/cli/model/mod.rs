//! `console model`: lists, adds, pulls, copies, verifies and removes the model files of nodes.
pub(crate) mod choice;
mod source;
mod transfer;

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::{Args, Subcommand};
use common::{
    digest::Sha256,
    fault::{Fault, FaultKind},
};
use protocol::models::{FileState, ModelFile, ModelsRequest, ModelsResponse, check_name, files_of};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{choice::advised, transfer::Transfer};
use crate::cli::{
    Failure,
    shared::{
        confirm::{Consent, Rehearsal},
        find_node::find,
        interrupts::Interrupts,
        need::{Need, Reach},
        options::Nodes,
        output,
        suggest::did_you_mean,
    },
};
use crate::client::{cluster::Cluster, models, session::Session, with_port};

/// The next step after a wrong source.
const SOURCE_EXAMPLE: &str = "name the file of a repository, for example \
                              hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf";
/// Nodes that copy a file from the same node at a time.
const COPIES_MAX: usize = 4;

/// Subcommands of `console model`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Model {
    /// List the model files of all nodes
    List(List),
    /// Upload a file from this machine to nodes
    Add(Add),
    /// Download a file from hf:OWNER/REPO:FILE, https://.. or http://.. (resumable)
    Pull(Pull),
    /// Copy a file from one node to others (resumable)
    Fetch(Fetch),
    /// Recompute the SHA-256 of a file on nodes
    Verify(Verify),
    /// Delete a file on nodes, unless a topology uses it
    Remove(Remove),
}

/// Options of `console model list`.
#[derive(Clone, Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    nodes: Nodes,
    #[arg(from_global)]
    json: bool,
}

/// The nodes to act on, and the output format.
#[derive(Clone, Debug, Args)]
pub(crate) struct Where {
    #[command(flatten)]
    nodes: Nodes,
    /// Act only on this node (name or address); repeatable [default: all of --nodes]
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
    #[arg(from_global)]
    json: bool,
}

/// Options of `console model add`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Add {
    /// The GGUF file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    to: Where,
    #[command(flatten)]
    rehearsal: Rehearsal,
}

/// Options of `console model pull`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pull {
    /// hf:OWNER/REPO:FILE, https://.. or http://..
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Name of the file on the nodes [default: the last part of the source]
    #[arg(long, value_name = "NAME.gguf")]
    name: Option<String>,
    /// Expected SHA-256 of the file [default: the hash that the server reports, if any]
    #[arg(long, value_name = "HEX", value_parser = <Sha256 as std::str::FromStr>::from_str)]
    sha256: Option<Sha256>,
    #[command(flatten)]
    to: Where,
    #[command(flatten)]
    rehearsal: Rehearsal,
}

/// Options of `console model fetch`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Fetch {
    /// Name of the file
    #[arg(value_name = "MODEL")]
    model: String,
    /// Node to copy the file from (name or address)
    #[arg(long, value_name = "NODE")]
    from: String,
    #[command(flatten)]
    to: Where,
    #[command(flatten)]
    rehearsal: Rehearsal,
}

/// Options of `console model verify`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Verify {
    /// Name of the file
    #[arg(value_name = "MODEL")]
    model: String,
    /// Expected SHA-256 of the file
    #[arg(long, value_name = "HEX", value_parser = <Sha256 as std::str::FromStr>::from_str)]
    sha256: Option<Sha256>,
    #[command(flatten)]
    on: Where,
}

/// Options of `console model remove`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Remove {
    /// Name of the file
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    on: Where,
    #[command(flatten)]
    consent: Consent,
}

impl Model {
    /// The nodes that the command acts on.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        let (nodes, need) = match self {
            Self::List(list) => (&mut list.nodes, Need::Looks),
            Self::Add(Add { to, .. }) | Self::Pull(Pull { to, .. }) | Self::Fetch(Fetch { to, .. }) => {
                (&mut to.nodes, Need::Acts)
            }
            Self::Verify(Verify { on, .. }) | Self::Remove(Remove { on, .. }) => (&mut on.nodes, Need::Acts),
        };
        Reach::Nodes(&mut nodes.nodes, need)
    }
}

/// Runs the command.
pub(crate) async fn run(model: Model) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    // An interrupt closes the sessions: the nodes stop working and keep partial files.
    match model {
        Model::List(options) => interrupts.end(list(options)).await,
        Model::Add(options) => interrupts.end(add(options)).await,
        Model::Pull(options) => interrupts.end(pull(options)).await,
        Model::Fetch(options) => interrupts.end(fetch(options)).await,
        Model::Verify(options) => interrupts.end(verify(options)).await,
        Model::Remove(options) => interrupts.end(remove(options)).await,
    }
}

async fn list(options: List) -> Result<u8, Failure> {
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let cluster = Cluster::dial(&addresses).await;
    let mut objects = Vec::new();
    let mut failed = None;
    if !options.json {
        output::line(&format!(
            "{:<10}  {:<40}  {:>10}  {:<16}  {:<16}  STATE",
            "NODE", "MODEL", "SIZE", "IDENTITY", "SHA-256"
        ));
    }
    for node in &cluster.nodes {
        let name = output::clean(cluster.name(node));
        let files = match node.session() {
            Ok(session) => models::list(&session).await,
            Err(fault) => Err(fault),
        };
        match files {
            Ok(files) if options.json => {
                let files: Vec<Value> = files.iter().map(object).collect();
                objects.push(json!({"node": name, "address": node.address, "models": files}));
            }
            Ok(files) => files.iter().for_each(|file| output::line(&row(&name, file))),
            Err(fault) => {
                objects.push(json!({"node": name, "address": node.address, "error": Failure::from(fault.clone()).json()["error"]}));
                if !options.json {
                    output::line(&output::clean(&format!("{name:<10}  {}; {}", fault.kind, fault.kind.next())));
                }
                failed.get_or_insert(fault);
            }
        }
    }
    if options.json {
        output::line(&json!({"nodes": objects}).to_string());
    }
    Ok(failed.map_or(0, |fault| Failure::from(fault).code()))
}

/// A model file as a JSON object.
pub(crate) fn object(file: &ModelFile) -> Value {
    let (state, problem) = state(file);
    json!({"model": file.model, "folder": file.folder, "size": file.size.0, "state": state, "problem": problem,
        "identity": file.identity.map(|identity| identity.to_string()), "sha256": file.sha256.map(|hash| hash.to_string())})
}

fn state(file: &ModelFile) -> (&'static str, Option<&str>) {
    match &file.state {
        FileState::Complete => ("complete", None),
        FileState::Partial => ("partial", None),
        FileState::Broken(reason) => ("broken", Some(reason)),
    }
}

fn row(node: &str, file: &ModelFile) -> String {
    let (state, problem) = state(file);
    let identity = file.identity.map_or("-".into(), |identity| identity.to_string());
    let hash = file.sha256.map_or("-".into(), |hash| hash.to_string()[..16].to_owned());
    let problem = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
    let row =
        format!("{node:<10}  {:<40}  {:>10}  {identity:<16}  {hash:<16}  {state}{problem}", file.model, file.size);
    output::clean(&row)
}

/// The cluster, and the indices of the chosen nodes.
async fn dial(wanted: &Where) -> Result<(Cluster, Vec<usize>), Failure> {
    let addresses: Vec<String> = wanted.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let cluster = Cluster::dial(&addresses).await;
    let places = match wanted.node.is_empty() {
        true => (0..cluster.nodes.len()).collect(),
        false => wanted.node.iter().map(|node| find(&cluster, node)).collect::<Result<Vec<_>, _>>()?,
    };
    Ok((cluster, places))
}

fn name_of(name: &str) -> Result<(), Failure> {
    check_name(name)
        .map_err(|message| Failure::Usage { message, next: "name a file, for example llama-3.2-1b-q4_k_m.gguf" })
}

/// Whether to transfer the file (`false` for a dry run). A transfer never replaces a file on a node.
fn is_real(rehearsal: Rehearsal, how: &str, model: &str, cluster: &Cluster, places: &[usize], json: bool) -> bool {
    let names: Vec<&str> = places.iter().map(|place| cluster.name(&cluster.nodes[*place])).collect();
    let what = output::clean(&format!("{how} {model} to {}", names.join(", ")));
    rehearsal.is_real(&what, &json!({"model": model, "nodes": names}), json)
}

async fn add(options: Add) -> Result<u8, Failure> {
    let name = options.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name_of(&name)?;
    let (cluster, places) = dial(&options.to).await?;
    if !is_real(options.rehearsal, "send", &name, &cluster, &places, options.to.json) {
        return Ok(0);
    }
    let file = options.file.clone();
    output::note(&format!("reading {}", file.display()));
    let digest = tokio::task::spawn_blocking(move || models::digest(&file))
        .await
        .context("the task that hashes the file failed")?;
    let (sha256, size) = digest.with_context(|| format!("cannot read {}", options.file.display()))?;
    let Some((first, rest)) = places.split_first() else { return Ok(0) };
    let node = &cluster.nodes[*first];
    let session = node.session()?;
    let transfer = Transfer::new(&name, &[cluster.name(node)]);
    let upload = models::Upload { path: &options.file, model: &name, sha256, size };
    let stored = models::send(&session, upload, &|step, done, total| transfer.tell(0, step, done, total)).await?;
    drop(transfer);
    let mut done = vec![(cluster.name(node).to_owned(), stored)];
    copy(&cluster, (*first, rest), &name, &mut done).await?;
    Ok(show(&done, options.to.json))
}

async fn pull(options: Pull) -> Result<u8, Failure> {
    let (url, last) =
        source::resolve(&options.source).map_err(|message| Failure::Usage { message, next: SOURCE_EXAMPLE })?;
    let name = options.name.clone().unwrap_or(last);
    name_of(&name)?;
    let (cluster, places) = dial(&options.to).await?;
    if !is_real(options.rehearsal, "download", &name, &cluster, &places, options.to.json) {
        return Ok(0);
    }
    let Some((first, rest)) = places.split_first() else { return Ok(0) };
    let node = &cluster.nodes[*first];
    let session = node.session()?;
    let transfer = Transfer::new(&name, &[cluster.name(node)]);
    let request = ModelsRequest::Pull { url, model: name.clone(), sha256: options.sha256 };
    let tell = |step, done, total| transfer.tell(0, step, done, total);
    let stored = models::stored(&session, request, &tell).await?;
    drop(transfer);
    let mut done = vec![(cluster.name(node).to_owned(), stored)];
    // Download once; the other nodes copy the file from the first one.
    copy(&cluster, (*first, rest), &name, &mut done).await?;
    Ok(show(&done, options.to.json))
}

async fn fetch(options: Fetch) -> Result<u8, Failure> {
    name_of(&options.model)?;
    let (cluster, places) = dial(&options.to).await?;
    let from = find(&cluster, &options.from)?;
    let places: Vec<usize> = places.into_iter().filter(|place| *place != from).collect();
    if !is_real(options.rehearsal, "copy", &options.model, &cluster, &places, options.to.json) {
        return Ok(0);
    }
    let mut done = Vec::new();
    for file in files_of(&options.model) {
        copy(&cluster, (from, &places), &file, &mut done).await?;
    }
    Ok(show(&done, options.to.json))
}

/// Copies a file from one node to the others that do not have it yet, to a few at a time. If a copy fails, the others
/// still end.
async fn copy(
    cluster: &Cluster,
    (from, to): (usize, &[usize]),
    model: &str,
    done: &mut Vec<(String, ModelFile)>,
) -> Result<(), Failure> {
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
            let tell = |step, done, total| transfer.tell(index, step, done, total);
            (index, name, models::stored(&session, request, &tell).await)
        });
    }
    let mut copied = copies.join_all().await;
    drop(transfer);
    copied.sort_by_key(|(index, ..)| *index);
    let mut failed = None;
    for (_, name, result) in copied {
        match result {
            Ok(file) => done.push((name, file)),
            Err(fault) => drop(failed.get_or_insert(fault)),
        }
    }
    match failed {
        Some(fault) => Err(advised(fault.into(), &cluster.usable().unwrap_or_default()).await),
        None => Ok(()),
    }
}

async fn verify(options: Verify) -> Result<u8, Failure> {
    name_of(&options.model)?;
    let (cluster, places) = dial(&options.on).await?;
    let mut done = Vec::new();
    for place in places {
        let node = &cluster.nodes[place];
        let session = node.session()?;
        let transfer = Transfer::new(&options.model, &[cluster.name(node)]);
        let request = ModelsRequest::Verify { model: options.model.clone(), is_known_enough: false };
        let tell = |step, done, total| transfer.tell(0, step, done, total);
        let file = match models::stored(&session, request, &tell).await {
            Ok(file) => file,
            Err(fault) => return Err(unlisted(fault, &session).await),
        };
        done.push((cluster.name(node).to_owned(), file));
    }
    let code = show(&done, options.on.json);
    let expected = options.sha256.or_else(|| done.first().and_then(|(_, file)| file.sha256));
    let other = done.iter().find(|(_, file)| file.sha256 != expected || !matches!(file.state, FileState::Complete));
    match other {
        Some((node, file)) => {
            let text = |hash: Option<Sha256>| hash.map_or("none".into(), |hash| hash.to_string());
            let (state, problem) = state(file);
            let problem = problem.map_or(state.to_owned(), |problem| format!("{state}: {problem}"));
            let (actual, expected) = (text(file.sha256), text(expected));
            Err(anyhow::anyhow!(
                "{node}: checksum mismatch for {}: expected {expected}, got {actual} ({problem})",
                options.model
            )
            .into())
        }
        None => Ok(code),
    }
}

async fn remove(options: Remove) -> Result<u8, Failure> {
    name_of(&options.model)?;
    options.consent.check()?;
    let (cluster, places) = dial(&options.on).await?;
    let names: Vec<&str> = places.iter().map(|place| cluster.name(&cluster.nodes[*place])).collect();
    let question = format!("Delete {} on {}?", options.model, output::clean(&names.join(", ")));
    let plan = json!({"model": options.model, "nodes": names});
    if !options.consent.obtain(&question, &plan, options.on.json).await? {
        return Ok(0);
    }
    for place in &places {
        let session = cluster.nodes[*place].session()?;
        let request = ModelsRequest::Remove { model: options.model.clone() };
        match models::ask(&session, request, &|_, _, _| {}).await {
            Ok(ModelsResponse::Removed) => {}
            Err(fault) => return Err(unlisted(fault, &session).await),
            Ok(other) => return Err(anyhow::anyhow!("unexpected response to the removal request: {other:?}").into()),
        }
    }
    if options.on.json {
        output::line(&json!({"model": options.model, "removed": names}).to_string());
    } else {
        output::line(&output::clean(&format!("removed {} on {}", options.model, names.join(", "))));
    }
    Ok(0)
}

/// A missing file, with similar names on the node as the next step. Other faults stay as they are.
async fn unlisted(fault: Fault, session: &Session) -> Failure {
    let FaultKind::ModelMissing { model, .. } = &fault.kind else { return fault.into() };
    let files = models::list(session).await.unwrap_or_default();
    let meant = did_you_mean(model, files.iter().map(|file| file.model.as_str()));
    let meant = meant.map_or_else(String::new, |text| format!("{text} "));
    let next = format!("{meant}console model list shows the files of each node");
    Failure::Advised { fault: Box::new(fault), next }
}

fn show(done: &[(String, ModelFile)], json: bool) -> u8 {
    if json {
        let files: Vec<Value> = done.iter().map(|(node, file)| json!({"node": node, "file": object(file)})).collect();
        output::line(&json!({"stored": files}).to_string());
        return 0;
    }
    for (node, file) in done {
        let hash = file.sha256.map_or("-".into(), |hash| hash.to_string());
        output::line(&output::clean(&format!(
            "{node}: {} in {}, {}, SHA-256 {hash}",
            file.model, file.folder, file.size
        )));
    }
    0
}
