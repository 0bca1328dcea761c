//! Sessions with the nodes of a command, and what an assignment prints.
use std::sync::Arc;

use crate::cli::{
    Failure,
    shared::{output, progress},
};
use crate::{
    client::{
        assign::{Assigned, assign},
        cluster::Cluster,
        event::AssignEvent,
        session::Session,
        with_port,
    },
    operator::desired::DesiredTopology,
};

/// Opens a session with every node that is not excluded, in order.
pub(crate) async fn open(nodes: &[String]) -> Result<Vec<Arc<Session>>, Failure> {
    Ok(open_included(nodes).await?.0)
}

/// As [`open`], also with the names of the excluded nodes.
pub(crate) async fn open_included(nodes: &[String]) -> Result<(Vec<Arc<Session>>, Vec<String>), Failure> {
    let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let cluster = Cluster::dial(&addresses).await;
    let mut out = Vec::new();
    for entry in cluster.out() {
        let (node, by) = (output::clean(&entry.node), output::clean(&entry.by));
        let reason = output::clean(entry.reason.as_deref().unwrap_or(""));
        output::note(&format!("{node} is {}: {reason} ({by})", entry.word()));
        out.push(node);
    }
    Ok((cluster.usable()?, out))
}

/// Assigns a topology, with progress on standard error if it is a terminal.
///
/// # Errors
/// A node refuses or is lost.
pub async fn assign_and_tell(sessions: &[Arc<Session>], wanted: &DesiredTopology) -> Result<Assigned, Failure> {
    let assigned = assign(sessions, wanted, &|event| tell(sessions, event)).await;
    progress::clear();
    Ok(assigned?)
}

/// Prints the progress of an assignment.
fn tell(sessions: &[Arc<Session>], event: AssignEvent) {
    event.pause().iter().for_each(|pause| output::note(&output::clean(pause)));
    if let AssignEvent::Loading { node, progress: loaded } = event {
        let what = format!("{} loads {}", output::clean(&sessions[node].identity.name), loaded.total);
        progress::tell(&what, loaded.done.0, loaded.total.0, false);
    }
}
