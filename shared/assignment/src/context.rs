//! The context length of a topology if none is requested: as many tokens as fit into memory with the weights. Pure.
use std::ops::Range;

use common::units::Bytes;
use planner::{memory, replan::survives_loss};
use telemetry::NodeReport;
use topology::{Topology, sizes::ModelSizes};

/// Tokens that are assumed to fit: a node that has too little memory for them refuses.
pub(super) const CONTEXT_LEAST: u32 = 4096;
/// Lengths are multiples of this.
const STEP: u32 = 1024;
/// The part of the free memory that is left to everything else.
const LEFT: u64 = 8;

/// The longest context, at most `most`, whose keys and values fit with the weights into the memory that a shard may take
/// on every node ([`NodesMemory::usable`]), also after the loss of any one node of a replica, in the layout that the
/// others then serve; at least [`CONTEXT_LEAST`] tokens. `machines` names the machine of each member: nodes on the same
/// one share its memory.
pub(super) fn longest(
    topology: &Topology,
    most: u32,
    sizes: &ModelSizes,
    reports: &[NodeReport],
    machines: &[&str],
) -> u32 {
    let of = |context_length: u32| Topology { context_length, ..topology.clone() };
    let least = most.min(CONTEXT_LEAST);
    let beside = NodesMemory { sizes, reports, machines, unloads_first: false };
    // If not even the least context fits next to the running shards, they leave before the next ones are loaded
    // (`previous`), and their memory counts. If it fits, a longer one is not worth a pause of all answers.
    let memory = NodesMemory { unloads_first: !beside.has_room(&of(least)), ..beside };
    if memory.has_room(&of(most)) {
        return most;
    }
    let (mut fits, mut too_long) = (least / STEP, most / STEP + 1);
    while too_long - fits > 1 {
        let middle = fits.midpoint(too_long);
        let is_room = memory.has_room(&of(middle * STEP));
        *(if is_room { &mut fits } else { &mut too_long }) = middle;
    }
    (fits * STEP).max(least)
}

/// The memory of the nodes of a topology, as they report it.
#[derive(Clone, Copy)]
struct NodesMemory<'a> {
    sizes: &'a ModelSizes,
    reports: &'a [NodeReport],
    machines: &'a [&'a str],
    /// Whether the running shards are unloaded before the next ones are loaded.
    unloads_first: bool,
}

impl NodesMemory<'_> {
    fn has_room(&self, topology: &Topology) -> bool {
        (0..topology.layout.replicas).all(|replica| {
            let members = topology.layout.members(replica);
            let Ok(needed) = memory::of_replica(self.sizes, topology, replica) else { return false };
            let Some(free) = self.usable(members.clone(), self.unloads_first) else { return false };
            // When a node is lost, the shards that run now have left.
            let Some(later) = self.usable(members, true) else { return false };
            needed.iter().zip(&free).all(|(needed, free)| needed.total() <= *free)
                && survives_loss(topology, replica, &later, self.sizes)
        })
    }

    /// Memory of each of these members that a shard may take, with the running shards or after they have left, at most
    /// the limit of its settings; `None` if one has no reading.
    fn usable(&self, members: Range<usize>, have_left: bool) -> Option<Vec<Bytes>> {
        let free = members.map(|member| {
            let report = self.reports.get(member)?;
            let machine = self.machines.get(member);
            let mates = self.machines.iter().filter(|other| Some(*other) == machine).count() as u64;
            let free = match mates {
                // Nodes on one machine do not unload together: each may load while another one still holds its shard.
                2.. => Bytes(report.health.memory?.available.0 / mates),
                _ if have_left => report.free_without_shard()?,
                _ => report.health.memory?.available,
            };
            // The limit is that of the shard alone. 0 would mean that it is unknown.
            Some(report.within_limit(Bytes(free.0 - free.0 / LEFT)).max(Bytes(1)))
        });
        free.collect()
    }
}

#[cfg(test)]
mod tests {
    use common::ids::{MemberIndex, ModelIdentity};
    use planner::replan::{Stays, replan};
    use protocol::message::Previous;
    use telemetry::health::MemoryUse;
    use topology::{Draft, Layout, Member, sizes::Quantisation};

    use super::*;
    use crate::{
        fixtures::{self, idle_report},
        previous::previous,
    };

    fn sizes() -> ModelSizes {
        ModelSizes::known("llama-3.1-8b", Quantisation::Q4_0).expect("it is known")
    }

    /// A tensor-parallel topology of up to four nodes.
    fn topology(nodes: usize) -> Topology {
        let base = fixtures::topology();
        let members = base.members.iter().take(nodes).map(|member| Member { layers: 0..32, ..member.clone() });
        let members = members.collect();
        Topology { layout: Layout::tensor_parallel(nodes as u16), members, slots: 4, ..base }
    }

    fn reports(nodes: usize, gib: u64) -> Vec<NodeReport> {
        let memory = MemoryUse { available: Bytes(gib << 30), ..MemoryUse::default() };
        let mut reports: Vec<NodeReport> = (0..nodes).map(|index| idle_report(&format!("pi{index}"))).collect();
        reports.iter_mut().for_each(|report| report.health.memory = Some(memory));
        reports
    }

    fn context(nodes: usize, gib: u64, most: u32, is_one_machine: bool) -> u32 {
        let names: Vec<String> =
            (0..nodes).map(|index| format!("m{}", if is_one_machine { 0 } else { index })).collect();
        let machines: Vec<&str> = names.iter().map(String::as_str).collect();
        longest(&topology(nodes), most, &sizes(), &reports(nodes, gib), &machines)
    }

    #[test]
    fn context_grows_with_the_free_memory_up_to_the_models() {
        // 128 KiB a token on all nodes together; 4.4 GB of weights.
        let found = [1, 2, 4, 7].map(|gib| context(4, gib, 131_072, false));
        assert!(found.is_sorted() && found[0] == CONTEXT_LEAST && found[2] > 32_768, "{found:?}");
        assert_eq!(context(4, 64, 131_072, false), 131_072);
        assert_eq!((context(4, 64, 8000, false), context(4, 64, 2000, false)), (8000, 2000));
        assert_eq!(context(2, 1, 131_072, false), CONTEXT_LEAST, "even if it does not fit");
    }

    #[test]
    fn context_fits_on_the_nodes_that_remain_after_a_loss() {
        let sizes = sizes();
        let (model, identity) = ("draft.gguf".into(), ModelIdentity::default());
        let draft = Draft { model, identity, content: None, weights: Bytes(0), block: Bytes(0) };
        // With a draft model there are no stages: the middle one of three ranks holds four of the eight KV heads.
        for (draft, layout) in [(None, None), (Some(Box::new(draft)), Some(Layout::tensor_parallel(3)))] {
            for gib in [3, 4, 6] {
                let topology = Topology { draft: draft.clone(), ..topology(4) };
                let context_length = longest(&topology, 131_072, &sizes, &reports(4, gib), &["a", "b", "c", "d"]);
                assert!(context_length > CONTEXT_LEAST, "{gib} GiB: {context_length}");
                let topology = Topology { context_length, ..topology };
                let free = Bytes((gib << 30) / LEFT * (LEFT - 1));
                for lost in 0..4 {
                    let stay = (0..4).filter(|member| *member != lost).map(|member| Stays {
                        member: MemberIndex(member),
                        address: topology.members[usize::from(member)].address.clone(),
                        free,
                    });
                    let next = replan(&topology, &stay.collect::<Vec<_>>(), &sizes).expect("three can hold it");
                    assert_eq!(next.members.len(), 3, "{gib} GiB: {}", next.layout);
                    assert!(layout.is_none_or(|layout| next.layout == layout), "{}", next.layout);
                    let needed = memory::of_replica(&sizes, &next, 0).expect("it can be cut");
                    assert!(needed.iter().all(|needed| needed.total() <= free), "{gib} GiB: {needed:?}");
                }
            }
        }
    }

    #[test]
    fn memory_of_shards_that_must_leave_first_counts() {
        let of = |gib: u64, machines: [&str; 4]| {
            let mut reports = reports(4, gib);
            for report in &mut reports {
                (report.shard, report.memory_resident) = (Bytes(3 << 30), Bytes(3 << 30));
            }
            let context_length = longest(&topology(4), 131_072, &sizes(), &reports, &machines);
            let next = Topology { context_length, ..topology(4) };
            (context_length, previous(&next, &reports, &sizes()))
        };
        let apart = ["a", "b", "c", "d"];
        assert_eq!(of(1, apart), (context(4, 4, 131_072, false), vec![Previous::Leaves; 4]));
        let (beside, kept) = of(4, apart);
        assert!((context(4, 4, 131_072, false)..context(4, 7, 131_072, false)).contains(&beside), "{beside}");
        assert_eq!(kept, [Previous::Serves; 4], "no pause");
        assert_eq!(of(4, ["a"; 4]), (CONTEXT_LEAST, vec![Previous::Serves; 4]), "one loads while another still serves");
    }

    #[test]
    fn context_fits_below_the_limits_of_the_settings() {
        let expected = context(4, 4, 131_072, false);
        assert!(expected < 131_072, "{expected}");
        let mut reports = reports(4, 64);
        // As much as is left of 4 GiB for a shard.
        reports.iter_mut().for_each(|report| report.memory_max = Some(Bytes((4 << 30) / LEFT * (LEFT - 1))));
        let found = |reports: &[NodeReport], machines| longest(&topology(4), 131_072, &sizes(), reports, machines);
        assert_eq!(found(&reports, &["a", "b", "c", "d"]), expected);
        assert_eq!(found(&reports, &["a"; 4]), expected, "each has a limit of its own");
        for report in &mut reports {
            (report.shard, report.memory_resident) = (Bytes(3 << 30), Bytes(3 << 30));
        }
        assert_eq!(found(&reports, &["a", "b", "c", "d"]), expected, "a limit counts for each shard");
        reports.iter_mut().for_each(|report| report.memory_max = Some(Bytes(4 << 30)));
        assert!(found(&reports, &["a", "b", "c", "d"]) > expected, "a shard may take all of the limit");
    }

    #[test]
    fn nodes_on_one_machine_share_its_memory() {
        assert_eq!(context(4, 4, 131_072, true), context(4, 1, 131_072, false));
    }

    #[test]
    fn nodes_without_a_reading_get_the_least() {
        let base = fixtures::topology();
        let reports = vec![idle_report("pi1"); base.members.len()];
        assert_eq!(longest(&base, 131_072, &fixtures::sizes(), &reports, &[]), CONTEXT_LEAST);
    }
}
