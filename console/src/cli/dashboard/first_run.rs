//! First run of the dashboard: no nodes are given, saved or discovered. Asks for the address of one node and gets the
//! others from it.
use crate::cli::{
    Failure,
    shared::{confirm::ask_line, output},
};
use crate::client::{cluster::Cluster, with_port};

/// Asks for the address of one node and returns the nodes of its cluster.
///
/// # Errors
/// No address was entered, or the node does not answer.
pub(crate) async fn ask() -> Result<Vec<String>, Failure> {
    output::note(
        "No nodes are given or saved, and none announces itself (mDNS). To try Bramble on this machine: console demo",
    );
    output::note("To set up new nodes: console up");
    let answer = ask_line("Address of a node (Enter to quit): ").await?;
    if answer.is_empty() {
        let next = "run console cluster add NAME NODE.., console --nodes A,B,.. or console demo";
        return Err(Failure::Usage { message: "no nodes given".into(), next });
    }
    let nodes = learn(&answer).await?;
    output::note(&format!("{} nodes; save them with console cluster add NAME {}", nodes.len(), nodes.join(",")));
    Ok(nodes)
}

/// The addresses of the members of the node's running topology, in order, of the excluded nodes, and of the node.
async fn learn(address: &str) -> Result<Vec<String>, Failure> {
    let cluster = Cluster::dial(&[with_port(address)]).await;
    cluster.nodes[0].session()?;
    let members = cluster.topology().map_or_else(Vec::new, |(topology, _)| {
        topology.members.iter().map(|member| member.address.clone()).collect::<Vec<_>>()
    });
    let out = cluster.exclusions.0.iter().filter(|entry| entry.reason.is_some()).map(|entry| entry.address.clone());
    let mut nodes: Vec<String> = Vec::new();
    for node in members.into_iter().chain(out).chain([with_port(address)]) {
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn idle_node_is_a_cluster_of_one_and_unreachable_node_fails() {
        let node = FakeNode::start("pi1", Script::default()).await;
        assert_eq!(learn(&node.address).await.ok(), Some(vec![node.address.clone()]));
        assert_eq!(learn("127.0.0.1:1").await.map_err(|failure| failure.code()), Err(3));
    }
}
