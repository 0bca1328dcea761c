//! The topologies next to the one that a command shows: a cluster serves several models on different nodes.
use serde_json::{Value, json};

use crate::{cli::shared::output, client::cluster::Cluster};

/// All groups but the first one, which [`Cluster::topology`] returns, as sentences with the command that shows them.
pub(crate) fn lines(cluster: &Cluster, command: &str) -> Vec<String> {
    let others = cluster.groups().into_iter().skip(1).map(|group| {
        let (topology, members) = (group.topology, &group.topology.members);
        let [names, addresses] = [
            members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", "),
            members.iter().map(|member| member.address.as_str()).collect::<Vec<_>>().join(","),
        ];
        let (layout, model) = (topology.layout, &topology.model);
        format!("also loaded: {layout} with {model} on {names}: {command} --nodes {addresses}")
    });
    others.map(|line| output::clean(&line)).collect()
}

/// All groups but the first one as objects.
pub(crate) fn objects(cluster: &Cluster) -> Value {
    let others = cluster.groups().into_iter().skip(1).map(|group| {
        let nodes: Vec<&str> = group.topology.members.iter().map(|member| member.name.as_str()).collect();
        let (layout, model) = (group.topology.layout.to_string(), &group.topology.model);
        json!({"topology": layout, "model": model, "nodes": nodes, "serving": group.is_serving()})
    });
    others.collect()
}

#[cfg(test)]
mod tests {
    use assignment::fixtures;
    use topology::{Layout, Member, Topology};

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn topologies_after_the_first_one_are_named() {
        let (mut nodes, sample) = (Vec::new(), fixtures::topology());
        for (name, model) in [("pi1", "a.gguf"), ("pi2", "b.gguf")] {
            let node = FakeNode::start(name, Script::default()).await;
            let member = Member { name: name.into(), address: node.address.clone(), ..sample.members[0].clone() };
            let (layout, members) = (Layout::tensor_parallel(1), vec![member]);
            node.serves(&Topology { layout, members, model: model.into(), ..sample.clone() }, 0, true);
            nodes.push(node);
        }
        let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
        let cluster = Cluster::dial(&addresses).await;
        let (first, _) = cluster.topology().expect("two are loaded");
        let other = if first.model == "a.gguf" { "b.gguf" } else { "a.gguf" };
        let lines = lines(&cluster, "console sync");
        assert!(matches!(&lines[..], [line] if line.contains(&format!("tp1 with {other} on pi"))), "{lines:?}");
        assert!(lines[0].contains(": console sync --nodes 127.0.0.1:"), "{lines:?}");
        assert_eq!(objects(&cluster)[0]["model"], other);
        let alone = Cluster::dial(&addresses[..1]).await;
        assert_eq!((super::lines(&alone, "x"), objects(&alone)), (Vec::new(), json!([])));
    }
}
