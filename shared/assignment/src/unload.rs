//! Unloads a topology from its nodes, and introduces nodes to each other.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{RequestBody, ResponseBody, Unload},
    recovery::Committed,
    session::Session,
};
use tokio::task::JoinSet;

use crate::{assign::report, identify::unexpected};

/// Time limit for a node to write its records.
const WRITE: Duration = Duration::from_secs(10);
/// First wire version whose nodes unload topologies and keep neighbours.
pub const VERSION: u16 = 12;

/// Unloads a topology. With `if_idle`, nothing changes unless all heads answer and run no requests; without it, running
/// requests are cancelled, and heads may be away. Members that do not answer learn it from the others when they are back;
/// the faults of those that refuse are returned.
///
/// # Errors
/// A head is away, too old or runs requests, or no member unloads the topology.
pub async fn unload(sessions: &[Arc<Session>], committed: &Committed, if_idle: bool) -> Result<Vec<Fault>, Fault> {
    let (epoch, hash) = committed.name();
    let of = |name: &str| sessions.iter().find(|session| session.identity.name == name);
    let members = &committed.topology.members;
    let mut first = None;
    if if_idle {
        for head in committed.topology.layout.heads() {
            let name = &members[head.index()].name;
            let Some(session) = of(name) else { return Err(away(name)) };
            match report(session).await?.requests {
                0 => drop(first.get_or_insert(session)),
                count => return Err(Fault::new(name, FaultKind::RequestsRun { count })),
            }
        }
        // A request may have arrived meanwhile. Only one head can refuse: from then on the topology ends.
        if let Some(session) = first {
            carry_out(session, RequestBody::Unload(Unload { epoch, hash, if_idle })).await?;
        }
    }
    let mut asked = JoinSet::new();
    for session in members.iter().filter_map(|member| of(&member.name)) {
        if first.is_none_or(|first| !Arc::ptr_eq(first, session)) {
            let (session, unload) = (Arc::clone(session), Unload { epoch, hash, if_idle: false });
            asked.spawn(async move { carry_out(&session, RequestBody::Unload(unload)).await });
        }
    }
    let count = asked.len();
    let mut faults: Vec<Fault> = asked.join_all().await.into_iter().filter_map(Result::err).collect();
    if first.is_none() && faults.len() == count {
        return Err(faults.pop().unwrap_or_else(|| away("console")));
    }
    Ok(faults)
}

fn away(node: &str) -> Fault {
    Fault::new(node, FaultKind::NotServing { state: "away".into() })
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
