//! The nodes under test and the report about them; what they ran before is saved and restored.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use assignment::{desired::DesiredTopology, unload::unload};
use protocol::recovery::Committed;
use tokio::time::{Instant, sleep};
use topology::Topology;

use super::file::ReportFiles;
use crate::{
    cli::{
        Failure,
        shared::{output, sessions::assign_and_tell},
    },
    client::{
        cluster::{Cluster, ClusterNode},
        host,
        session::Session,
        with_port,
    },
    operator::acceptance::{AcceptanceReport, anonymous::without_addresses, report::ReplacedTopology},
};

/// Time limit for a node that was lost on purpose to return.
const RETURN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 120 });
/// Time limit for a node to release its shard.
const SETTLE: Duration = Duration::from_secs(5);
/// Interval between two dials.
const DIAL: Duration = Duration::from_millis(200);

/// The nodes under test.
pub(super) struct TestBed {
    /// Names and addresses, in the order in which they were given.
    pub(super) nodes: Vec<(String, String)>,
    /// Addresses of all nodes that a replaced topology needs, those above included.
    known: Vec<String>,
    pub(super) report: AcceptanceReport,
    files: ReportFiles,
    /// Whether a topology was replaced or assigned.
    is_touched: bool,
}

impl TestBed {
    pub(super) fn new(nodes: Vec<(String, String)>, report: AcceptanceReport, files: ReportFiles) -> Self {
        let known = nodes.iter().map(|(_, address)| address.clone()).collect();
        // A test that was interrupted may have left a topology of its own.
        let is_touched = !report.replaced.is_empty();
        Self { nodes, known, report, files, is_touched }
    }

    /// Writes the report.
    pub(super) fn write(&self) -> Result<(), Failure> {
        self.files.write(&self.report)
    }

    /// Whether the topologies that an earlier run replaced, and no others, serve on the nodes under test.
    pub(super) fn serves_replaced(&self, cluster: &Cluster) -> bool {
        let held = self.held(cluster);
        let found: Vec<ReplacedTopology> = held.iter().map(|(topology, _)| replaced(topology, cluster)).collect();
        held.iter().all(|(topology, _)| cluster.has_serving(topology))
            && found.len() == self.report.replaced.len()
            && self.report.replaced.iter().all(|one| found.contains(one))
    }

    /// Drops the record of the topologies that an earlier run replaced: [`Self::restore`] leaves the nodes alone,
    /// unless [`Self::clear`] has recorded the running topologies by then.
    pub(super) fn forget_replaced(&mut self) {
        self.report.replaced.clear();
        self.is_touched = false;
    }

    /// Checks that all members of the replaced topologies answer, and remembers the addresses of all nodes: once a
    /// topology is unloaded, no node reports the addresses of its members.
    ///
    /// # Errors
    /// A member is unknown or does not answer.
    pub(super) fn check_replaced(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        for name in self.report.replaced.iter().flat_map(|replaced| &replaced.members) {
            session_of(cluster, name)?;
        }
        self.known = cluster.nodes.iter().map(|node| node.address.clone()).collect();
        Ok(())
    }

    /// The topologies that ran before the test and are not restored yet.
    pub(super) fn replaced(&self) -> &[ReplacedTopology] {
        &self.report.replaced
    }

    /// The report at the end of the test.
    pub(super) fn finish(self) -> AcceptanceReport {
        self.report
    }

    /// A text without the addresses of nodes: their names take their place.
    pub(super) fn anonymous(&self, text: &str) -> String {
        without_addresses(text, &self.nodes)
    }

    fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|(_, address)| address.clone()).collect()
    }

    /// Sessions with all nodes under test, in order.
    ///
    /// # Errors
    /// One of them does not answer, or was excluded meanwhile.
    pub(super) async fn sessions(&self) -> Result<Vec<Arc<Session>>, Failure> {
        let cluster = Cluster::dial(&self.addresses()).await;
        if let Some(entry) = cluster.out().next() {
            let (node, reason) = (output::clean(&entry.node), output::clean(entry.reason.as_deref().unwrap_or("")));
            let message = format!("{node} was excluded: {reason}");
            return Err(Failure::State { message, next: "console node include NODE" });
        }
        Ok(cluster.usable()?)
    }

    /// Saves the topologies that run, once, and unloads them: the next step needs idle nodes, or assigns its own.
    pub(super) async fn clear(&mut self) -> Result<(), Failure> {
        let cluster = Cluster::dial(&self.known).await.with_known("").await;
        let held: Vec<(Topology, Committed)> = self.held(&cluster);
        if !self.is_touched {
            self.known = cluster.nodes.iter().map(|node| node.address.clone()).collect();
            self.report.replaced = held.iter().map(|(topology, _)| replaced(topology, &cluster)).collect();
            self.is_touched = true;
            self.write()?;
        }
        let sessions: Vec<Arc<Session>> =
            cluster.nodes.iter().filter_map(|node: &ClusterNode| node.session().ok()).collect();
        for (_, committed) in &held {
            for fault in unload(&sessions, committed, false).await? {
                output::note(&output::clean(&format!("{fault}; it unloads the topology when it sees another member")));
            }
        }
        self.settled().await;
        Ok(())
    }

    /// Waits until the nodes that answer have released their shards, at most [`SETTLE`].
    async fn settled(&self) {
        let deadline = Instant::now() + SETTLE;
        loop {
            let cluster = Cluster::dial(&self.addresses()).await;
            let mut reports = cluster.nodes.iter().filter_map(ClusterNode::report);
            if reports.all(|report| report.topology.is_none()) || Instant::now() > deadline {
                return;
            }
            sleep(DIAL).await;
        }
    }

    /// The topologies that nodes under test hold.
    fn held(&self, cluster: &Cluster) -> Vec<(Topology, Committed)> {
        let topologies = cluster.topologies().into_iter();
        let ours = topologies.filter(|(topology, _)| {
            topology.members.iter().any(|member| self.nodes.iter().any(|(name, _)| *name == member.name))
        });
        ours.map(|(topology, reports)| {
            let epoch = reports.iter().map(|report| report.epoch).max().unwrap_or_default();
            (topology.clone(), Committed::new(epoch, topology.clone()))
        })
        .collect()
    }

    /// [`Self::clear`], unless all nodes serve the test's model together already.
    pub(super) async fn clear_others(&mut self) -> Result<(), Failure> {
        let cluster = Cluster::dial(&self.addresses()).await;
        let is_ours = cluster.topologies().first().is_some_and(|(topology, _)| {
            let names = topology.members.iter().map(|member| &member.name);
            topology.model == self.report.model && names.eq(self.nodes.iter().map(|(name, _)| name))
        });
        if self.is_touched && is_ours && cluster.is_serving() { Ok(()) } else { self.clear().await }
    }

    /// The name of a node and its host, by its name or address.
    pub(super) fn find(&self, who: &str) -> Result<(String, String), Failure> {
        let address = with_port(who);
        let found = self.nodes.iter().find(|(name, known)| name == who || *known == address);
        let (name, address) = found.ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|(name, _)| name.as_str()).collect();
            let message = format!("no node {} among {}", output::clean(who), output::clean(&names.join(", ")));
            Failure::Usage { message, next: "use one of these names" }
        })?;
        Ok((name.clone(), host(address).to_owned()))
    }

    /// Waits until all nodes under test answer, and those that the replaced topologies need, at most [`RETURN`].
    async fn returned(&self) -> Cluster {
        let (deadline, mut is_told) = (Instant::now() + RETURN, false);
        loop {
            let cluster = Cluster::dial(&self.known).await.with_known("").await;
            let members = self.report.replaced.iter().flat_map(|replaced| &replaced.members);
            let needed: BTreeSet<&str> =
                self.nodes.iter().map(|(name, _)| name).chain(members).map(String::as_str).collect();
            let away: Vec<&str> = needed.into_iter().filter(|name| session_of(&cluster, name).is_err()).collect();
            if away.is_empty() || Instant::now() > deadline {
                return cluster;
            }
            if !is_told {
                let (names, seconds) = (output::clean(&away.join(", ")), RETURN.as_secs());
                output::note(&format!("waiting up to {seconds} s for {names}"));
                is_told = true;
            }
            sleep(DIAL).await;
        }
    }

    /// Assigns the topologies again that ran before the test; without any, the nodes are idle again.
    ///
    /// # Errors
    /// A topology cannot be restored: the others are, and its record is kept for a later run.
    pub(super) async fn restore(&mut self) -> Result<(), Failure> {
        if !self.is_touched {
            return Ok(());
        }
        output::note(match self.report.replaced.len() {
            0 => "unloading the topology of the test",
            _ => "restoring the topology that ran before",
        });
        let cluster = self.returned().await;
        // Before anything is unloaded: a topology that cannot be restored must not cost the one that serves now.
        let mut outcome = self.check_replaced(&cluster);
        let mut ready = self.report.replaced.clone();
        ready.retain(|one| one.members.iter().all(|name| session_of(&cluster, name).is_ok()));
        if ready.is_empty() && outcome.is_err() {
            return outcome;
        }
        self.known = cluster.nodes.iter().map(|node| node.address.clone()).collect();
        self.clear().await?;
        let cluster = Cluster::dial(&self.known).await;
        for one in ready {
            match assign_again(&cluster, &one).await {
                // At once, because a signal may end the wait for the next one.
                Ok(()) => {
                    self.report.replaced.retain(|left| *left != one);
                    self.write()?;
                }
                Err(failure) => outcome = Err(failure),
            }
        }
        self.is_touched = !self.report.replaced.is_empty();
        outcome
    }
}

/// Assigns a topology that ran before the test.
async fn assign_again(cluster: &Cluster, replaced: &ReplacedTopology) -> Result<(), Failure> {
    let sessions = replaced.members.iter().map(|name| session_of(cluster, name));
    let sessions: Vec<Arc<Session>> = sessions.collect::<Result<_, Failure>>()?;
    assign_and_tell(&sessions, &replaced.wanted).await?;
    Ok(())
}

fn session_of(cluster: &Cluster, name: &str) -> Result<Arc<Session>, Failure> {
    let node = cluster.nodes.iter().find(|node| cluster.name(node) == name).ok_or_else(|| Failure::State {
        message: format!("cannot restore the topology that ran before: its member {} is unknown", output::clean(name)),
        next: "start that node and run the command again, or use another --out PATH to leave it",
    })?;
    Ok(node.session()?)
}

/// What restores a topology: the desired one, if losses have reduced it and all its members are back.
fn replaced(topology: &Topology, cluster: &Cluster) -> ReplacedTopology {
    let names: Vec<&str> =
        cluster.nodes.iter().filter_map(ClusterNode::report).map(|report| report.name.as_str()).collect();
    let mut reports = cluster.nodes.iter().filter_map(ClusterNode::report);
    let wanted = reports.find_map(|report| {
        let is_same = report.topology.as_ref().is_some_and(|(held, ..)| held == topology);
        let desired = report.desired.as_deref().filter(|_| is_same)?;
        desired.members.iter().all(|member| names.contains(&member.name.as_str())).then_some(desired)
    });
    let topology = wanted.unwrap_or(topology);
    ReplacedTopology {
        wanted: DesiredTopology::again(topology, topology.members.len()),
        members: topology.members.iter().map(|member| member.name.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use assignment::fixtures;
    use topology::{Layout, Member};

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    /// A topology of these members.
    fn topology_of(model: &str, members: &[(&str, &str)]) -> Topology {
        let sample = fixtures::topology();
        let members = members.iter().map(|(name, address)| {
            let (name, address) = ((*name).to_owned(), (*address).to_owned());
            Member { name, address, ..sample.members[0].clone() }
        });
        let members: Vec<Member> = members.collect();
        let layout = Layout::tensor_parallel(members.len() as u16);
        Topology { layout, members, model: model.into(), ..sample }
    }

    /// A bed of one node after a test that replaced this topology and did not restore it.
    fn bed_after(node: &FakeNode, left: &Topology, folder: &tempfile::TempDir) -> TestBed {
        let mut report = AcceptanceReport::new("m.gguf", vec!["pi1".into()], 0);
        report.replaced.push(ReplacedTopology {
            wanted: DesiredTopology::again(left, left.members.len()),
            members: left.members.iter().map(|member| member.name.clone()).collect(),
        });
        let files = ReportFiles::new(&folder.path().join("report"));
        TestBed::new(vec![("pi1".into(), node.address.clone())], report, files)
    }

    #[tokio::test]
    async fn nothing_is_unloaded_for_a_topology_that_cannot_be_restored() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let node = FakeNode::start("pi1", Script::default()).await;
        let own = ("pi1", node.address.as_str());
        node.serves(&topology_of("now.gguf", &[own]), 0, true);
        let before = topology_of("before.gguf", &[own, ("pi9", "127.0.0.1:1")]);
        let mut bed = bed_after(&node, &before, &folder);
        let failure = bed.restore().await.expect_err("pi9 is unknown");
        assert!(failure.to_string().contains("pi9"), "{failure}");
        assert_eq!(node.asked(), [""; 0]);
        assert_eq!(bed.report.replaced.len(), 1, "a later run may restore it");
    }

    #[tokio::test]
    async fn topology_whose_members_answer_is_restored_without_the_other_one() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let node = FakeNode::start("pi1", Script::default()).await;
        let mut bed = bed_after(&node, &topology_of("m.gguf", &[("pi1", node.address.as_str())]), &folder);
        let lost = topology_of("lost.gguf", &[("pi9", "127.0.0.1:1")]);
        bed.report.replaced.push(ReplacedTopology {
            wanted: DesiredTopology::again(&lost, 1),
            members: lost.members.iter().map(|member| member.name.clone()).collect(),
        });
        let failure = bed.restore().await.expect_err("pi9 is unknown");
        assert!(failure.to_string().contains("pi9"), "{failure}");
        assert!(node.asked().contains(&"commit"), "{:?}", node.asked());
        let left: Vec<&str> = bed.replaced().iter().map(|one| one.wanted.model.as_str()).collect();
        assert_eq!(left, ["lost.gguf"], "a later run may restore it");
    }

    #[tokio::test]
    async fn forgotten_topology_is_not_restored() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let node = FakeNode::start("pi1", Script::default()).await;
        let [before, now] =
            ["before.gguf", "now.gguf"].map(|model| topology_of(model, &[("pi1", node.address.as_str())]));
        node.serves(&before, 0, true);
        let mut bed = bed_after(&node, &before, &folder);
        assert!(bed.serves_replaced(&Cluster::dial(&bed.addresses()).await), "it is restored already");
        node.serves(&now, 0, true);
        assert!(!bed.serves_replaced(&Cluster::dial(&bed.addresses()).await), "another one serves");
        bed.forget_replaced();
        bed.restore().await.expect("there is nothing to do");
        assert_eq!(node.asked(), [""; 0]);
        // The fake node never releases its shard, so this ends when it is asked to.
        tokio::select! {
            result = bed.clear() => result.expect("the node unloads it"),
            () = node.await_asked("unload") => {}
        }
        assert_eq!(bed.report.replaced[0].wanted.model, "now.gguf", "the first step saves the running one");
    }
}
