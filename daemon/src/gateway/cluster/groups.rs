//! The groups of nodes that serve models, as their reports describe them: each group holds one topology, and no node is in
//! two groups. Pure: the time is an argument.
use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Epoch, ModelRoots, TopologyHash},
    planted::{Planted, is_planted},
};
use protocol::recovery::Committed;
use telemetry::{NodeReport, NodeState, window::Window};
use topology::{Exclusion, Member, Topology};

use crate::gateway::route::Replica;

/// A topology that served within this time is expected back: restarted nodes restore it by themselves.
pub(super) const LATELY: Duration = Duration::from_secs(60);

/// A topology that never served and that no node has reported for this time is an assignment that was given up.
pub(super) const GIVEN_UP: Duration = Duration::from_secs(5);

/// Number of replaced models that a group remembers.
const BEFORE_MAX: usize = 4;

/// Nodes with a common topology.
#[derive(Debug)]
pub struct Group {
    /// Its epoch.
    pub epoch: Epoch,
    /// The topology's hash.
    pub hash: TopologyHash,
    /// The topology.
    pub topology: Arc<Topology>,
    /// When the gateway first saw it, in seconds since 1970.
    pub since: u64,
    /// When a node last reported it, in any state.
    reported: Instant,
    /// When a node last reported that it serves it.
    pub served: Option<Instant>,
    /// Models of the topologies that it replaced, and when these last served; the latest first.
    pub before: Vec<(ModelRoots, Instant)>,
    /// When one of its heads last reported requests, or it was first seen.
    pub used: Option<Instant>,
    /// Recent steps of its nodes, by address.
    pub windows: BTreeMap<String, Window>,
}

/// Latest report of one node.
#[derive(Clone, Debug)]
pub struct LatestReport {
    /// The report.
    pub report: Arc<NodeReport>,
    /// When it arrived.
    pub at: Instant,
}

impl Group {
    /// Its replicas according to the latest reports by address, and the nodes that an operator cordoned, of replicas
    /// that would otherwise serve. A report older than `patience` counts as none.
    pub fn replicas(
        &self,
        reports: &BTreeMap<String, LatestReport>,
        patience: Duration,
        now: Instant,
    ) -> (Vec<Replica>, Vec<Exclusion>) {
        let topology = &self.topology;
        let (mut replicas, mut cordons) = (Vec::new(), Vec::new());
        for index in topology.layout.heads() {
            let head = &topology.members[index.index()];
            let seen = reports.get(&head.address);
            let takes = seen.is_some_and(|seen| {
                let is_in = seen.report.topology.as_ref().is_some_and(|(_, own, _)| *own == self.hash);
                let is_new = now.saturating_duration_since(seen.at) < patience;
                // The output of a paced node must not reach a client as an answer.
                is_new && is_in && seen.report.state.serves() && !seen.report.is_paced()
            });
            let entry = |member: &Member| seen?.report.exclusions.of(&member.name, &member.address);
            let members = topology.replica(topology.place(index).replica);
            // A head refuses requests as long as its list has a member of its replica.
            let entry = members.iter().find_map(entry);
            cordons.extend(entry.filter(|entry| takes && entry.is_cordon).cloned());
            replicas.push(Replica {
                head: head.address.clone(),
                name: head.name.clone(),
                slots: u32::from(topology.slots),
                requests: seen.map_or(0, |seen| seen.report.requests),
                at: seen.map_or(now, |seen| seen.at),
                is_serving: takes && entry.is_none(),
            });
        }
        (replicas, cordons)
    }

    /// A group that was not seen before, first reported at `now`, or `since` seconds since 1970.
    pub fn new(epoch: Epoch, topology: Topology, now: Instant, since: u64) -> Self {
        let (hash, topology) = (topology.hash(), Arc::new(topology));
        let (before, windows) = (Vec::new(), BTreeMap::new());
        Self { epoch, hash, topology, since, reported: now, served: None, before, used: None, windows }
    }

    /// Whether it served a short time ago: then waiting for a restarting node is worthwhile.
    pub fn has_served_lately(&self, now: Instant) -> bool {
        self.served.is_some_and(|served| now.saturating_duration_since(served) < LATELY)
    }

    /// Whether the node that reports is one of its members.
    fn has(&self, report: &NodeReport) -> bool {
        let place = report.topology.as_ref().and_then(|(topology, _, index)| topology.members.get(index.index()));
        self.topology
            .members
            .iter()
            .any(|member| member.name == report.name || place.is_some_and(|place| place.address == member.address))
    }

    /// Whether it stays although the report names a later or equal topology for some of its nodes.
    fn outlasts(&self, report: &NodeReport, now: Instant) -> bool {
        if matches!(report.state, NodeState::Ready | NodeState::Serving | NodeState::Draining) {
            return report.epoch < self.epoch;
        }
        match report.epoch.cmp(&self.epoch) {
            // If it never served, its nodes may have failed to load it: they bring their previous topology back.
            Ordering::Less => self.served.is_some() || now.saturating_duration_since(self.reported) < GIVEN_UP,
            // An assignment that was given up: its nodes have seen its epoch.
            Ordering::Equal => self.served.is_some(),
            // A node that joins loads its part first, while the others still serve.
            Ordering::Greater => self.has_served_lately(now) && !self.has(report),
        }
    }

    /// Whether the other topology takes nodes of this group: then only one of them can run. Names alone decide only if
    /// this group does not serve: nodes of different groups may have the same name by default.
    fn shares_nodes(&self, other: &Topology, now: Instant) -> bool {
        let counts_names = !self.has_served_lately(now);
        let mut own = self.topology.members.iter();
        own.any(|own| {
            let mut theirs = other.members.iter();
            theirs.any(|member| member.address == own.address || (counts_names && member.name == own.name))
        })
    }
}

/// All known groups, in the order in which they were found.
#[derive(Debug, Default)]
pub struct Groups(pub Vec<Group>);

impl Groups {
    /// Expects a topology from before this start to come back: until reports differ, requests wait for it.
    pub fn expect(&mut self, Committed { epoch, topology, .. }: Committed, now: Instant, since: u64) {
        if is_planted(Planted::ForgetsExpected) {
            return;
        }
        self.0.push(Group { served: Some(now), ..Group::new(epoch, topology, now, since) });
    }

    /// Processes a report. A later topology replaces those whose nodes it takes; `since` is the time in seconds since 1970.
    pub fn learn(&mut self, report: &NodeReport, now: Instant, since: u64) {
        let topology = report.topology.as_ref().map(|(topology, ..)| topology).or(report.expected.as_deref());
        if let Some((_, hash)) = report.unloaded.filter(|_| topology.is_none()) {
            self.0.retain(|group| group.hash != hash);
        }
        // An invalid report of a node must not break this one.
        let Some(topology) = topology.filter(|topology| topology.check().is_ok()) else { return };
        let hash = topology.hash();
        let serves = matches!(report.state, NodeState::Ready | NodeState::Serving);
        if self.0.iter().all(|group| group.hash != hash) {
            let replaced = || self.0.iter().filter(|group| group.shares_nodes(topology, now));
            if replaced().any(|group| group.outlasts(report, now)) {
                return;
            }
            let own = replaced().filter_map(|group| Some((group.topology.roots(), group.served?)));
            let earlier = own.chain(replaced().flat_map(|group| group.before.iter().copied()));
            let before: Vec<_> = earlier.take(BEFORE_MAX).collect();
            // Requests for a model wait for the topology that replaces its previous one, also after an attempt to assign
            // another model in between.
            let same = before.iter().filter(|(roots, _)| !roots.differs(&topology.roots()));
            let served = same.map(|(_, served)| *served).max();
            self.0.retain(|group| !group.shares_nodes(topology, now));
            self.0.push(Group { served, before, ..Group::new(report.epoch, topology.clone(), now, since) });
        }
        let Some(group) = self.0.iter_mut().find(|group| group.hash == hash) else { return };
        // It may have been found while its nodes were loading: they report its epoch only once it is on their disks.
        group.epoch = group.epoch.max(report.epoch);
        group.reported = now;
        if serves {
            group.served = Some(now);
            if report.requests > 0 || group.used.is_none() {
                group.used = Some(now);
            }
        }
    }

    /// The groups of each model, those that were found first at the front.
    pub fn by_model(&self) -> Vec<Vec<&Group>> {
        let mut models: Vec<Vec<&Group>> = Vec::new();
        for group in &self.0 {
            let roots = group.topology.roots();
            let known = models.iter_mut().find(|groups| {
                groups[0].topology.model == group.topology.model && !groups[0].topology.roots().differs(&roots)
            });
            match known {
                Some(groups) => groups.push(group),
                None => models.push(vec![group]),
            }
        }
        models
    }

    /// The groups that serve this model.
    pub fn of(&self, roots: &ModelRoots) -> Vec<&Group> {
        self.0.iter().filter(|group| !group.topology.roots().differs(roots)).collect()
    }
}
