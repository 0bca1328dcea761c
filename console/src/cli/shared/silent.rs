//! Nodes that do not answer. What they hold is unknown, so commands name them instead of concluding that there is
//! nothing.
use common::fault::Fault;
use serde_json::Value;

use crate::{
    cli::{Failure, shared::output},
    client::cluster::Cluster,
};

/// What to do about a node that will never answer again.
pub(crate) const LEAVE_OUT: &str = "leave a node that is gone for good out of --nodes or of the saved cluster (console \
                                    cluster add NAME NODE..)";

/// A node that does not answer.
#[derive(Clone, Debug)]
struct SilentNode {
    /// Its name, or its address if no other node reports a name; safe to print.
    name: String,
    address: String,
    fault: Fault,
}

/// The nodes that do not answer, except excluded ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct SilentNodes(Vec<SilentNode>);

impl SilentNodes {
    /// Those of a cluster.
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let nodes = cluster.silent().filter_map(|node| {
            let fault = node.answer.as_ref().err()?.clone();
            Some(SilentNode { name: output::clean(cluster.name(node)), address: node.address.clone(), fault })
        });
        Self(nodes.collect())
    }

    /// Without the node at this address, which need not answer.
    pub(crate) fn except(mut self, address: &str) -> Self {
        self.0.retain(|node| node.address != address);
        self
    }

    /// Whether all nodes answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of each.
    pub(crate) fn each(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|node| node.name.as_str())
    }

    /// Their names, separated by commas.
    pub(crate) fn names(&self) -> String {
        self.each().collect::<Vec<_>>().join(", ")
    }

    /// Why each does not answer, as a list of objects.
    pub(crate) fn objects(&self) -> Value {
        self.0.iter().map(|node| Failure::error_object(&node.fault)).collect()
    }

    /// Why each does not answer, with the next step.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.iter().map(|node| Failure::line(&node.name, &node.fault)).collect()
    }

    /// Names them on standard error, with what they may do.
    pub(crate) fn note(&self, may: &str) {
        if !self.is_empty() {
            output::note(&format!("no answer from {}, which may {may}", self.names()));
        }
    }

    /// Makes sure that all nodes answer, before a command concludes that none holds what it needs. `may`: what a silent
    /// node may do.
    ///
    /// # Errors
    /// A node does not answer.
    pub(crate) fn ensure_none(self, may: &str) -> Result<(), Failure> {
        let names = self.names();
        let mut faults = self.0.into_iter().map(|node| node.fault);
        let Some(fault) = faults.next() else { return Ok(()) };
        let next = format!("{}: {names} may {may}; {LEAVE_OUT}", fault.next());
        Err(Failure::Partial { fault: Box::new(fault), others: faults.collect(), done: Vec::new(), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn silent_nodes_are_named_unless_they_are_excluded() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let away = ["127.0.0.1:1", "127.0.0.1:2"];
        let mut cluster = Cluster::dial(&[node.address.clone(), away[0].into(), away[1].into()]).await;
        let silent = SilentNodes::of(&cluster);
        assert_eq!(silent.names(), away.join(", "));
        assert_eq!(silent.objects()[1]["node"], away[1]);
        assert!(silent.lines()[0].starts_with("127.0.0.1:1: cannot be reached"), "{:?}", silent.lines());
        let refused = silent.clone().ensure_none("hold a topology").expect_err("two nodes do not answer");
        let error = refused.json()["error"].take();
        assert_eq!((refused.code(), &error["others"][0]["node"]), (3, &away[1].into()), "{error}");
        let next = error["next"].as_str().unwrap_or_default();
        assert!(next.contains("127.0.0.1:1, 127.0.0.1:2 may hold a topology"), "{next}");
        silent.except(away[0]).except(away[1]).ensure_none("hold a topology").expect("no other node is silent");
        cluster.exclusions.say("pi2", away[0], Some("dead"), "me@here");
        cluster.exclusions.cordon("pi3", away[1], "fan", "me@here");
        assert_eq!(SilentNodes::of(&cluster).names(), "pi3", "a cordoned node may still serve");
    }
}
