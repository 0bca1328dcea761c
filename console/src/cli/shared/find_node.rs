//! A node as an operator names it, and the progress of orders to nodes.
use crate::cli::{Failure, shared::output};
use crate::client::{
    cluster::Cluster,
    event::{AssignEvent, OperateEvent},
    with_port,
};

/// The index of a node by its name or address.
///
/// # Errors
/// No node has it, or none that answers: another one may have this name, but not an address that was not given.
pub(crate) fn find(cluster: &Cluster, who: &str) -> Result<usize, Failure> {
    if let Some(index) = cluster.find(who) {
        return Ok(index);
    }
    let names: Vec<String> = cluster.nodes.iter().map(|node| output::clean(cluster.name(node))).collect();
    let message = format!("no node {} among {}", output::clean(who), names.join(", "));
    let mut unnamed = cluster.nodes.iter().filter(|node| cluster.name(node) == node.address);
    match unnamed.find_map(|node| node.answer.as_ref().err()).filter(|_| !is_address(who)) {
        Some(fault) => {
            let next = format!("{}, or give the address of the node instead of its name: {message}", fault.next());
            Err(Failure::Advised { fault: Box::new(fault.clone()), next })
        }
        None => {
            let next = "use one of these names, or add the node's address to --nodes";
            Err(Failure::Usage { message, next })
        }
    }
}

/// Whether an operator has typed an address: an IP address, or a host with a port.
fn is_address(who: &str) -> bool {
    let address = with_port(who);
    address == who || address.parse::<std::net::SocketAddr>().is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn unknown_name_may_be_that_of_a_silent_node() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let found = |cluster: &Cluster, who: &str| find(cluster, who).map_err(|failure| failure.code());
        let mut cluster = Cluster::dial(std::slice::from_ref(&node.address)).await;
        assert_eq!((found(&cluster, "pi1"), found(&cluster, "pi2")), (Ok(0), Err(2)));
        let silent = "127.0.0.1:1";
        cluster = Cluster::dial(&[node.address.clone(), silent.into()]).await;
        assert_eq!((found(&cluster, silent), found(&cluster, "pi2")), (Ok(1), Err(3)));
        for address in ["127.0.0.2", "127.0.0.1:2", "[::1]:9999", "::1", "pi2:9999"] {
            assert_eq!(found(&cluster, address), Err(2), "{address} is not given");
        }
        cluster.exclusions.say("pi3", silent, Some("dead"), "me@here");
        assert_eq!((found(&cluster, "pi3"), found(&cluster, "pi2")), (Ok(1), Err(2)), "its name is known");
    }
}
