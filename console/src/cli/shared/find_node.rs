//! A node as an operator names it, and the progress of orders to nodes.
use crate::cli::{Failure, shared::output};
use crate::client::{
    cluster::Cluster,
    event::{AssignEvent, OperateEvent},
};

/// The index of a node by its name or address.
pub(crate) fn find(cluster: &Cluster, who: &str) -> Result<usize, Failure> {
    cluster.find(who).ok_or_else(|| {
        let names: Vec<String> = cluster.nodes.iter().map(|node| output::clean(cluster.name(node))).collect();
        let message = format!("no node {} among {}", output::clean(who), names.join(", "));
        Failure::Usage { message, next: "use one of these names, or add the node's address to --nodes" }
    })
}

/// Prints progress on standard error.
pub(crate) fn progress(event: &OperateEvent) {
    match event {
        OperateEvent::Told { node, out } => {
            let state = if *out { "excluded" } else { "included" };
            output::note(&format!("storing on all nodes: {} is {state}", output::clean(node)));
        }
        OperateEvent::NotKept(fault) => output::note(&format!(
            "{} cannot store the list of excluded nodes: {}",
            output::clean(&fault.node),
            output::clean(&fault.kind.to_string())
        )),
        OperateEvent::WaitsForRequests { count } => output::note(&format!("waiting for {count} requests to finish")),
        OperateEvent::Assign(AssignEvent::Committing) => output::note("the nodes open their links"),
        OperateEvent::Assign(event) => event.pause().iter().for_each(|pause| output::note(&output::clean(pause))),
        _ => {}
    }
}
