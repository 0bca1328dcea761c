//! Predicts a layout on given nodes: time to first token, time per token, throughput, and the memory that each node
//! needs. Times come from the simulation, bytes from the arithmetic of the daemon's preflight. Pure.
use std::ops::Range;

use collectives::Choice;
use common::{
    precision::{Exchange, KvFormat},
    units::Nanoseconds,
};
use topology::{KvBlocks, sizes::ModelSizes};

use super::{
    holding::Holding,
    working::{RankMemory, Seat},
};
use crate::simulate::{Link, Machine, NodeProfile, Replica, Request, Setup, SimulateError, answer, throughput};

/// A node that a plan may use.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanNode {
    /// Its name.
    pub name: String,
    /// Its performance.
    pub profile: NodeProfile,
    /// Memory in bytes for a shard, its KV cache and working memory.
    pub memory: u64,
    /// Rows in a panel of its kernels.
    pub panel_rows: usize,
    /// Its measured link; `None` uses the link of the demand.
    pub link: Option<Link>,
}

/// Requirements for a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Longest sequence in tokens.
    pub context: u32,
    /// Concurrent sequences in one replica.
    pub slots: u16,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of partial sums.
    pub exchange: Exchange,
    /// The all-reduce algorithm.
    pub choice: Choice,
    /// Assumed link of nodes without a measurement.
    pub link: Link,
    /// Prompt length in tokens for which times are predicted.
    pub prompt: u32,
}

impl Demand {
    /// KV blocks of each rank, in a model whose longest window is `window`.
    pub fn kv_blocks(&self, window: Option<usize>) -> KvBlocks {
        KvBlocks::of(self.context, self.slots, window)
    }

    /// The seat of a rank in a replica with `stages` stages and `ranks` ranks.
    pub fn seat(&self, stages: usize, ranks: usize, is_head: bool) -> Seat {
        let slots = usize::from(self.slots.max(1));
        Seat { stages, ranks, is_head, slots, exchange: self.exchange }
    }
}

/// A node in a plan.
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
    /// Its ranks; the first rank of the first stage is the head.
    pub ranks: Vec<PlanRank>,
}

/// Predicted performance of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Time to the first token after the prompt.
    pub ttft: Nanoseconds,
    /// Time of each further token.
    pub tpot: Nanoseconds,
    /// Tokens per second of all sequences together.
    pub throughput: f64,
    /// Share of wait and wire in prefill and in decode.
    pub network: [f64; 2],
}

impl Prediction {
    /// Nanoseconds from a prompt to the end of an answer of [`ANSWER_TOKENS`] tokens.
    pub fn answer(&self) -> u64 {
        self.ttft.0 + u64::from(ANSWER_TOKENS - 1) * self.tpot.0
    }
}

fn setup(stages: &[PlanStage], nodes: &[PlanNode], demand: &Demand) -> Setup {
    Setup {
        stages: stages
            .iter()
            .map(|stage| {
                (
                    stage.layers.clone(),
                    stage
                        .ranks
                        .iter()
                        .map(|rank| {
                            let PlanNode { profile, link, .. } = &nodes[rank.node];
                            (Machine { profile: profile.clone(), link: link.unwrap_or(demand.link) }, rank.weight)
                        })
                        .collect(),
                )
            })
            .collect(),
        exchange: demand.exchange,
        choice: demand.choice,
        kv: demand.kv,
    }
}

/// The memory of a rank, as computed by the daemon's preflight.
pub fn needed(holding: &Holding<'_>, panel_rows: usize, demand: &Demand, seat: &Seat) -> RankMemory {
    holding.memory(panel_rows, demand.kv, demand.kv_blocks(holding.sizes.spec.window()), seat)
}

/// The memory of each rank of a replica, in the order of its stages and ranks.
///
/// # Errors
/// The model cannot be cut like this.
pub fn memory(
    sizes: &ModelSizes,
    stages: &[PlanStage],
    nodes: &[PlanNode],
    demand: &Demand,
) -> Result<Vec<RankMemory>, SimulateError> {
    let setup = setup(stages, nodes, demand);
    let replica = Replica::new(sizes, &setup)?;
    let seats = stages.iter().enumerate().flat_map(|(stage, held)| {
        held.ranks
            .iter()
            .enumerate()
            .map(move |(index, rank)| (demand.seat(stages.len(), held.ranks.len(), stage == 0 && index == 0), rank))
    });
    Ok(replica
        .holdings()
        .zip(seats)
        .map(|(holding, (seat, rank))| needed(&holding, nodes[rank.node].panel_rows, demand, &seat))
        .collect())
}

/// Predicts a replica with one prompt, and with as many concurrent answers as it has slots.
///
/// # Errors
/// The model cannot be cut like this.
pub fn predict(
    sizes: &ModelSizes,
    stages: &[PlanStage],
    nodes: &[PlanNode],
    demand: &Demand,
) -> Result<Prediction, SimulateError> {
    /// Tokens after the first; they differ only in their context.
    const TOKENS: u32 = 2;
    let setup = setup(stages, nodes, demand);
    let replica = Replica::new(sizes, &setup)?;
    let outcome = answer(&replica, &Request::quiet(demand.prompt, TOKENS))?;
    let throughput = throughput(&replica, u32::from(demand.slots), demand.prompt)?;
    Ok(Prediction { ttft: outcome.ttft, tpot: outcome.tpot, throughput, network: outcome.network_fractions() })
}

/// Length of the answer whose time is [`Goal::Latency`], in tokens.
pub const ANSWER_TOKENS: u32 = 128;
