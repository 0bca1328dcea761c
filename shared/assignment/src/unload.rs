//! Unloads a topology from its nodes, and introduces nodes to each other.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{RequestBody, ResponseBody, Unload},
    recovery::Committed,
    session::Session,
};
use telemetry::NodeReport;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    assign::{report, reports},
    identify::unexpected,
};

/// Time limit for a node to write its records.
const WRITE: Duration = Duration::from_secs(10);
/// Longest wait for the memory of unloaded shards.
const FREED: Duration = Duration::from_secs(5);
/// Interval of reports meanwhile; nodes measure their memory once a second.
const LOOK: Duration = Duration::from_millis(250);
/// One part in so many of a node's memory matters little. Pages of a shard that were never written are not freed.
const LITTLE: u64 = 8;
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
    let (mut first, mut faults) = (None, Vec::new());
    if if_idle {
        for head in committed.topology.layout.heads() {
            let name = &members[head.index()].name;
            let Some(session) = of(name) else { return Err(away(name)) };
            match report(session).await?.requests {
                0 => drop(first.get_or_insert(session)),
                count => return Err(Fault::new(name, FaultKind::RequestsRun { count })),
            }
        }
        // A request may have arrived meanwhile. Only one head can refuse: from then on the topology ends, even if it cannot
        // store that.
        if let Some(session) = first {
            match carry_out(session, RequestBody::Unload(Unload { epoch, hash, if_idle })).await {
                Err(fault) if matches!(fault.kind, FaultKind::StateUnwritable { .. }) => faults.push(fault),
                other => other?,
            }
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
    faults.extend(asked.join_all().await.into_iter().filter_map(Result::err));
    if first.is_none() && faults.len() == count {
        return Err(faults.pop().unwrap_or_else(|| away("console")));
    }
    Ok(faults)
}

/// Waits, at most some seconds, for the memory of shards that were unloaded since these reports: a node answers before it
/// frees its shard, and an assignment adapts the next context to the memory that the nodes report.
///
/// # Errors
/// A node does not answer.
pub async fn wait_for_memory(sessions: &[Arc<Session>], before: &[NodeReport]) -> Result<(), Fault> {
    let deadline = Instant::now() + FREED;
    while !is_freed(before, &reports(sessions).await?) && Instant::now() < deadline {
        sleep(LOOK).await;
    }
    Ok(())
}

/// Whether each node reports most of the memory that its shard occupied before.
fn is_freed(before: &[NodeReport], now: &[NodeReport]) -> bool {
    before.iter().zip(now).all(|(before, now)| {
        let Some((expected, old)) = before.free_for_next_shard().zip(before.health.memory) else { return true };
        let freed = expected.0.saturating_sub(old.available.0);
        let least = expected.0 - freed / LITTLE;
        freed <= old.available.0 / LITTLE || now.health.memory.is_none_or(|memory| memory.available.0 >= least)
    })
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

#[cfg(test)]
mod tests {
    use common::units::Bytes;
    use telemetry::health::MemoryUse;

    use super::*;
    use crate::fixtures::idle_report;

    #[test]
    fn memory_of_unloaded_shards_is_awaited_on_each_node() {
        let report = |available: u64, shard: u64| {
            let mut report = idle_report("pi1");
            report.health.memory = Some(MemoryUse { available: Bytes(available), ..MemoryUse::default() });
            (report.shard, report.memory_resident) = (Bytes(shard), Bytes(shard));
            report
        };
        let before = [report(100, 800), report(100, 800), report(500, 50)];
        for (first, second, is_done) in [(100, 100, false), (900, 500, false), (500, 900, false), (800, 900, true)] {
            let now = [report(first, 0), report(second, 0), report(480, 0)];
            assert_eq!(is_freed(&before, &now), is_done, "{first}, {second}");
        }
        assert!(is_freed(&before[2..], &before[2..]), "it is little");
    }
}
