//! Puts a model file on several nodes, for `console model pull` and the dashboard: one node downloads it, the others copy
//! it from there, several at a time.
use std::sync::Arc;

use common::{
    digest::Sha256,
    fault::{Fault, FaultKind},
    units::Bytes,
};
use protocol::models::{FileState, ModelFile, ModelsRequest, ModelsResponse, Step, files_of};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{models, session::Session};

/// Nodes that copy a file from the same node at a time.
const COPIES_MAX: usize = 4;

/// A file to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// Its URL.
    pub url: String,
    /// Its name on the nodes.
    pub model: String,
    /// Its expected hash; `None` = that which the server reports, if any.
    pub sha256: Option<Sha256>,
}

/// Progress of a node, by its index among the sessions: step, bytes done, total bytes if known.
pub type PullProgress = dyn Fn(usize, Step, Bytes, Option<Bytes>) + Send + Sync;

/// A file on the node with this index among the sessions.
pub type PulledFile = (usize, ModelFile);

/// Which sessions' nodes lack a complete file.
///
/// # Errors
/// A node cannot list its files.
pub async fn lacking(sessions: &[Arc<Session>], model: &str) -> Result<Vec<usize>, Fault> {
    Ok(absent(&held(sessions, model).await?))
}

fn absent(held: &[Option<ModelFile>]) -> Vec<usize> {
    (0..held.len()).filter(|index| held[*index].is_none()).collect()
}

/// The file of each session's node that is not a partial one.
///
/// # Errors
/// A node cannot list its files, or its file is damaged: a transfer does not replace it.
async fn held(sessions: &[Arc<Session>], model: &str) -> Result<Vec<Option<ModelFile>>, Fault> {
    let mut held = Vec::with_capacity(sessions.len());
    for session in sessions {
        let files = models::list(session).await?;
        let there = files.into_iter().find(|file| file.model == model && file.state != FileState::Partial);
        match there.as_ref().map(|file| &file.state) {
            // The first file of a split model counts as broken as long as a later one is missing.
            Some(FileState::Broken(reason)) if files_of(model).len() == 1 => {
                let kind = FaultKind::ModelInvalid { model: model.to_owned(), reason: reason.clone() };
                return Err(Fault::new(&session.identity.name, kind));
            }
            _ => held.push(there),
        }
    }
    Ok(held)
}

/// Puts a file on all nodes: from a node that has it, otherwise from the server by the first node. Returns the files that
/// were transferred.
///
/// # Errors
/// A node refuses or fails; what the others have stays there.
pub async fn pull(
    sessions: &[Arc<Session>],
    file: &Download,
    tell: &Arc<PullProgress>,
) -> Result<Vec<PulledFile>, Fault> {
    let held = held(sessions, &file.model).await?;
    let (holder, missing) = (held.iter().position(Option::is_some), absent(&held));
    // A hash that was typed must be that of the file that is there already.
    for (session, there) in sessions.iter().zip(&held) {
        if file.sha256.is_some() && there.as_ref().is_some_and(|there| there.sha256 != file.sha256) {
            let kind = FaultKind::ModelExists { model: file.model.clone() };
            return Err(Fault::new(&session.identity.name, kind));
        }
    }
    let mut done = Vec::new();
    let from = match (holder, missing.first()) {
        (Some(holder), _) => holder,
        (None, Some(first)) => {
            let Download { url, model, sha256 } = file.clone();
            let request = ModelsRequest::Pull { url, model, sha256 };
            let stored =
                models::stored(&sessions[*first], request, &|step, bytes, total| tell(*first, step, bytes, total))
                    .await;
            done.push((*first, stored?));
            *first
        }
        (None, None) => return Err(Fault::new("console", FaultKind::Internal { reason: "no node is named".into() })),
    };
    let others: Vec<(usize, Arc<Session>)> =
        missing.into_iter().filter(|index| *index != from).map(|index| (index, Arc::clone(&sessions[index]))).collect();
    done.extend(copy(&sessions[from].address, &others, &file.model, tell).await?);
    Ok(done)
}

/// Copies a file from the node at `from` to others, to a few at a time. If a copy fails, the others still end.
///
/// # Errors
/// The fault of the first copy that failed.
pub async fn copy(
    from: &str,
    to: &[(usize, Arc<Session>)],
    model: &str,
    tell: &Arc<PullProgress>,
) -> Result<Vec<PulledFile>, Fault> {
    let room = Arc::new(Semaphore::new(COPIES_MAX));
    let mut copies = JoinSet::new();
    for (place, (index, session)) in to.iter().enumerate() {
        let (index, session, tell, room) = (*index, Arc::clone(session), Arc::clone(tell), Arc::clone(&room));
        let request = ModelsRequest::Fetch { model: model.into(), from: from.to_owned() };
        copies.spawn(async move {
            // The semaphore is never closed.
            let _permit = room.acquire_owned().await;
            let stored = models::stored(&session, request, &|step, bytes, total| tell(index, step, bytes, total)).await;
            (place, index, stored)
        });
    }
    let mut copied = copies.join_all().await;
    copied.sort_by_key(|(place, ..)| *place);
    copied.into_iter().map(|(_, index, file)| Ok((index, file?))).collect()
}

/// Whether a node has a file of a model, complete or not.
///
/// # Errors
/// The node cannot list its files.
pub async fn has(session: &Session, model: &str) -> Result<bool, Fault> {
    let (held, parts) = (models::list(session).await?, files_of(model));
    Ok(held.iter().any(|file| parts.contains(&file.model)))
}

/// Deletes a model, with all its files, on these nodes; nodes without it are left out. Returns the names of the nodes that
/// had it.
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
