//! The context length of a topology if none is requested: as many tokens as fit into memory with the weights. Pure.
use planner::memory;
use telemetry::NodeReport;
use topology::{Topology, sizes::ModelSizes};

/// Tokens that are assumed to fit: a node that has too little memory for them refuses.
pub(super) const CONTEXT_LEAST: u32 = 4096;
/// Lengths are multiples of this.
const STEP: u32 = 1024;
/// The part of the free memory that is left to everything else.
const LEFT: u64 = 8;

/// The longest context, at most `most`, whose keys and values fit into the free memory of every node with the weights,
/// also after the loss of a node of the replica; at least [`CONTEXT_LEAST`] tokens. `machines` names the machine of each
/// member: nodes on the same one share its memory.
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
        let members = topology.layout.members(replica);
        let count = members.len() as u64;
        members.zip(needed).all(|(member, needed)| {
            let Some(memory) = reports.get(member).and_then(|report| report.health.memory.as_ref()) else {
                return false;
            };
            let mates = machines.iter().filter(|machine| Some(*machine) == machines.get(member)).count() as u64;
            let free = memory.available.0 / mates.max(1);
            // The others take over the part of a lost node.
            let needed = needed.total().0 * count / (count - 1).max(1);
            needed <= free - free / LEFT
        })
    })
}

#[cfg(test)]
mod tests {
    use common::units::Bytes;
    use telemetry::health::MemoryUse;
    use topology::sizes::Quantisation;

    use super::*;
    use crate::fixtures::{self, idle_report};

    fn context(nodes: usize, gib: u64, most: u32, is_one_machine: bool) -> u32 {
        let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q4_0).expect("it is known");
        let layout: topology::Layout = format!("tp{nodes}").parse().expect("a layout");
        let base = fixtures::topology();
        let member = topology::Member { layers: 0..32, ..base.members[0].clone() };
        let topology = Topology { layout, members: vec![member; nodes], slots: 4, ..base };
        let memory = MemoryUse { available: Bytes(gib << 30), ..MemoryUse::default() };
        let mut reports: Vec<NodeReport> = (0..nodes).map(|index| idle_report(&format!("pi{index}"))).collect();
        reports.iter_mut().for_each(|report| report.health.memory = Some(memory));
        let names: Vec<String> =
            (0..nodes).map(|index| format!("m{}", if is_one_machine { 0 } else { index })).collect();
        let machines: Vec<&str> = names.iter().map(String::as_str).collect();
        longest(&topology, most, &sizes, &reports, &machines)
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
