//! What a layout on given nodes would do: time to first token, time per token, throughput, and what each node would have to hold.
//! Times come from the simulation, bytes from the arithmetic of the daemon's preflight. Pure.
use std::ops::Range;

use super::{
    Exchange, KvFormat,
    memory::Holding,
    planner::ANSWER_TOKENS,
    sizes::ModelSizes,
    spec::KV_BLOCK_LENGTH,
    working::{RankMemory, Seat},
};
use crate::{
    schedule::Choice,
    simulate::{Link, Machine, NodeProfile, Replica, Request, Setup, SimulateError, answer, throughput},
    units::Nanoseconds,
};

/// A node that a plan may use.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanNode {
    /// Its name.
    pub name: String,
    /// What it does in what time.
    pub profile: NodeProfile,
    /// Bytes that a shard, its KV cache and what computing takes may have.
    pub memory: u64,
    /// Rows of a panel of its kernels.
    pub panel_rows: usize,
    /// Its link as it was measured; `None`: as the demand has it.
    pub link: Option<Link>,
}

/// What is wanted of a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Longest sequence in tokens.
    pub context: u32,
    /// Sequences at the same time in one replica.
    pub slots: u16,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of partial sums.
    pub exchange: Exchange,
    /// Which all-reduce.
    pub choice: Choice,
    /// Between nodes whose links were not measured.
    pub link: Link,
    /// Tokens of the prompt that times are predicted for.
    pub prompt: u32,
}

impl Demand {
    /// Blocks of each rank's KV cache.
    pub fn kv_block_count(&self) -> usize {
        (self.context as usize).div_ceil(KV_BLOCK_LENGTH) + usize::from(self.slots.max(1)) - 1
    }

    /// The seat of a rank of a replica with `stages` stages and `ranks` ranks.
    pub fn seat(&self, (stages, ranks): (usize, usize), (stage, rank): (usize, usize)) -> Seat {
        let slots = usize::from(self.slots.max(1));
        Seat { stages, ranks, is_head: stage == 0 && rank == 0, slots, exchange: self.exchange }
    }
}

/// A node's place in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRank {
    /// Index among the nodes.
    pub node: usize,
    /// Its share of each layer of its stage.
    pub weight: u32,
}

/// A stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStage {
    /// Its layers.
    pub layers: Range<usize>,
    /// Who shares them; the first of the first stage is the head.
    pub ranks: Vec<PlanRank>,
}

/// What a replica would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Time to the first token behind the prompt.
    pub ttft: Nanoseconds,
    /// Time of each token behind it.
    pub tpot: Nanoseconds,
    /// Tokens a second of all sequences together.
    pub throughput: f64,
    /// Share of waiting and wire in prefill and decode.
    pub network: [f64; 2],
}

impl Prediction {
    /// Nanoseconds from a prompt to the end of an answer of [`ANSWER_TOKENS`] tokens.
    pub fn answer(&self) -> u64 {
        self.ttft.0 + u64::from(ANSWER_TOKENS - 1) * self.tpot.0
    }
}

fn setup(stages: &[PlanStage], nodes: &[PlanNode], demand: &Demand) -> Setup {
    let rank = |rank: &PlanRank| {
        let PlanNode { profile, link, .. } = &nodes[rank.node];
        (Machine { profile: profile.clone(), link: link.unwrap_or(demand.link) }, rank.weight)
    };
    let stage = |stage: &PlanStage| (stage.layers.clone(), stage.ranks.iter().map(rank).collect());
    Setup {
        stages: stages.iter().map(stage).collect(),
        exchange: demand.exchange,
        choice: demand.choice,
        kv: demand.kv,
    }
}

/// What a rank takes: what the daemon's preflight asks for.
pub fn needed(holding: &Holding<'_>, panel_rows: usize, demand: &Demand, seat: &Seat) -> RankMemory {
    holding.memory(panel_rows, (demand.kv, demand.kv_block_count()), seat)
}

/// What each rank of a replica takes, in the order of its stages and ranks.
///
/// # Errors
/// The model cannot be cut so.
pub fn memory(
    sizes: &ModelSizes,
    stages: &[PlanStage],
    nodes: &[PlanNode],
    demand: &Demand,
) -> Result<Vec<RankMemory>, SimulateError> {
    let setup = setup(stages, nodes, demand);
    let replica = Replica::new(sizes, &setup)?;
    let seats = stages.iter().enumerate().flat_map(|(stage, held)| {
        let seat = move |rank| demand.seat((stages.len(), held.ranks.len()), (stage, rank));
        held.ranks.iter().enumerate().map(move |(index, rank)| (seat(index), rank))
    });
    let of = |(holding, (seat, rank)): (Holding<'_>, (Seat, &PlanRank))| {
        needed(&holding, nodes[rank.node].panel_rows, demand, &seat)
    };
    Ok(replica.holdings().zip(seats).map(of).collect())
}

/// What a replica would do with one prompt, and with as many answers at the same time as it has slots.
///
/// # Errors
/// The model cannot be cut so.
pub fn predict(
    sizes: &ModelSizes,
    stages: &[PlanStage],
    nodes: &[PlanNode],
    demand: &Demand,
) -> Result<Prediction, SimulateError> {
    /// Tokens behind the first; they differ by their context alone.
    const TOKENS: u32 = 2;
    let setup = setup(stages, nodes, demand);
    let replica = Replica::new(sizes, &setup)?;
    let outcome = answer(&replica, &Request::quiet(demand.prompt, TOKENS))?;
    let throughput = throughput(&replica, u32::from(demand.slots), demand.prompt)?;
    Ok(Prediction { ttft: outcome.ttft, tpot: outcome.tpot, throughput, network: outcome.network_fractions() })
}
