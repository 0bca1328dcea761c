//! Unloads a topology from its nodes, and introduces nodes to each other.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{RequestBody, ResponseBody, Unload},
    recovery::Committed,
    session::Session,
};
use tokio::task::JoinSet;

use crate::identify::unexpected;

/// Time limit for a node to write its records.
const WRITE: Duration = Duration::from_secs(10);
/// First wire version whose nodes unload topologies and keep neighbours.
pub const VERSION: u16 = 12;

/// Unloads a topology. The heads come first: with `if_idle`, one that runs requests refuses, and nothing changes as long as
/// the topology has one replica. Members that do not answer learn it from the others when they are back; their faults are
/// returned.
///
/// # Errors
/// A head does not answer, is too old, or runs requests.
pub async fn unload(sessions: &[Arc<Session>], committed: &Committed, if_idle: bool) -> Result<Vec<Fault>, Fault> {
    let (epoch, hash) = committed.name();
    let unload = Unload { epoch, hash, if_idle };
    let of = |name: &str| sessions.iter().find(|session| session.identity.name == name);
    let members = &committed.topology.members;
    let heads: Vec<usize> = committed.topology.layout.heads().map(|head| head.index()).collect();
    for head in &heads {
        let name = &members[*head].name;
        let Some(session) = of(name) else {
            return Err(Fault::new(name, FaultKind::NotServing { state: "away".into() }));
        };
        carry_out(session, RequestBody::Unload(unload)).await?;
    }
    let others = members.iter().enumerate().filter(|(index, _)| !heads.contains(index));
    let mut asked = JoinSet::new();
    for session in others.filter_map(|(_, member)| of(&member.name)) {
        let (session, unload) = (Arc::clone(session), Unload { if_idle: false, ..unload });
        asked.spawn(async move { carry_out(&session, RequestBody::Unload(unload)).await });
    }
    Ok(asked.join_all().await.into_iter().filter_map(Result::err).collect())
}

/// Gives each node the addresses of the others, so that the gateway of each can answer for the models of all. Older nodes
/// are left out. Returns the faults of nodes that cannot store them.
pub async fn introduce(sessions: &[Arc<Session>], addresses: &[String]) -> Vec<Fault> {
    let mut asked = JoinSet::new();
    for session in sessions.iter().filter(|session| session.version >= VERSION) {
        let session = Arc::clone(session);
        let others = addresses.iter().filter(|address| **address != session.address).cloned().collect();
        asked.spawn(async move { carry_out(&session, RequestBody::Neighbours(others)).await });
    }
    asked.join_all().await.into_iter().filter_map(Result::err).collect()
}

async fn carry_out(session: &Session, body: RequestBody) -> Result<(), Fault> {
    if session.version < VERSION {
        let what = body.name().into();
        let kind = FaultKind::PeerOlder { version: session.version, what };
        return Err(Fault::new(&session.identity.name, kind));
    }
    let mut reply = session.ask(body).await?;
    match reply.next("writing the node's records", WRITE).await? {
        ResponseBody::Done => Ok(()),
        other => Err(unexpected(session, &other)),
    }
}
