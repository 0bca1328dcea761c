//! What a rank's shard and KV cache take in memory, and what of it a step reads: the arithmetic of the daemon's preflight without a
//! file. A test compares the two.
use common::{ids::MemberIndex, units::Bytes};
use topology::{
    Role,
    shard::{CutError, cut_stages},
    sizes::ModelSizes,
    spec::Topology,
};

use super::working::{RankMemory, Seat};
use crate::holding::{Holding, PANEL_ROWS};

/// Memory of each rank of a replica, in order.
///
/// # Errors
/// The model cannot be cut like this.
pub fn of_replica(sizes: &ModelSizes, topology: &Topology, replica: u16) -> Result<Vec<RankMemory>, CutError> {
    let plans = cut_stages(&sizes.spec, &topology.stages(replica))?;
    let blocks = topology.kv_blocks(sizes.spec.window());
    Ok(topology
        .layout
        .members(replica)
        .zip(&plans)
        .map(|(index, plan)| {
            let seat = Seat::of(topology, &topology.place(MemberIndex(index as u16)));
            let member = MemberIndex(index as u16);
            Holding { sizes, plan }.memory(PANEL_ROWS, topology.kv, blocks, &seat).and(of_draft(topology, member))
        })
        .collect())
}

/// Memory of a member for its part of the draft model, if the topology has one. Its working memory counts as weights.
pub fn of_draft(topology: &Topology, member: MemberIndex) -> RankMemory {
    let place = topology.place(member);
    let Some(draft) = topology.draft.as_ref().filter(|_| place.role != Role::Prefill) else {
        return RankMemory::default();
    };
    let members = topology.replica(place.replica);
    let all: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let part =
        |bytes: u64, weight: u64| Bytes((u128::from(bytes) * u128::from(weight) / u128::from(all.max(1))) as u64);
    let weight = u64::from(topology.members[member.index()].weight);
    // A rank with a small share holds whole KV heads, too.
    let even = all.div_ceil(members.len() as u64);
    let blocks = topology.kv_blocks(None).whole as u64;
    let kv = part(blocks.saturating_mul(draft.block.0), weight.max(even));
    RankMemory { weights: part(draft.weights.0, weight), kv, ..RankMemory::default() }
}

#[cfg(test)]
mod tests {

    use super::*;
    use topology::{cut, sizes::Quantisation};

    /// Bytes that a token reads on a lone rank.
    fn read(name: &str, quantisation: Quantisation) -> f64 {
        let sizes = ModelSizes::known(name, quantisation).expect("it is known");
        let plans = cut(&sizes.spec, &[1]).expect("one rank holds all");
        let holding = Holding { sizes: &sizes, plan: &plans[0] };
        ((0..sizes.spec.block_count())
            .map(|layer| holding.attention(layer).bytes + holding.feed_forward(layer, 1).bytes)
            .sum::<u64>()
            + holding.output().bytes) as f64
            / 1e9
    }

    #[test]
    fn a_token_reads_what_published_files_weigh_without_the_embedding() {
        // Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf is 4.92 GB with 0.30 GB of embedding; Q8_0 is 8.54 with 0.56.
        for (name, quantisation, gigabytes) in [
            ("llama-3.1-8b", Quantisation::Q4KM, 4.62),
            ("llama-3.1-8b", Quantisation::Q8_0, 7.98),
            ("llama-3.1-8b", Quantisation::Q4_0, 4.36),
            ("llama-2-7b", Quantisation::Q4_0, 3.75),
        ] {
            let found = read(name, quantisation);
            assert!((found / gigabytes - 1.0).abs() < 0.01, "{name} {quantisation}: {found}");
        }
        let mixture = read("qwen3-30b-a3b", Quantisation::Q4_0);
        assert!((1.6..2.0).contains(&mixture), "3.3 thousand million weights at work, {mixture} GB");
    }

    #[test]
    fn a_batch_reads_each_chosen_expert_once_and_at_most_all() {
        let sizes = ModelSizes::known("qwen3-30b-a3b", Quantisation::Q4_0).expect("it is known");
        let plans = cut(&sizes.spec, &[1; 4]).expect("four ranks hold some columns each");
        let holding = Holding { sizes: &sizes, plan: &plans[0] };
        let bytes = |tokens| holding.feed_forward(0, tokens).bytes;
        assert!(bytes(2) < 2 * bytes(1) && bytes(128) > 12 * bytes(1) && bytes(10_000) < 17 * bytes(1));
    }

    #[test]
    fn ranks_hold_the_model_once_but_for_norms_and_padding() {
        let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q4_0).expect("it is known");
        let whole = |world: usize| {
            let plans = cut(&sizes.spec, &vec![1; world]).expect("it can be cut");
            plans.iter().map(|plan| Holding { sizes: &sizes, plan }.shard_bytes(PANEL_ROWS)).sum::<u64>() as f64
        };
        assert!((whole(8) / whole(1) - 1.0).abs() < 0.01, "{} {}", whole(8), whole(1));
    }
}
