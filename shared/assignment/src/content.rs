//! Compares the model files of the nodes of an assignment. All nodes are asked at once before anything is prepared,
//! so that no node holds a prepared shard while another still hashes its file.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::ContentRoot,
    units::Bytes,
};
use protocol::{
    message::{RequestBody, ResponseBody},
    models::{ModelsRequest, ModelsResponse},
    session::Session,
};
use telemetry::LoadProgress;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    event::AssignEvent,
    identify::{identify, unexpected},
};

/// Longest time without a message from a node that hashes its file.
const PATIENCE: Duration = Duration::from_secs(120);
/// The first wire version in which nodes report the content of a model.
const VERSION: u16 = 5;

/// The content of the model, which must be the same on all nodes; `None` if one of the nodes runs release 0.1.
///
/// # Errors
/// A node fails, or the nodes hold different files; the fault lists which node has which file.
pub(super) async fn agree(
    sessions: &[Arc<Session>],
    model: &str,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Option<ContentRoot>, Fault> {
    if sessions.iter().any(|session| session.version < VERSION) {
        return Ok(None);
    }
    let (progress, mut progressed) = mpsc::channel(64);
    let mut asked = JoinSet::new();
    for (node, session) in sessions.iter().enumerate() {
        let (session, progress, model) = (Arc::clone(session), progress.clone(), model.to_owned());
        asked.spawn(async move {
            content(&session, model, |load| {
                // If the queue is full, this progress update is dropped; the next one supersedes it.
                let _ = progress.try_send((node, load));
            })
            .await
            .map(|root| (node, root))
        });
    }
    drop(progress);
    let mut roots = vec![ContentRoot::default(); sessions.len()];
    loop {
        tokio::select! {
            Some((node, progress)) = progressed.recv() => tell(AssignEvent::Loading { node, progress }),
            done = asked.join_next() => match done {
                Some(Ok(answer)) => {
                    let (node, root) = answer?;
                    roots[node] = root;
                }
                Some(Err(error)) => {
                    return Err(Fault::new("console", FaultKind::Internal { reason: error.to_string() }));
                }
                None => break,
            },
        }
    }
    let names: Vec<&str> = sessions.iter().map(|session| session.identity.name.as_str()).collect();
    match odd_one(&names, &roots, model) {
        None => Ok(roots.first().copied()),
        Some((node, kind)) => Err(differs(&sessions[0], &sessions[node], kind).await),
    }
}

async fn content(session: &Session, model: String, told: impl Fn(LoadProgress)) -> Result<ContentRoot, Fault> {
    let mut reply = session.ask(RequestBody::Models(Box::new(ModelsRequest::Content { model }))).await?;
    loop {
        match reply.next("hashing the model file", PATIENCE).await? {
            ResponseBody::Models(response) => match *response {
                ModelsResponse::Working { done, total, .. } => {
                    told(LoadProgress { done, total: total.unwrap_or(Bytes(0)) });
                }
                ModelsResponse::Content(root) => return Ok(root),
                other => return Err(unexpected(session, &ResponseBody::Models(Box::new(other)))),
            },
            other => return Err(unexpected(session, &other)),
        }
    }
}

/// The first node whose content differs from that of most nodes (without a majority: from the head's), and a fault
/// that lists which node has which content.
fn odd_one(names: &[&str], roots: &[ContentRoot], model: &str) -> Option<(usize, FaultKind)> {
    let mut holders: BTreeMap<ContentRoot, Vec<&str>> = BTreeMap::new();
    for (root, name) in roots.iter().zip(names) {
        holders.entry(*root).or_default().push(name);
    }
    let most = holders.iter().find(|(_, nodes)| 2 * nodes.len() > names.len()).map(|(root, _)| *root);
    let expected = most.or(roots.first().copied())?;
    let node = roots.iter().position(|root| *root != expected)?;
    let told: Vec<String> = holders.iter().map(|(root, nodes)| format!("{root} on {}", nodes.join(", "))).collect();
    let holders = format!("; {}", told.join("; "));
    let (model, expected) = (model.into(), Box::new(expected));
    Some((node, FaultKind::ContentDiffers { model, expected, actual: roots[node], holders }))
}

/// The fault of a node with a different file. If even the headers differ, it names their identities.
async fn differs(head: &Session, odd: &Session, kind: FaultKind) -> Fault {
    let name = &odd.identity.name;
    let FaultKind::ContentDiffers { model, .. } = &kind else { return Fault::new(name, kind) };
    match (identify(head, model).await, identify(odd, model).await) {
        (Ok(one), Ok(two)) if one.identity != two.identity => {
            let (expected, actual) = (one.identity, two.identity);
            Fault::new(name, FaultKind::ModelDiffers { model: model.clone(), expected, actual })
        }
        _ => Fault::new(name, kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(roots: &[u8], odd: Option<usize>, parts: &[&str]) {
        let names = ["pi1", "pi2", "pi3", "pi4"];
        let roots: Vec<ContentRoot> = roots.iter().map(|byte| ContentRoot([*byte; 32])).collect();
        let found = odd_one(&names[..roots.len()], &roots, "m.gguf");
        assert_eq!(found.as_ref().map(|(node, _)| *node), odd);
        let text = found.map_or_else(String::new, |(_, kind)| kind.to_string());
        parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    }

    #[test]
    fn node_that_differs_from_the_majority_is_named() {
        check(&[1, 1, 1], None, &[]);
        check(&[1], None, &[]);
        check(
            &[1, 2, 1],
            Some(1),
            &["0202020202020202, expected 0101010101010101", "pi1, pi3; 0202020202020202 on pi2"],
        );
        check(&[2, 1, 1], Some(0), &["content 0202020202020202"]);
        // Without a majority, the head's file is the reference.
        check(&[1, 2], Some(1), &["expected 0101010101010101"]);
        check(&[1, 2, 2, 1], Some(1), &["expected 0101010101010101"]);
    }
}
