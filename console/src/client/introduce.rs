//! Introduces the nodes of a cluster to each other after an assignment, so that the HTTP API of each can answer for the models
//! of all.
use std::sync::Arc;

use assignment::unload::introduce;
use common::fault::Fault;

use super::{
    cluster::{Cluster, ClusterNode},
    clusters::{Clusters, default_path},
    session::Session,
    with_port,
};

impl Cluster {
    /// Introduces all nodes of this cluster, and of saved clusters that share a node with it, to each other. Returns the faults
    /// of nodes that cannot store that.
    pub async fn introduce(&self) -> Vec<Fault> {
        let mut addresses: Vec<String> = self.nodes.iter().map(|node| node.address.clone()).collect();
        let saved = default_path().and_then(|path| Clusters::read(&path).ok()).unwrap_or_default();
        let missing = addresses_beside(&addresses, &saved);
        let more = Self::dial(&missing).await;
        addresses.extend(missing);
        let nodes = self.nodes.iter().chain(&more.nodes);
        let sessions: Vec<Arc<Session>> = nodes.filter_map(|node: &ClusterNode| node.session().ok()).collect();
        introduce(&sessions, &addresses).await
    }
}

/// The other nodes of saved clusters that share a node with these.
fn addresses_beside(addresses: &[String], saved: &Clusters) -> Vec<String> {
    let clusters = saved.all.values().map(|kept| kept.nodes.iter().map(|node| with_port(node)).collect::<Vec<_>>());
    let shared = clusters.filter(|nodes| nodes.iter().any(|node| addresses.contains(node)));
    let mut beside: Vec<String> = shared.flatten().filter(|node| !addresses.contains(node)).collect();
    beside.sort_unstable();
    beside.dedup();
    beside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::clusters::Kept;

    #[test]
    fn nodes_of_a_saved_cluster_belong_together() {
        let kept = |nodes: &[&str]| Kept { nodes: nodes.iter().map(|node| (*node).to_owned()).collect(), key: None };
        let mut saved = Clusters::default();
        saved.all.insert("home".into(), kept(&["pi1", "pi2", "pi3:9998"]));
        saved.all.insert("lab".into(), kept(&["lab1", "lab2"]));
        assert_eq!(addresses_beside(&["pi2:9999".into()], &saved), ["pi1:9999", "pi3:9998"]);
        assert!(addresses_beside(&["pi3:9999".into()], &saved).is_empty(), "of another port");
    }
}
