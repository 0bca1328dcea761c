//! `console model`: searches the catalogue; lists, pulls, verifies and removes the model files of nodes.
pub(crate) mod choice;
mod list;
pub(crate) mod provide;
pub(crate) mod pull;
mod search;
mod source;
mod transfer;

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
use crate::client::{cluster::Cluster, models, pull as files, session::Session, with_port};
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
    /// Recompute the SHA-256 of a file on nodes
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

async fn verify(options: Verify) -> Result<u8, Failure> {
    name_of(&options.model)?;
    let (cluster, places) = dial(&options.on).await?;
    let mut done = Vec::new();
    for place in places {
        let node = &cluster.nodes[place];
        let session = node.session()?;
        let transfer = Transfer::new(&options.model, &[cluster.name(node)]);
        let request = ModelsRequest::Verify { model: options.model.clone(), is_known_enough: false };
        let stored = models::stored(&session, request, &|step, done, total| transfer.tell(0, step, done, total)).await;
        let file = match stored {
            Ok(file) => file,
            Err(fault) => return Err(unlisted(fault, &session).await),
        };
        done.push((cluster.name(node).to_owned(), file));
    }
    let expected = options.sha256.or_else(|| done.first().and_then(|(_, file)| file.sha256));
    let other = done.iter().find(|(_, file)| file.sha256 != expected || !matches!(file.state, FileState::Complete));
    match other {
        Some((node, file)) => {
            // With --json, the failure is the only object.
            if !options.on.json {
                show(&done, false);
            }
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
        None => Ok(show(&done, options.on.json)),
    }
}

async fn remove(options: Remove) -> Result<u8, Failure> {
    name_of(&options.model)?;
    options.consent.check()?;
    let (cluster, places) = dial(&options.on).await?;
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
    let mut failed = failed.into_iter();
    if let Some(first) = failed.next() {
        if !removed.is_empty() {
            output::note(&output::clean(&format!("removed {what} on {}", removed.join(", "))));
        }
        failed.for_each(|fault| output::note(&output::clean(&fault.to_string())));
        return Err(first.into());
    }
    if options.on.json {
        output::line(&json!({"model": options.model, "removed": names}).to_string());
    } else {
        output::line(&output::clean(&format!("removed {what} on {}", names.join(", "))));
    }
    Ok(0)
}

/// The failure of a node that does not have this model.
async fn missing(session: &Session, model: &str) -> Failure {
    let listed = models::list(session).await.unwrap_or_default();
    let mut folders: Vec<String> = listed.into_iter().map(|file| file.folder).collect();
    folders.dedup();
    let folders = if folders.is_empty() { "no file is there".into() } else { folders.join(", ") };
    let kind = FaultKind::ModelMissing { model: model.to_owned(), folders };
    unlisted(Fault::new(&session.identity.name, kind), session).await
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
