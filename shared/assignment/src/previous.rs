//! Decides the fate of the running shards when a topology is assigned: an unchanged replica stays; a node
//! without memory for both shards unloads the current one first, so that answers pause. Pure.
use std::time::Duration;

use planner::{memory, working::RankMemory};
use protocol::message::Previous;
use telemetry::NodeReport;
use topology::{Topology, sizes::ModelSizes};

/// The fate of each member's running shard, in the order of `reports`.
pub fn previous(topology: &Topology, reports: &[NodeReport], sizes: &ModelSizes) -> Vec<Previous> {
    let mut found = Vec::with_capacity(reports.len());
    for replica in 0..topology.layout.replicas {
        let members = topology.layout.members(replica);
        let needed = memory::of_replica(sizes, topology, replica).unwrap_or_default();
        let stays = reports.get(members.clone()).is_some_and(|reports| is_whole(topology, members.start, reports));
        found.extend(members.enumerate().map(|(rank, member)| match (reports.get(member), needed.get(rank)) {
            _ if stays => Previous::Stays,
            (Some(report), Some(needed)) if must_unload(report, needed) => Previous::Leaves,
            _ => Previous::Serves,
        }));
    }
    found
}

/// Whether these nodes run a replica of the topology whose first member is `begin`, and all of them serve.
fn is_whole(topology: &Topology, begin: usize, reports: &[NodeReport]) -> bool {
    let hash = |report: &NodeReport| report.topology.as_ref().map(|(_, hash, _)| *hash);
    reports.iter().enumerate().all(|(rank, report)| {
        let place = report.topology.as_ref().and_then(|(held, _, member)| held.kept_in(*member, topology));
        let serves = report.state.serves() && report.fault.is_none();
        serves && place.is_some_and(|place| place.index() == begin + rank) && hash(report) == hash(&reports[0])
    })
}

/// Whether a node has memory for the next shard only without the current one. If it has too little even then,
/// nothing is unloaded and the node refuses.
fn must_unload(report: &NodeReport, needed: &RankMemory) -> bool {
    let Some((memory, both)) = report.health.memory.zip(report.free_for_next_shard()) else { return false };
    memory.available < needed.total() && needed.total() <= both
}

/// Time that a node needs to read its shard of the topology; `None` if it has not measured its disk.
pub(super) fn pause(topology: &Topology, member: usize, report: &NodeReport, sizes: &ModelSizes) -> Option<Duration> {
    let rate = report.health.disk.as_ref()?.read_rate.filter(|rate| rate.0 > 0)?;
    let replica = (0..topology.layout.replicas).find(|replica| topology.layout.members(*replica).contains(&member))?;
    let rank = member - topology.layout.members(replica).start;
    let needed = memory::of_replica(sizes, topology, replica).ok()?;
    Some(Duration::from_millis(needed.get(rank)?.weights.0.saturating_mul(1000) / rate.0))
}

#[cfg(test)]
mod tests {
    use common::{
        ids::{Epoch, MemberIndex},
        units::Bytes,
    };
    use telemetry::{
        NodeState,
        health::{DiskUse, MemoryUse},
    };
    use topology::sizes::Quantisation;

    use super::*;
    use crate::fixtures::{self, idle_report};

    const MIB: u64 = 1 << 20;

    fn topology(layout: &str, sizes: &ModelSizes) -> Topology {
        let layout: topology::Layout = layout.parse().expect("a layout");
        let count = layout.node_count();
        let mut topology = Topology { layout, context_length: 256, ..fixtures::topology() };
        topology.members.truncate(count);
        topology.members.iter_mut().for_each(|one| one.layers = 0..sizes.spec.block_count() as u32);
        topology
    }

    #[test]
    fn node_without_room_for_both_shards_unloads_and_pauses() {
        let sizes = ModelSizes::known("tinyllama-1.1b", Quantisation::Q4_0).expect("it is known");
        let (running, next) = (topology("tp2", &sizes), topology("tp3", &sizes));
        let report = |index: usize, available: u64| {
            let mut report = idle_report(&running.members[index].name);
            (report.state, report.epoch, report.shard) = (NodeState::Ready, Epoch(3), Bytes(400 * MIB));
            report.topology = Some((running.clone(), running.hash(), MemberIndex(index as u16)));
            report.health.memory = Some(MemoryUse { available: Bytes(available * MIB), ..MemoryUse::default() });
            report.memory_resident = Bytes(450 * MIB);
            report.health.disk = Some(DiskUse { read_rate: Some(Bytes(20 * MIB)), ..DiskUse::default() });
            report
        };
        let idle = idle_report(&next.members[2].name);
        let found = |reports: &[NodeReport]| previous(&next, reports, &sizes);
        let crowded = report(1, 100);
        assert_eq!(
            found(&[report(0, 2000), crowded.clone(), idle.clone()]),
            [Previous::Serves, Previous::Leaves, Previous::Serves]
        );
        let long = pause(&next, 1, &crowded, &sizes).expect("its disk is measured").as_secs();
        assert!((5..20).contains(&long), "{long} s for a third of 600 MiB at 20 MiB/s");
        // The node refuses a shard above its limit, however much memory is free.
        let limited = NodeReport { memory_max: Some(Bytes(20 * MIB)), ..report(1, 100) };
        assert_eq!(found(&[report(0, 2000), limited, idle.clone()]), [Previous::Serves; 3]);
        // Too little memory even without the current shard: unloading would end a serving replica for nothing.
        let mut small = report(1, 10);
        small.shard = Bytes(20 * MIB);
        assert_eq!(found(&[report(0, 2000), small, idle]), [Previous::Serves; 3]);
    }

    #[test]
    fn replica_stays_only_if_all_of_its_ranks_serve_it() {
        let sizes = ModelSizes::known("tinyllama-1.1b", Quantisation::Q4_0).expect("it is known");
        let running = topology("tp2", &sizes);
        let report = |index: usize, state| {
            let topology = Some((running.clone(), running.hash(), MemberIndex(index as u16)));
            NodeReport { state, topology, ..idle_report(&running.members[index].name) }
        };
        let found = |second| previous(&running, &[report(0, NodeState::Ready), report(1, second)], &sizes);
        assert_eq!(found(NodeState::Serving), [Previous::Stays; 2]);
        // One node has detected a loss, the other has not yet: both load again.
        assert_eq!(found(NodeState::Faulted), [Previous::Serves; 2]);
        let other = Topology { slots: running.slots + 1, ..running.clone() };
        let reports = [report(0, NodeState::Ready), report(1, NodeState::Ready)];
        assert_eq!(previous(&other, &reports, &sizes), [Previous::Serves; 2]);
    }
}
