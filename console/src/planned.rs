//! A question to the planner and its answer: what dashboard and client speak of. Pure.
use shared::{
    schedule::Choice,
    simulate::{Link, NodeProfile},
    topology::{
        Exchange, KvFormat,
        cost::{Demand, PlanNode, PlanStage},
        memory::PANEL_ROWS,
        planner::{Candidate, Goal, Plan, plan},
        sizes::ModelSizes,
    },
};

use crate::wanted::Wanted;

/// Tokens of the prompt that times are predicted for.
pub const PROMPT: u32 = 512;
/// Longest context that is planned for where no topology says one.
const CONTEXT: u32 = 4096;
/// Time that a message between two nodes takes besides its bytes, and the link's bits a second: cables of 1 Gbit/s.
const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: Link::ETHERNET };

/// What a planner is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanAsk {
    /// File name of the model.
    pub model: String,
    /// Places of the nodes in the list, with their names, whether they have no dot-product instructions, and bytes to spare.
    pub nodes: Vec<(usize, String, bool, u64)>,
    /// Longest sequence; `None` = what the model was trained for, at most 4096.
    pub context: Option<u32>,
    /// Sequences at the same time.
    pub slots: u16,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of partial sums.
    pub exchange: Exchange,
    /// Which all-reduce.
    pub choice: Choice,
}

/// What the planner said.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The question.
    pub ask: PlanAsk,
    /// The model.
    pub sizes: ModelSizes,
    /// Candidates, the best first, and what does not fit.
    pub plan: Plan,
    /// The longest sequence that was planned for.
    pub context: u32,
}

impl Planned {
    /// Plans; takes a while with many nodes.
    pub fn new(ask: PlanAsk, sizes: ModelSizes) -> Self {
        let node = |(_, name, is_old, memory): &(usize, String, bool, u64)| PlanNode {
            name: name.clone(),
            profile: if *is_old { NodeProfile::pi4() } else { NodeProfile::pi5() },
            memory: *memory,
            panel_rows: PANEL_ROWS,
        };
        let nodes: Vec<PlanNode> = ask.nodes.iter().map(node).collect();
        let trained = u32::try_from(sizes.shape.context_length).unwrap_or(u32::MAX);
        let context = ask.context.unwrap_or(CONTEXT).min(trained);
        let demand = Demand {
            context,
            slots: ask.slots,
            kv: ask.kv,
            exchange: ask.exchange,
            choice: ask.choice,
            link: LINK,
            prompt: PROMPT.min(context),
        };
        let plan = plan(&sizes, &nodes, &demand, Goal::Balanced);
        Self { ask, sizes, plan, context }
    }

    /// The candidate of a row.
    pub fn candidate(&self, key: &str) -> Option<&Candidate> {
        self.plan.ranked.iter().find(|candidate| candidate.layout.to_string() == key)
    }

    /// Places of the nodes of a candidate in the list, in the order replica, stage, rank.
    pub fn members(&self, candidate: &Candidate) -> Vec<usize> {
        let ranks = candidate.replicas.iter().flatten().flat_map(|stage| &stage.ranks);
        ranks.filter_map(|rank| self.ask.nodes.get(rank.node)).map(|node| node.0).collect()
    }

    /// What to assign for a candidate.
    pub fn wanted(&self, candidate: &Candidate) -> Wanted {
        let weights: Vec<u32> =
            candidate.replicas.iter().flatten().flat_map(|stage| &stage.ranks).map(|rank| rank.weight).collect();
        let is_equal = weights.iter().all(|weight| *weight == weights[0]);
        let first = candidate.replicas.first().map_or(&[][..], Vec::as_slice);
        let layers = |stage: &PlanStage| stage.layers.len() as u32;
        Wanted {
            layout: candidate.layout,
            weights: if is_equal { Vec::new() } else { weights },
            layers: if first.len() > 1 { first.iter().map(layers).collect() } else { Vec::new() },
            model: self.ask.model.clone(),
            kv: self.ask.kv,
            exchange: self.ask.exchange,
            collective: self.ask.choice,
            context_length: Some(self.context),
            slots: self.ask.slots,
        }
    }
}
