//! The topologies that nodes report, and the groups of nodes that run them: a cluster serves several models on different
//! nodes. Pure.
use std::cmp::Reverse;

use telemetry::NodeReport;
use topology::Topology;

/// A topology and the nodes that hold it.
#[derive(Clone, Debug)]
pub struct TopologyGroup<'c> {
    /// The topology.
    pub topology: &'c Topology,
    /// The reports of its reachable members.
    pub reports: Vec<&'c NodeReport>,
}

impl<'c> TopologyGroup<'c> {
    /// Whether a node is a member of the topology.
    pub fn has(&self, name: &str) -> bool {
        self.topology.members.iter().any(|member| member.name == name)
    }

    /// The desired topology, if this one only approximates it.
    pub fn desired(&self) -> Option<&'c Topology> {
        self.reports.iter().find_map(|report| report.desired.as_deref())
    }

    /// Whether a node is a member of the desired topology.
    pub fn wants(&self, name: &str) -> bool {
        self.desired().is_some_and(|desired| desired.members.iter().any(|member| member.name == name))
    }

    /// Whether every member is reachable and serves.
    pub fn is_serving(&self) -> bool {
        self.reports.iter().filter(|report| report.state.serves()).count() == self.topology.members.len()
    }
}

/// All topologies that nodes hold: first those that nodes serve, and of these the ones of the highest epoch.
pub fn topologies<'r>(reports: impl Iterator<Item = &'r NodeReport> + Clone) -> Vec<TopologyGroup<'r>> {
    let mut holders: Vec<&NodeReport> = reports.clone().filter(|report| report.topology.is_some()).collect();
    // Of equal ones, the last comes first.
    holders.reverse();
    holders.sort_by_key(|report| Reverse((report.state.serves(), report.epoch)));
    let mut found: Vec<TopologyGroup<'r>> = Vec::new();
    let mut known = Vec::new();
    for (topology, hash, _) in holders.iter().filter_map(|report| report.topology.as_ref()) {
        if known.contains(hash) {
            continue;
        }
        known.push(*hash);
        // Compare topologies, not epochs: a failed assignment may have raised the epoch of some nodes.
        let holders =
            reports.clone().filter(|report| report.topology.as_ref().is_some_and(|(_, other, _)| other == hash));
        found.push(TopologyGroup { topology, reports: holders.collect() });
    }
    found
}

/// The groups of nodes, in the order of [`topologies`]. An excluded node may still hold an earlier topology, whose members
/// have joined another one: that one is left out.
pub fn groups<'r>(reports: impl Iterator<Item = &'r NodeReport> + Clone) -> Vec<TopologyGroup<'r>> {
    let mut groups: Vec<TopologyGroup<'r>> = Vec::new();
    for group in topologies(reports) {
        if !groups.iter().any(|later| share_members(later.topology, group.topology)) {
            groups.push(group);
        }
    }
    groups
}

/// Whether a node is a member of both topologies.
pub fn share_members(one: &Topology, other: &Topology) -> bool {
    one.members.iter().any(|member| other.members.iter().any(|same| same.name == member.name))
}
