//! Checks whether a member could serve a topology: that it still holds the weights that the topology was committed
//! with, and that its build can be linked to those of the other members. Before recovery brings the topology up again,
//! and before a vote on a topology that the member joins.
use std::{sync::Arc, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::{ContentRoot, MemberIndex, ModelIdentity},
};
use protocol::{
    handshake::{Identity, RankBuild},
    message::{RequestBody, ResponseBody},
    models::{ModelsRequest, ModelsResponse},
    session::Session,
};
use topology::{Role, Topology};

/// Longest silence of a member that hashes its file.
const WORD: Duration = Duration::from_secs(60);
/// The wire version since which nodes report the content hash of a model.
const VERSION: u16 = 5;

/// A model file that a member needs.
#[derive(Debug, PartialEq, Eq)]
struct NeededFile {
    model: String,
    identity: ModelIdentity,
    content: Option<ContentRoot>,
}

/// The nodes to which a member may be linked.
pub(super) struct OtherMembers {
    /// This node.
    pub(super) own: Identity,
    /// Sessions with others. Members that do not answer have none.
    pub(super) sessions: Vec<Arc<Session>>,
}

/// Checks the member at the other end of a session.
///
/// # Errors
/// The member runs a build that cannot be linked to one of the others, holds other weights, cannot read a file, or is
/// silent for too long.
pub(super) async fn check(topology: &Topology, others: &OtherMembers, session: Arc<Session>) -> Result<(), Fault> {
    check_build(topology, RankBuild::own(&others.own), session.rank())?;
    for other in &others.sessions {
        check_build(topology, other.rank(), session.rank())?;
    }
    for file in needed(topology, &session.identity.name) {
        check_file(file, &session).await?;
    }
    Ok(())
}

/// Refuses a member whose link to another one would be refused: when links are opened, the previous engines have already
/// stopped. Replicas that have no links may run different builds.
fn check_build(topology: &Topology, other: RankBuild<'_>, member: RankBuild<'_>) -> Result<(), Fault> {
    match (index(topology, &other.identity.name), index(topology, &member.identity.name)) {
        (Some(from), Some(to)) if topology.are_linked(from, to) => other.check_link(member),
        _ => Ok(()),
    }
}

fn index(topology: &Topology, node: &str) -> Option<MemberIndex> {
    let index = topology.members.iter().position(|member| member.name == node)?;
    Some(MemberIndex(index as u16))
}

/// The files that a member loads: the model, and the draft model unless the member only computes prompts.
fn needed(topology: &Topology, member: &str) -> Vec<NeededFile> {
    let (model, identity, content) = (topology.model.clone(), topology.identity, topology.content);
    let mut files = vec![NeededFile { model, identity, content }];
    let drafts = index(topology, member).is_none_or(|member| topology.place(member).role != Role::Prefill);
    if let Some(draft) = topology.draft.as_ref().filter(|draft| drafts && draft.model != topology.model) {
        let (model, identity, content) = (draft.model.clone(), draft.identity, draft.content);
        files.push(NeededFile { model, identity, content });
    }
    files
}

/// Requests the content hash of a member's file and compares it; the member hashes the file again if it changed. If the
/// hash is unknown, the identity of the file's header is compared.
async fn check_file(file: NeededFile, session: &Session) -> Result<(), Fault> {
    let NeededFile { model, identity, content } = file;
    let Some(expected) = content.filter(|_| session.version >= VERSION) else {
        return check_identity(model, identity, session).await;
    };
    let ask = ModelsRequest::Content { model: model.clone() };
    let mut reply = session.ask(RequestBody::Models(Box::new(ask))).await?;
    loop {
        let answer = reply.next("its model file", WORD).await;
        if answer.is_err() {
            // Its turn must not come before that of the next attempt.
            let _ = session.cancel(reply.id).await;
        }
        let ResponseBody::Models(response) = answer? else { return Err(session.unexpected()) };
        match *response {
            ModelsResponse::Working { .. } => {}
            ModelsResponse::Content(actual) if actual == expected => return Ok(()),
            ModelsResponse::Content(actual) => {
                let kind =
                    FaultKind::ContentDiffers { model, expected: Box::new(expected), actual, holders: String::new() };
                return Err(Fault::new(&session.identity.name, kind));
            }
            _ => return Err(session.unexpected()),
        }
    }
}

async fn check_identity(model: String, expected: ModelIdentity, session: &Session) -> Result<(), Fault> {
    let mut reply = session.ask(RequestBody::Identify { model: model.clone() }).await?;
    match reply.next("reading its model file", WORD).await? {
        ResponseBody::Model(card) if card.identity == expected => Ok(()),
        ResponseBody::Model(card) => {
            let kind = FaultKind::ModelDiffers { model, expected, actual: card.identity };
            Err(Fault::new(&session.identity.name, kind))
        }
        _ => Err(session.unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use common::{units::Bytes, version::WIRE_HIGHEST};
    use protocol::{BUILD, NUMERIC_VERSION};
    use topology::{Draft, Layout};

    use super::*;
    use crate::node::tests::topology;

    fn identity(name: &str, numeric: u32) -> Identity {
        let (name, build, machine) = (name.into(), BUILD.into(), String::new());
        Identity { name, build, numeric, machine, cores: Vec::new() }
    }

    #[test]
    fn member_of_another_build_joins_only_where_it_has_no_links() {
        let is_refused = |layout: &str, other: &str, numeric: u32, highest: u16| {
            let held = Topology { layout: layout.parse().expect("a layout"), ..topology(4) };
            let (other, member) = (identity(other, NUMERIC_VERSION), identity("pi4", numeric));
            check_build(&held, RankBuild::own(&other), RankBuild { identity: &member, highest }).is_err()
        };
        assert!(!is_refused("tp4", "pi1", NUMERIC_VERSION, WIRE_HIGHEST));
        assert!(is_refused("tp4", "pi1", NUMERIC_VERSION, WIRE_HIGHEST - 1), "it was off during an upgrade");
        assert!(is_refused("tp4", "pi1", NUMERIC_VERSION, WIRE_HIGHEST + 1), "it was upgraded alone");
        assert!(is_refused("pp2-tp2", "pi1", NUMERIC_VERSION + 1, WIRE_HIGHEST), "its sums differ");
        // An upgrade restarts one replica after another.
        assert!(!is_refused("dp2-tp2", "pi1", NUMERIC_VERSION - 1, WIRE_HIGHEST - 1));
        assert!(is_refused("dp2-tp2", "pi3", NUMERIC_VERSION, WIRE_HIGHEST + 1), "a replica without this node");
        assert!(!is_refused("tp4", "pi9", NUMERIC_VERSION, WIRE_HIGHEST + 1), "no member");
        assert!(is_refused("prefill:tp2+decode:tp2", "pi1", NUMERIC_VERSION, WIRE_HIGHEST - 1), "they have links");
    }

    #[test]
    fn draft_model_is_compared_like_the_model() {
        let content = Some(ContentRoot([7; 32]));
        let (identity, weights, block) = (ModelIdentity([5; 32]), Bytes(1), Bytes(1));
        let draft = Draft { model: "small.gguf".into(), identity, content, weights, block };
        let mut held = Topology { layout: Layout::tensor_parallel(3), draft: Some(Box::new(draft)), ..topology(3) };
        let files = needed(&held, "pi3");
        assert_eq!(files[1], NeededFile { model: "small.gguf".into(), identity, content });
        let names =
            |held: &Topology, member: &str| needed(held, member).into_iter().map(|file| file.model).collect::<Vec<_>>();
        held.layout = "prefill:tp1+decode:tp2".parse().expect("a layout");
        assert_eq!((names(&held, "pi1").len(), names(&held, "pi3").len()), (1, 2), "prompts are computed without it");
        // The predictor is in the file of the model.
        held.draft.as_mut().expect("it is set").model = held.model.clone();
        assert_eq!(names(&held, "pi3"), ["m.gguf"]);
    }
}
