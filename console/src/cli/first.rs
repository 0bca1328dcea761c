//! The first time: no node is named, kept or heard. Asks for the address of one node and learns the others from it.
use std::io::stdin;

use super::{Failure, output};
use crate::client::{cluster::Cluster, with_port};

/// The nodes of the cluster that somebody names one node of.
///
/// # Errors
/// Nobody names one, or it does not answer.
pub(super) async fn ask() -> Result<Vec<String>, Failure> {
    output::note(
        "No node is known, and none announces itself (mDNS). console demo shows all of it on this machine alone.",
    );
    output::note_part("Address of one node, or Enter to leave: ");
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(anyhow::Error::from)?.map_err(anyhow::Error::from)?;
    if answer.trim().is_empty() {
        let next = "console clusters add NAME NODE..; or console --nodes A,B,..; or console demo";
        return Err(Failure::Usage { message: "no nodes named".into(), next });
    }
    let nodes = learn(answer.trim()).await?;
    output::note(&format!("{} nodes; console clusters add NAME {} keeps them", nodes.len(), nodes.join(",")));
    Ok(nodes)
}

/// A node, and those that it knows: the members of what it runs, in their order, and those that are out.
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
    async fn a_node_that_runs_nothing_is_a_cluster_of_one_and_one_that_is_away_is_none() {
        let node = FakeNode::start("pi1", Script::default()).await;
        assert_eq!(learn(&node.address).await.ok(), Some(vec![node.address.clone()]));
        assert_eq!(learn("127.0.0.1:1").await.map_err(|failure| failure.code()), Err(3));
    }
}
