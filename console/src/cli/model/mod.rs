//! `console model`: searches the catalogue; lists, pulls, verifies and removes the model files of nodes.
pub(crate) mod choice;
mod list;
pub(crate) mod provide;
pub(crate) mod pull;
mod search;
mod source;
mod transfer;
mod upload;

use std::sync::Arc;

use clap::{Args, Subcommand};
use common::{
    digest::Sha256,
    fault::{Fault, FaultKind},
};
use protocol::models::{FileState, ModelFile, ModelsRequest, check_name, files_of};
use serde_json::{Value, json};

use self::transfer::Transfer;
use crate::cli::{
    Failure,
    shared::{
        confirm::Consent,
        find_node::find,
        interrupts::Interrupts,
        need::{Need, Reach},
        options::Nodes,
        output,
    },
};
use crate::client::{
    cluster::{Cluster, ClusterNode},
    models, pull as files,
    session::Session,
    with_port,
};
use crate::operator::transfer::TransferReport;
use crate::suggest::did_you_mean;

/// Subcommands of `console model`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Model {
    /// List the models of all nodes: size, and which nodes have them
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Search the catalogue of well-known models: size, licence, context, and whether they fit the nodes
    Search(search::Search),
    /// Put a model on nodes: by its short name, from a server, from this machine, or copied from a node (resumable)
    #[command(alias = "add")]
    Pull(pull::Pull),
    /// Recompute the SHA-256 of a model on nodes, of a split one that of each file
    Verify(Verify),
    /// Delete a model on nodes, with all files of a split one, unless a topology uses it
    #[command(visible_alias = "rm")]
    Remove(Remove),
}

/// The nodes to act on, and the output format.
#[derive(Clone, Debug, Args)]
pub(crate) struct Where {
    #[command(flatten)]
    nodes: Nodes,
    /// Act only on these nodes (names or addresses), separated by commas or repeated [default: all of --nodes]
    #[arg(long, value_name = "NODE,NODE,..", value_delimiter = ',')]
    node: Vec<String>,
    #[arg(from_global)]
    json: bool,
}

/// Options of `console model verify`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Verify {
    /// Name of the file; any file of a split model stands for all of them
    #[arg(value_name = "MODEL", required_unless_present = "name")]
    model: Option<String>,
    /// Verify only this file, also of a split model
    #[arg(long, value_name = "NAME.gguf", conflicts_with = "model")]
    name: Option<String>,
    /// Expected SHA-256 of the file; for a split model, of each file in order
    #[arg(long, value_name = "HEX,..", value_delimiter = ',', value_parser = <Sha256 as std::str::FromStr>::from_str)]
    sha256: Vec<Sha256>,
    #[command(flatten)]
    on: Where,
}

impl Verify {
    /// The files to read.
    fn names(&self) -> Vec<String> {
        match &self.name {
            Some(name) => vec![name.clone()],
            None => files_of(self.model.as_deref().unwrap_or_default()),
        }
    }
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
            Self::Search(search) => (&mut search.nodes, Need::Tries),
            Self::Pull(pull) => (&mut pull.to.nodes, Need::Acts),
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
        Model::List(options) => interrupts.end(list::run(options)).await,
        Model::Search(options) => interrupts.end(search::run(options)).await,
        Model::Pull(options) => interrupts.end(pull::run(options)).await,
        Model::Verify(options) => interrupts.end(verify(options)).await,
        Model::Remove(options) => interrupts.end(remove(options)).await,
    }
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

/// The nodes that a command acts on.
struct ModelTargets {
    cluster: Cluster,
    /// Their indices.
    places: Vec<usize>,
    /// Names of nodes that were not chosen because they are excluded and do not answer.
    left_out: Vec<String>,
}

/// Dials the nodes and finds the chosen ones; without a choice, those of [`present`].
async fn dial(wanted: &Where) -> Result<ModelTargets, Failure> {
    let addresses: Vec<String> = wanted.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let cluster = Cluster::dial(&addresses).await;
    if wanted.node.is_empty() {
        return Ok(present(cluster));
    }
    let places = wanted.node.iter().map(|node| find(&cluster, node)).collect::<Result<Vec<_>, _>>()?;
    Ok(ModelTargets { cluster, places, left_out: Vec::new() })
}

/// All nodes but the excluded ones that do not answer, which are named on standard error: an operator or the other
/// nodes have decided already that the cluster works without them.
fn present(cluster: Cluster) -> ModelTargets {
    let (mut places, mut left_out) = (Vec::with_capacity(cluster.nodes.len()), Vec::new());
    for (place, node) in cluster.nodes.iter().enumerate() {
        match cluster.exclusion(node).filter(|_| node.report().is_none() && !cluster.may_be_member(node)) {
            Some(entry) => {
                let (name, by, reason) = (cluster.name(node), &entry.by, entry.reason.as_deref().unwrap_or_default());
                let note = format!("{name} is left out: it is excluded ({by}: {reason}) and does not answer");
                output::note(&output::clean(&note));
                left_out.push(output::clean(name));
            }
            None => places.push(place),
        }
    }
    ModelTargets { cluster, places, left_out }
}

fn name_of(name: &str) -> Result<(), Failure> {
    check_name(name)
        .map_err(|message| Failure::Usage { message, next: "name a file, for example llama-3.2-1b-q4_k_m.gguf" })
}

/// Checks that there is a hash for each of so many files of a model, or none.
fn check_hashes(hashes: &[Sha256], files: usize) -> Result<(), Failure> {
    if hashes.is_empty() || hashes.len() == files {
        return Ok(());
    }
    Err(Failure::Usage {
        message: format!("hashes in --sha256: expected {files}, one for each file of the model, got {}", hashes.len()),
        next: "give the hashes in the order of the files, separated by commas; for a single file use --name NAME.gguf",
    })
}

/// Reads every file of a model on the nodes, and compares the nodes with each other or with the given hashes. If a node
/// fails, the others are still read.
async fn verify(options: Verify) -> Result<u8, Failure> {
    let names = options.names();
    names.first().map_or(Ok(()), |name| name_of(name))?;
    check_hashes(&options.sha256, names.len())?;
    let ModelTargets { cluster, places, left_out } = dial(&options.on).await?;
    let (mut done, mut whole, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for place in places {
        let node = &cluster.nodes[place];
        let name = cluster.name(node).to_owned();
        match verify_on(node, &name, &names).await {
            Ok(files) => {
                done.extend(files.into_iter().map(|file| (name.clone(), file)));
                whole.push(name);
            }
            Err(fault) => failed.push(fault),
        }
    }
    let failure = match mismatch(&names, &options.sha256, &done) {
        Some(failure) => {
            failed.iter().for_each(|fault| output::note(&output::clean(&fault.to_string())));
            failure
        }
        None => {
            // A mistyped name is that of no file on any node.
            let next = if whole.is_empty() { similar_on(&failed, &cluster).await } else { None };
            match (Failure::of_nodes(failed, whole), next) {
                (Some(failure), Some(next)) => failure.with_next(next),
                (Some(failure), None) => failure,
                (None, _) => return Ok(show(&done, None, &left_out, options.on.json)),
            }
        }
    };
    // With --json, the failure is the only object.
    if !options.on.json {
        show(&done, None, &left_out, false);
    }
    Err(failure)
}

/// Reads every file of a model on a node, with progress.
async fn verify_on(node: &ClusterNode, name: &str, files: &[String]) -> Result<Vec<ModelFile>, Fault> {
    let session = node.session()?;
    let mut read = Vec::with_capacity(files.len());
    for model in files {
        let transfer = Transfer::new(model, &[name]);
        let request = ModelsRequest::Verify { model: model.clone(), is_known_enough: false };
        let stored = models::stored(&session, request, &|step, done, total| {
            transfer.tell(0, TransferReport::exact(step, done, total));
        })
        .await;
        read.push(stored?);
    }
    Ok(read)
}

/// The failure of the first file with another hash than expected, or that is unusable. Without given hashes, those of the
/// first node are expected.
fn mismatch(names: &[String], given: &[Sha256], done: &[(String, ModelFile)]) -> Option<Failure> {
    for (place, model) in names.iter().enumerate() {
        let files: Vec<&(String, ModelFile)> = done.iter().filter(|(_, file)| file.model == *model).collect();
        let given = given.get(place).copied();
        let expected = given.or_else(|| files.first().and_then(|(_, file)| file.sha256));
        let mut others = files.into_iter();
        let other = others.find(|(_, file)| file.sha256 != expected || !matches!(file.state, FileState::Complete));
        if let Some((node, file)) = other {
            return Some(differs(node, file, expected));
        }
    }
    None
}

/// The failure of a node whose file has another hash, or is unusable.
fn differs(node: &str, file: &ModelFile, expected: Option<Sha256>) -> Failure {
    let [expected, actual] =
        [expected, file.sha256].map(|hash| hash.map_or_else(|| "none".to_owned(), |hash| hash.to_string()));
    let (state, problem) = state(file);
    let problem = problem.map_or_else(|| state.to_owned(), |problem| format!("{state}: {problem}"));
    let model = &file.model;
    anyhow::anyhow!("{node}: checksum mismatch for {model}: expected {expected}, got {actual} ({problem})").into()
}

async fn remove(options: Remove) -> Result<u8, Failure> {
    name_of(&options.model)?;
    options.consent.check()?;
    let ModelTargets { cluster, places, left_out } = dial(&options.on).await?;
    // Before anything is deleted, because a node that does not answer may have the file, too.
    let sessions = places.iter().map(|place| cluster.nodes[*place].session()).collect::<Result<Vec<_>, _>>()?;
    let mut holders = Vec::with_capacity(sessions.len());
    for session in &sessions {
        match files::has(session, &options.model).await? {
            true => holders.push(Arc::clone(session)),
            false if options.on.node.is_empty() => {}
            false => return Err(missing(session, &options.model).await),
        }
    }
    if let (true, Some(first)) = (holders.is_empty(), sessions.first()) {
        return Err(missing(first, &options.model).await);
    }
    let names: Vec<&str> = holders.iter().map(|session| session.identity.name.as_str()).collect();
    let what = match files_of(&options.model).len() {
        1 => options.model.clone(),
        parts => format!("{} and the other files of this model ({parts} in all)", options.model),
    };
    let question = format!("Delete {what} on {}?", output::clean(&names.join(", ")));
    let plan = json!({"model": options.model, "nodes": names});
    if !options.consent.obtain(&question, &plan, options.on.json).await? {
        return Ok(0);
    }
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for session in &holders {
        match files::remove(&[Arc::clone(session)], &options.model).await {
            Ok(names) => removed.extend(names),
            Err(fault) => failed.push(fault),
        }
    }
    if let Some(failure) = Failure::of_nodes(failed, removed) {
        return Err(failure);
    }
    if options.on.json {
        output::line(&json!({"model": options.model, "removed": names, "left_out": left_out}).to_string());
    } else {
        output::line(&output::clean(&format!("removed {what} on {}", names.join(", "))));
    }
    Ok(0)
}

/// The failure of a node that does not have this model.
async fn missing(session: &Session, model: &str) -> Failure {
    let listed = models::list(session).await.unwrap_or_default();
    let next = similar(model, &listed);
    let mut folders: Vec<String> = listed.into_iter().map(|file| file.folder).collect();
    folders.dedup();
    let folders = if folders.is_empty() { "no file is there".into() } else { folders.join(", ") };
    let kind = FaultKind::ModelMissing { model: model.to_owned(), folders };
    Failure::Advised { fault: Box::new(Fault::new(&session.identity.name, kind)), next }
}

/// The next step after these faults, if all are those of nodes that lack the model: similar names on these nodes.
async fn similar_on(faults: &[Fault], cluster: &Cluster) -> Option<String> {
    let (mut typed, mut listed) = (None, Vec::new());
    for fault in faults {
        let FaultKind::ModelMissing { model, .. } = &fault.kind else { return None };
        typed = typed.or(Some(model));
        let session = cluster.nodes[cluster.find(&fault.node)?].session().ok()?;
        listed.extend(models::list(&session).await.unwrap_or_default());
    }
    typed.map(|model| similar(model, &listed))
}

/// The next step for a model that is not among these files.
fn similar(model: &str, listed: &[ModelFile]) -> String {
    let meant = did_you_mean(model, listed.iter().map(|file| file.model.as_str()));
    let meant = meant.map_or_else(String::new, |text| format!("{text} "));
    format!("{meant}console model list shows the files of each node")
}

/// Prints files with the names of their nodes. `had`: the nodes that had all files before a transfer; `left_out`:
/// excluded nodes that do not answer.
fn show(done: &[(String, ModelFile)], had: Option<&[String]>, left_out: &[String], json: bool) -> u8 {
    if json {
        let files: Value = done.iter().map(|(node, file)| json!({"node": node, "file": object(file)})).collect();
        let mut object = json!({"stored": files, "left_out": left_out});
        if let Some(had) = had {
            object["had"] = json!(had);
        }
        output::line(&object.to_string());
        return 0;
    }
    for (node, file) in done {
        let hash = file.sha256.map_or("-".into(), |hash| hash.to_string());
        let (model, folder, size) = (&file.model, &file.folder, file.size);
        let problem = state(file).1.map(|problem| format!(", not usable: {problem}")).unwrap_or_default();
        output::line(&output::clean(&format!("{node}: {model} in {folder}, {size}, SHA-256 {hash}{problem}")));
    }
    0
}
