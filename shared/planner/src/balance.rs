//! Shares of ranks by speed, within the limits of memory, and layers of stages so that the slowest stage is as fast as
//! possible. Pure.
use std::ops::Range;

use common::units::Bytes;
use topology::{ShardPlan, cut, shard::cut_stage, sizes::ModelSizes, split_layers_where};

use super::{
    cost::{self, Demand, PlanNode, PlanRank, PlanStage},
    holding::{Holding, PANEL_ROWS, kv_bytes, state_bytes},
    working::{RankMemory, working_bytes},
};

/// Share of the slowest of equal nodes: large enough to express differences of less than a tenth.
const WEIGHT: f64 = 100.0;
/// Rounds of moving shares from nodes that are full to others.
const MOVES: usize = 12;

/// Why a layout does not fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoFit {
    /// A node has too little memory.
    #[error(
        "node {node} would need {needed}, but {available} is free; give it fewer layers or a smaller share, or use more nodes"
    )]
    Memory {
        /// The node.
        node: String,
        /// Memory that its shard would need.
        needed: Bytes,
        /// Its free memory.
        available: Bytes,
    },
    /// No division of the layers fits.
    #[error(
        "the nodes of the stages have {available} free in total, but {needed} is needed; use more nodes, or a smaller model or context"
    )]
    Stages {
        /// Memory that all stages would need.
        needed: Bytes,
        /// Free memory of their nodes.
        available: Bytes,
    },
    /// More stages than the model can have.
    #[error("{stages} stages, but the model can have {most}; use fewer stages")]
    Layers {
        /// Stages.
        stages: usize,
        /// Most stages of the model.
        most: usize,
    },
    /// The model cannot be cut for this number of ranks.
    #[error("{0}")]
    Cut(String),
}

/// Bytes per second that a node reads while decoding; the measure for its share.
pub fn speed(node: &PlanNode) -> f64 {
    let profile = &node.profile;
    profile.read_bytes_per_second * profile.decode_share * 1000.0 / profile.slowness.max(1) as f64
}

/// The stages of a replica on nodes in this order, and the memory that each rank needs.
///
/// # Errors
/// The layout does not fit.
pub fn stages(
    sizes: &ModelSizes,
    nodes: &[PlanNode],
    order: &[usize],
    demand: &Demand,
    stages: usize,
    ranks: usize,
) -> Result<(Vec<PlanStage>, Vec<RankMemory>), NoFit> {
    let groups: Vec<&[usize]> = order.chunks(ranks).collect();
    let layers = divide(sizes, nodes, &groups, demand, stages)?;
    let mut plan = Vec::new();
    let mut memory = Vec::new();
    for (stage, (group, layers)) in groups.iter().zip(layers).enumerate() {
        let (ranks, needed) = shares(sizes, nodes, group, &layers, demand, stage, stages)?;
        plan.push(PlanStage { layers, ranks });
        memory.extend(needed);
    }
    Ok((plan, memory))
}

/// Layers for each group of nodes, such that the slowest stage is as fast as possible and each stage fits. The output
/// counts for the last stage.
fn divide(
    sizes: &ModelSizes,
    nodes: &[PlanNode],
    groups: &[&[usize]],
    demand: &Demand,
    stages: usize,
) -> Result<Vec<Range<usize>>, NoFit> {
    let count = sizes.spec.block_count();
    let most = sizes.spec.stages_max();
    if stages > most {
        return Err(NoFit::Layers { stages, most });
    }
    let whole = cut(&sizes.spec, &[1]).map_err(|error| NoFit::Cut(error.to_string()))?;
    let blocks = demand.kv_blocks(sizes.spec.window());
    let all = Holding { sizes, plan: &whole[0] };
    let reads: Vec<u64> =
        (0..count).map(|layer| all.attention(layer).bytes + all.feed_forward(layer, 1).bytes).collect();
    let slots = usize::from(demand.slots.max(1));
    let holds = (0..count).map(|layer| {
        let plan = ShardPlan { layers: layer..layer + 1, ..whole[0].clone() };
        let besides = kv_bytes(demand.kv, &sizes.spec, &plan, blocks) + state_bytes(&sizes.spec, &plan, slots);
        Holding { sizes, plan: &plan }.shard_bytes(PANEL_ROWS) + besides
    });
    let holds: Vec<u64> = holds.collect();
    let frees = groups.iter().enumerate().map(|(stage, group)| free(sizes, nodes, group, demand, stage, stages));
    let frees = frees.collect::<Result<Vec<u64>, NoFit>>()?;
    let speeds: Vec<u64> =
        groups.iter().map(|group| group.iter().map(|node| speed(&nodes[*node])).sum::<f64>() as u64).collect();
    let split = split_layers_where(&reads, all.output().bytes, &speeds, |stage, layers| {
        sizes.spec.can_begin_stage(layers.start) && holds[layers].iter().sum::<u64>() <= frees[stage]
    });
    let split =
        split.ok_or(NoFit::Stages { needed: Bytes(holds.iter().sum()), available: Bytes(frees.iter().sum()) })?;
    Ok(split.into_iter().map(|layers| layers.start as usize..layers.end as usize).collect())
}

/// Bytes that the nodes of a stage have free for weights and KV cache.
fn free(
    sizes: &ModelSizes,
    nodes: &[PlanNode],
    group: &[usize],
    demand: &Demand,
    stage: usize,
    stages: usize,
) -> Result<u64, NoFit> {
    // Working memory does not depend on the number of layers, so one layer of the stage is enough.
    let layer = if stage + 1 == stages { sizes.spec.block_count() - 1 } else { stage };
    let plans = cut_stage(&sizes.spec, &(layer..layer + 1), &vec![1; group.len()])
        .map_err(|error| NoFit::Cut(error.to_string()))?;
    let seats = (0..group.len()).map(|rank| demand.seat(stages, group.len(), stage == 0 && rank == 0));
    let working = plans.iter().zip(seats).map(|(plan, seat)| working_bytes(&Holding { sizes, plan }, &seat));
    Ok(group.iter().zip(working).map(|(node, working)| nodes[*node].memory.saturating_sub(working)).sum())
}

/// Shares by speed; a node that would be too full gets less, and the others get more.
fn shares(
    sizes: &ModelSizes,
    nodes: &[PlanNode],
    group: &[usize],
    layers: &Range<usize>,
    demand: &Demand,
    stage: usize,
    stages: usize,
) -> Result<(Vec<PlanRank>, Vec<RankMemory>), NoFit> {
    let slowest = group.iter().map(|node| speed(&nodes[*node])).fold(f64::INFINITY, f64::min);
    let mut weights: Vec<f64> = group.iter().map(|node| speed(&nodes[*node]) / slowest).collect();
    let mut moves = 0;
    loop {
        let whole: Vec<u32> = weights.iter().map(|weight| (weight * WEIGHT).round().clamp(1.0, 1e6) as u32).collect();
        let is_equal = whole.iter().all(|weight| *weight == whole[0]);
        let whole = if is_equal { vec![1; whole.len()] } else { whole };
        let plans = cut_stage(&sizes.spec, layers, &whole).map_err(|error| NoFit::Cut(error.to_string()))?;
        let needed: Vec<RankMemory> = plans
            .iter()
            .zip(group)
            .enumerate()
            .map(|(rank, (plan, node))| {
                let seat = demand.seat(stages, group.len(), stage == 0 && rank == 0);
                cost::needed(&Holding { sizes, plan }, nodes[*node].panel_rows, demand, &seat)
            })
            .collect();
        let over = |rank: &usize| needed[*rank].total().0 as f64 / nodes[group[*rank]].memory.max(1) as f64;
        let fullest = (0..group.len()).max_by(|one, two| over(one).total_cmp(&over(two)));
        let Some(fullest) = fullest.filter(|rank| needed[*rank].total().0 > nodes[group[*rank]].memory) else {
            let ranks = group.iter().zip(whole).map(|(node, weight)| PlanRank { node: *node, weight }).collect();
            return Ok((ranks, needed));
        };
        moves += 1;
        if moves > MOVES || group.len() == 1 {
            let node = &nodes[group[fullest]];
            let (needed, available) = (needed[fullest].total(), Bytes(node.memory));
            return Err(NoFit::Memory { node: node.name.clone(), needed, available });
        }
        let memory = nodes[group[fullest]].memory;
        let fixed = needed[fullest].working.0.min(memory) as f64;
        let fits = (memory as f64 - fixed) / (needed[fullest].total().0 as f64 - fixed).max(1.0);
        weights[fullest] *= (fits * 0.98).clamp(0.02, 0.98);
    }
}
