//! Puts a model on several nodes, for `console model pull` and the dashboard: one node gets all files, from a server or
//! from nodes that have some, and the others copy them from it, several at a time. The files of a split model belong
//! together: a node that lacks one has no model.
mod inventory;
mod progress;

use std::sync::Arc;

use assignment::source::url_of_part;
use common::{
    digest::Sha256,
    fault::{Fault, FaultKind},
};
use protocol::models::{ModelFile, ModelsRequest, ModelsResponse, files_of};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{inventory::Inventory, progress::WholeProgress};
use super::{models, session::Session};

pub use inventory::held;
pub use progress::PullProgress;

/// Nodes that copy files from the same node at a time.
const COPIES_MAX: usize = 4;

/// A file to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownloadFile {
    /// Its URL.
    pub url: String,
    /// Its name on the nodes.
    pub model: String,
    /// Its expected hash; `None` = that which the server reports, if any.
    pub sha256: Option<Sha256>,
}

/// A model to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// Its files, in order.
    pub files: Vec<DownloadFile>,
}

impl Download {
    /// The model of the file `name` at `url`. The files of a split model lie in one folder of the server.
    pub fn of(url: &str, name: &str) -> Self {
        let files = files_of(name).into_iter().map(|model| {
            let url = url_of_part(url, name, &model);
            DownloadFile { url, model, sha256: None }
        });
        Self { files: files.collect() }
    }

    /// The file at `url` alone, which the nodes store under the name `model`.
    pub fn single(url: String, model: String) -> Self {
        Self { files: vec![DownloadFile { url, model, sha256: None }] }
    }

    fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.model.clone()).collect()
    }
}

/// A file on the node with this index among the sessions.
pub type PulledFile = (usize, ModelFile);

/// What a transfer did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PullOutcome {
    /// The files that were transferred.
    pub stored: Vec<PulledFile>,
    /// By the index of its session: why a node lacks a file. What it has stays there.
    pub failed: Vec<(usize, Fault)>,
}

impl PullOutcome {
    /// The files that were transferred, if no node lacks one.
    ///
    /// # Errors
    /// The first fault.
    pub fn complete(self) -> Result<Vec<PulledFile>, Fault> {
        match self.failed.into_iter().next() {
            Some((_, fault)) => Err(fault),
            None => Ok(self.stored),
        }
    }
}

/// Puts a model on all nodes. The node that has most of its files gets the others, from nodes that have them, otherwise
/// from the server.
///
/// # Errors
/// A node cannot list its files or has others of these names, or the node that gets all files cannot get one. What has
/// arrived stays there.
pub async fn pull(
    sessions: &[Arc<Session>],
    download: &Download,
    tell: &Arc<PullProgress>,
) -> Result<PullOutcome, Fault> {
    let names = download.names();
    let inventory = Inventory::of(sessions, &names).await?;
    check_hashes(sessions, download, &inventory)?;
    let Some(first) = inventory.fullest() else {
        return Err(Fault::new("console", FaultKind::Internal { reason: "no node is named".into() }));
    };
    let session = &sessions[first];
    let mut progress = WholeProgress::new(first, inventory.sizes(names.len()), inventory.has(first), tell);
    let mut stored = Vec::new();
    for place in inventory.lacking(first) {
        let DownloadFile { url, model, sha256 } = download.files[place].clone();
        let request = match inventory.holder(place) {
            Some(holder) => ModelsRequest::Fetch { model, from: sessions[holder].address.clone() },
            None => ModelsRequest::Pull { url, model, sha256 },
        };
        let received = receive(session, request, place, &mut progress).await;
        stored.push((first, received.map_err(|fault| in_file(fault, &names, place))?));
    }
    // Before the others copy them.
    whole(session, &names).await?;
    let mut others = copies(sessions, &inventory, &names, progress.sizes(), tell);
    others.retain(|copy| copy.index != first);
    let PullOutcome { stored: copied, failed } = spread(&session.address, others).await;
    stored.extend(copied);
    Ok(confirmed(PullOutcome { stored, failed }, sessions, &names).await)
}

/// A hash that was typed must be that of the file that is there already.
fn check_hashes(sessions: &[Arc<Session>], download: &Download, inventory: &Inventory) -> Result<(), Fault> {
    for (place, file) in download.files.iter().enumerate().filter(|(_, file)| file.sha256.is_some()) {
        for (node, session) in sessions.iter().enumerate() {
            if inventory.file(node, place).is_some_and(|there| there.sha256 != file.sha256) {
                let kind = FaultKind::ModelExists { model: file.model.clone() };
                return Err(Fault::new(&session.identity.name, kind));
            }
        }
    }
    Ok(())
}

/// Copies files of a model from the node `from` to the nodes that lack them. If a copy fails, the others still end.
/// `stored`: files that these nodes have received before, as a part of the same transfer.
///
/// # Errors
/// A node cannot list its files or has others of these names, or `from` lacks a file of a split model.
pub async fn copy(
    from: &Session,
    sessions: &[Arc<Session>],
    names: &[String],
    stored: Vec<PulledFile>,
    tell: &Arc<PullProgress>,
) -> Result<PullOutcome, Fault> {
    let sizes: Vec<Option<u64>> = match names {
        [_] => vec![None],
        _ => whole(from, names).await?.iter().map(|file| Some(file.size.0)).collect(),
    };
    let inventory = Inventory::of(sessions, names).await?;
    let copies = copies(sessions, &inventory, names, &sizes, tell);
    let PullOutcome { stored: copied, failed } = spread(&from.address, copies).await;
    let stored = stored.into_iter().chain(copied).collect();
    Ok(confirmed(PullOutcome { stored, failed }, sessions, names).await)
}

/// The files that a node lacks, to be copied from another one.
struct NodeCopy {
    /// Index of its session.
    index: usize,
    session: Arc<Session>,
    /// Place and name of each file.
    lacking: Vec<(usize, String)>,
    progress: WholeProgress,
}

/// The copies of all nodes that lack a file. `sizes`: of the files in bytes, as far as they are known.
fn copies(
    sessions: &[Arc<Session>],
    inventory: &Inventory,
    names: &[String],
    sizes: &[Option<u64>],
    tell: &Arc<PullProgress>,
) -> Vec<NodeCopy> {
    let mut copies = Vec::with_capacity(sessions.len());
    for (index, session) in sessions.iter().enumerate() {
        let lacking = inventory.lacking(index).into_iter().map(|place| (place, names[place].clone()));
        let lacking: Vec<(usize, String)> = lacking.collect();
        if !lacking.is_empty() {
            let progress = WholeProgress::new(index, sizes.to_vec(), inventory.has(index), tell);
            copies.push(NodeCopy { index, session: Arc::clone(session), lacking, progress });
        }
    }
    copies
}

impl NodeCopy {
    /// Copies the files one after another. Returns those that arrived, and why one did not.
    async fn run(mut self, from: String) -> (usize, Vec<ModelFile>, Option<Fault>) {
        let mut stored = Vec::with_capacity(self.lacking.len());
        for (place, model) in self.lacking {
            let request = ModelsRequest::Fetch { model, from: from.clone() };
            match receive(&self.session, request, place, &mut self.progress).await {
                Ok(file) => stored.push(file),
                Err(fault) => return (self.index, stored, Some(fault)),
            }
        }
        (self.index, stored, None)
    }
}

/// Carries out copies from the node at `from`, those of a few nodes at a time.
async fn spread(from: &str, copies: Vec<NodeCopy>) -> PullOutcome {
    let room = Arc::new(Semaphore::new(COPIES_MAX));
    let mut running = JoinSet::new();
    for copy in copies {
        let (room, from) = (Arc::clone(&room), from.to_owned());
        running.spawn(async move {
            // The semaphore is never closed.
            let _permit = room.acquire_owned().await;
            copy.run(from).await
        });
    }
    let mut copied = running.join_all().await;
    copied.sort_by_key(|(index, ..)| *index);
    let mut outcome = PullOutcome::default();
    for (index, stored, fault) in copied {
        outcome.stored.extend(stored.into_iter().map(|file| (index, file)));
        outcome.failed.extend(fault.map(|fault| (index, fault)));
    }
    outcome
}

/// Lets a node get the file at `place`.
async fn receive(
    session: &Session,
    request: ModelsRequest,
    place: usize,
    progress: &mut WholeProgress,
) -> Result<ModelFile, Fault> {
    let stored =
        models::stored(session, request, &|step, done, total| progress.report(place, step, done, total)).await?;
    progress.arrived(place, stored.size);
    Ok(stored)
}

/// A failed download, with the file of a split model that it concerns.
fn in_file(fault: Fault, names: &[String], place: usize) -> Fault {
    let Fault { node, kind } = fault;
    let kind = match kind {
        FaultKind::DownloadFailed { reason } if names.len() > 1 => {
            let reason = format!("{} (file {} of {}): {reason}", names[place], place + 1, names.len());
            FaultKind::DownloadFailed { reason }
        }
        other => other,
    };
    Fault { node, kind }
}

/// Asks the nodes once more for the files of a split model: while files were missing, they reported the first one as
/// broken, and only together the files show whether they are a model.
async fn confirmed(mut outcome: PullOutcome, sessions: &[Arc<Session>], names: &[String]) -> PullOutcome {
    if names.len() < 2 {
        return outcome;
    }
    for (index, session) in sessions.iter().enumerate() {
        if outcome.failed.iter().any(|(failed, _)| *failed == index) {
            continue;
        }
        match whole(session, names).await {
            Ok(files) => {
                for (_, stored) in outcome.stored.iter_mut().filter(|(node, _)| *node == index) {
                    if let Some(listed) = files.iter().find(|file| file.model == stored.model) {
                        stored.clone_from(listed);
                    }
                }
            }
            Err(fault) => outcome.failed.push((index, fault)),
        }
    }
    outcome
}

/// The files of a split model on a node that has all of them; none for a model in one file.
///
/// # Errors
/// The node cannot list its files, lacks one, or they are damaged.
async fn whole(session: &Session, names: &[String]) -> Result<Vec<ModelFile>, Fault> {
    if names.len() < 2 {
        return Ok(Vec::new());
    }
    let held = held(session, names).await?;
    match held.iter().zip(names).find(|(file, _)| file.is_none()) {
        Some((_, lacked)) => {
            let mut folders: Vec<&str> = held.iter().flatten().map(|file| file.folder.as_str()).collect();
            folders.dedup();
            let folders = if folders.is_empty() { "none of its files is there".into() } else { folders.join(", ") };
            let kind = FaultKind::ModelMissing { model: lacked.clone(), folders };
            Err(Fault::new(&session.identity.name, kind))
        }
        None => Ok(held.into_iter().flatten().collect()),
    }
}

/// Whether a node has a file of a model, complete or not.
///
/// # Errors
/// The node cannot list its files.
pub async fn has(session: &Session, model: &str) -> Result<bool, Fault> {
    let (held, parts) = (models::list(session).await?, files_of(model));
    Ok(held.iter().any(|file| parts.contains(&file.model)))
}

/// Deletes a model, with all its files, on these nodes; nodes without it are left out. Returns the names of the nodes
/// that had it.
///
/// # Errors
/// A node refuses: the model is in use there.
pub async fn remove(sessions: &[Arc<Session>], model: &str) -> Result<Vec<String>, Fault> {
    let mut removed = Vec::new();
    for session in sessions {
        let held = models::list(session).await?;
        let files = files_of(model).into_iter().filter(|name| held.iter().any(|file| file.model == *name));
        let files: Vec<String> = files.collect();
        for file in &files {
            remove_file(session, file).await?;
        }
        removed.extend((!files.is_empty()).then(|| session.identity.name.clone()));
    }
    Ok(removed)
}

/// Deletes a file on a node.
///
/// # Errors
/// The node refuses or does not have it.
async fn remove_file(session: &Session, model: &str) -> Result<(), Fault> {
    let request = ModelsRequest::Remove { model: model.to_owned() };
    match models::ask(session, request, &|_, _, _| {}).await? {
        ModelsResponse::Removed => Ok(()),
        other => Err(assignment::files::odd(session, &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_split_model_are_downloaded_from_one_folder() {
        let names = [1, 2, 3].map(|part| format!("m-0000{part}-of-00003.gguf"));
        for (begin, end) in [("https://a/o/r/resolve/main/q4/", ""), ("http://a:1/", "?download=true&name=x.gguf")] {
            // Any file of the model may be named.
            let download = Download::of(&format!("{begin}{}{end}", names[1]), &names[1]);
            let urls: Vec<&str> = download.files.iter().map(|file| file.url.as_str()).collect();
            assert_eq!(urls, names.each_ref().map(|name| format!("{begin}{name}{end}")));
            assert_eq!(download.names(), names);
        }
        let alone = Download::of("https://a/x.gguf?b=c", "x.gguf");
        assert_eq!(alone, Download::single("https://a/x.gguf?b=c".into(), "x.gguf".into()));
    }

    #[test]
    fn failed_download_names_the_file_of_a_split_model() {
        let fault = |reason: &str| Fault::new("pi1", FaultKind::DownloadFailed { reason: reason.into() });
        let split = files_of("m-00001-of-00002.gguf");
        let expected = fault("m-00002-of-00002.gguf (file 2 of 2): HTTP 404");
        assert_eq!(in_file(fault("HTTP 404"), &split, 1), expected);
        assert_eq!(in_file(fault("HTTP 404"), &files_of("m.gguf"), 0), fault("HTTP 404"));
        let busy = Fault::new("pi1", FaultKind::StoreBusy { model: split[1].clone() });
        assert_eq!(in_file(busy.clone(), &split, 1), busy);
    }
}
