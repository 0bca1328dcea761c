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

/// The longest context, at most `most`, whose keys and values fit into the free memory of every node with the weights,
/// also after the loss of any one node of a replica, in the layout that the others then serve; at least
/// [`CONTEXT_LEAST`] tokens. `machines` names the machine of each member: nodes on the same one share its memory.
pub(super) fn longest(
    topology: &Topology,
    most: u32,
    sizes: &ModelSizes,
    reports: &[NodeReport],
    machines: &[&str],
) -> u32 {
    let of = |context_length: u32| Topology { context_length, ..topology.clone() };
    if has_room(&of(most), sizes, reports, machines) {
        return most;
    }
    let (mut fits, mut too_long) = (most.min(CONTEXT_LEAST) / STEP, most / STEP + 1);
    while too_long - fits > 1 {
        let middle = fits.midpoint(too_long);
        let is_room = has_room(&of(middle * STEP), sizes, reports, machines);
        *(if is_room { &mut fits } else { &mut too_long }) = middle;
    }
    (fits * STEP).max(most.min(CONTEXT_LEAST))
}

fn has_room(topology: &Topology, sizes: &ModelSizes, reports: &[NodeReport], machines: &[&str]) -> bool {
    (0..topology.layout.replicas).all(|replica| {
        let Ok(needed) = memory::of_replica(sizes, topology, replica) else { return false };
        let Some(free) = usable(topology.layout.members(replica), reports, machines) else { return false };
        needed.iter().zip(&free).all(|(needed, free)| needed.total() <= *free)
            && survives_loss(topology, replica, &free, sizes)
    })
}

/// Memory of each of these members that a shard may take; `None` if one has no reading.
fn usable(members: Range<usize>, reports: &[NodeReport], machines: &[&str]) -> Option<Vec<Bytes>> {
    let free = members.map(|member| {
        let memory = reports.get(member)?.health.memory.as_ref()?;
        let mates = machines.iter().filter(|machine| Some(*machine) == machines.get(member)).count() as u64;
        let free = memory.available.0 / mates.max(1);
        // 0 would mean that it is unknown.
        Some(Bytes((free - free / LEFT).max(1)))
    });
    free.collect()
}

#[cfg(test)]
mod tests {
    use common::ids::{MemberIndex, ModelIdentity};
    use planner::replan::{Stays, replan};
    use telemetry::health::MemoryUse;
    use topology::{Draft, Layout, Member, sizes::Quantisation};

    use super::*;
    use crate::fixtures::{self, idle_report};

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
