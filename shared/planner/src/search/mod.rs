//! Plans layouts for nodes: all `dpR-ppS-tpN` that they can form, with shares by speed and memory and stages balanced
//! by cost. Layouts that do not fit are dropped with a reason, the rest is ranked by goal. Pure.
use std::{fmt, str::FromStr};

use common::limits::NODES_MAX;
use common::{latency::ratio, units::Bytes};
use serde::{Deserialize, Serialize};
use topology::{Layout, sizes::ModelSizes};

use super::{
    balance::{self, NoFit},
    cost::{self, Demand, PlanNode, PlanStage, Prediction},
    working::RankMemory,
};

/// If an additional node makes a token faster by less than this share, it is better used for another replica.
const GAIN_MIN: f64 = 0.03;
/// Beyond this number of nodes, only some numbers of stages and ranks are tried.
const ALL_COUNTS: usize = 16;
const LARGE_COUNTS: [usize; 6] = [20, 24, 32, 40, 48, 64];

/// The goal by which plans are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The fewest nodes that fit, then more ranks while each makes a token faster, then replicas.
    #[default]
    Balanced,
    /// Time to the first token.
    Ttft,
    /// Time of each further token.
    Tpot,
    /// Tokens per second of all sequences.
    Throughput,
    /// An answer of [`ANSWER_TOKENS`] tokens, from its prompt to its end.
    Latency,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let goals = [Self::Balanced, Self::Latency, Self::Ttft, Self::Tpot, Self::Throughput];
        let found = goals.into_iter().find(|goal| goal.to_string() == text);
        found.ok_or_else(|| format!("unknown goal {text:?}; use balanced, latency, ttft, tpot or throughput"))
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Balanced => "balanced",
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Throughput => "throughput",
            Self::Latency => "latency",
        })
    }
}

/// A layout that fits, on the nodes that it would use.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Replicas, stages, ranks.
    pub layout: Layout,
    /// Stages of each replica.
    pub replicas: Vec<Vec<PlanStage>>,
    /// Memory of each rank, by replica.
    pub memory: Vec<Vec<RankMemory>>,
    /// Prediction for the slowest replica; the throughput is the sum over all replicas.
    pub prediction: Prediction,
}

impl Candidate {
    /// The most that a node needs.
    pub fn memory_max(&self) -> Bytes {
        self.memory.iter().flatten().map(RankMemory::total).max().unwrap_or_default()
    }
}

/// A layout that does not fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropped {
    /// Replicas, stages, ranks.
    pub layout: Layout,
    /// The reason.
    pub reason: NoFit,
}

/// The result of planning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Best first.
    pub ranked: Vec<Candidate>,
    /// The layouts that do not fit, in the order of node counts.
    pub dropped: Vec<Dropped>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// Plans a model on nodes.
pub fn plan(sizes: &ModelSizes, nodes: &[PlanNode], demand: &Demand, goal: Goal) -> Plan {
    let mut plan = Plan::default();
    // The fastest first, so that fewer nodes means the best of them. Equal nodes stay in the given order.
    let mut order: Vec<usize> = (0..nodes.len().min(NODES_MAX)).collect();
    order.sort_by(|one, two| balance::speed(&nodes[*two]).total_cmp(&balance::speed(&nodes[*one])).then(one.cmp(two)));
    for layout in layouts(order.len()) {
        match candidate(sizes, nodes, &order, demand, layout) {
            Ok(candidate) => plan.ranked.push(candidate),
            Err(reason) => plan.dropped.push(Dropped { layout, reason }),
        }
    }
    rank(&mut plan.ranked, goal);
    if let Some(best) = plan.ranked.first_mut() {
        choose_head(sizes, nodes, demand, goal, best);
    }
    plan.warnings = warnings(&plan.ranked, nodes, &order);
    plan
}

/// A layout on nodes in a given order, for a layout that an operator requested.
///
/// # Errors
/// It does not fit, or the model cannot be cut like this.
pub fn candidate(
    sizes: &ModelSizes,
    nodes: &[PlanNode],
    order: &[usize],
    demand: &Demand,
    layout: Layout,
) -> Result<Candidate, NoFit> {
    let (replicas, stages, ranks) =
        (usize::from(layout.replicas), usize::from(layout.stages), usize::from(layout.ranks));
    let (mut all, mut memories, mut predictions): (Vec<Vec<PlanStage>>, Vec<_>, Vec<Prediction>) = Default::default();
    for replica in 0..replicas {
        // Dealt round-robin, so that replicas are equally fast; nodes of similar speed share a stage.
        let dealt: Vec<usize> = order.iter().copied().skip(replica).step_by(replicas).take(stages * ranks).collect();
        let (stages, memory) = balance::stages(sizes, nodes, &dealt, demand, stages, ranks)?;
        let same = all.last().filter(|before| is_same(before, &stages, nodes)).and(predictions.last());
        let prediction = match same {
            Some(same) => same.clone(),
            None => cost::predict(sizes, &stages, nodes, demand).map_err(|error| NoFit::Cut(error.to_string()))?,
        };
        all.push(stages);
        memories.push(memory);
        predictions.push(prediction);
    }
    Ok(Candidate { layout, replicas: all, memory: memories, prediction: together(&predictions) })
}

/// The prediction of several replicas: times of the slowest, total throughput.
fn together(predictions: &[Prediction]) -> Prediction {
    let throughput = predictions.iter().map(|one| one.throughput).sum();
    let slowest = predictions.iter().reduce(|one, two| if two.tpot > one.tpot { two } else { one });
    Prediction { throughput, ..slowest.expect("a layout has a replica").clone() }
}

/// Whether two replicas are equal except for the names of their nodes.
fn is_same(one: &[PlanStage], two: &[PlanStage], nodes: &[PlanNode]) -> bool {
    one.iter().zip(two).all(|(one, two)| {
        let ranks = one.ranks.iter().zip(&two.ranks);
        one.layers == two.layers
            && one.ranks.len() == two.ranks.len()
            && ranks.into_iter().all(|(one, two)| {
                let [first, second] = [&nodes[one.node], &nodes[two.node]];
                one.weight == two.weight && first.profile == second.profile && first.link == second.link
            })
    })
}

/// All layouts of at most this many nodes, in ascending order of nodes.
fn layouts(nodes: usize) -> Vec<Layout> {
    let counts = || (1..=nodes).filter(|count| *count <= ALL_COUNTS || LARGE_COUNTS.contains(count));
    let mut layouts = Vec::new();
    for (stages, ranks) in counts().flat_map(|stages| counts().map(move |ranks| (stages, ranks))) {
        for replicas in 1..=nodes / (stages * ranks).max(1) {
            let [replicas, stages, ranks] = [replicas, stages, ranks].map(|count| count as u16);
            layouts.push(Layout::alike(replicas, stages, ranks));
        }
    }
    layouts.sort_by_key(|layout| (layout.node_count(), layout.replicas, layout.stages));
    layouts
}

/// The value to minimise.
fn key(prediction: &Prediction, goal: Goal) -> f64 {
    match goal {
        Goal::Ttft => prediction.ttft.0 as f64,
        Goal::Throughput => -prediction.throughput,
        Goal::Latency => prediction.answer() as f64,
        Goal::Tpot | Goal::Balanced => prediction.tpot.0 as f64,
    }
}

/// Picks the head of each replica that gives the best prediction, because the head also schedules and handles text.
/// Ranks of the first stage change places together with their shares; ties keep the order.
fn choose_head(sizes: &ModelSizes, nodes: &[PlanNode], demand: &Demand, goal: Goal, best: &mut Candidate) {
    for replica in 0..best.replicas.len() {
        let stages = &best.replicas[replica];
        let Some(ranks) = stages.first().map(|stage| stage.ranks.len()) else { continue };
        let like = |rank: usize| {
            let one = &stages[0].ranks[rank];
            (&nodes[one.node].profile, nodes[one.node].link, one.weight)
        };
        // Identical nodes need only one evaluation.
        let others = (1..ranks).filter(|rank| like(*rank) != like(*rank - 1));
        let found = std::iter::once(0).chain(others).filter_map(|rank| {
            let mut stages = stages.clone();
            stages[0].ranks[..=rank].rotate_right(1);
            let prediction = cost::predict(sizes, &stages, nodes, demand).ok()?;
            let memory = cost::memory(sizes, &stages, nodes, demand).ok()?;
            let mut held = stages.iter().flat_map(|stage| &stage.ranks).zip(&memory);
            let fits = held.all(|(rank, needed)| needed.total().0 <= nodes[rank.node].memory);
            fits.then_some((key(&prediction, goal), rank, (stages, memory)))
        });
        let found = found.min_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
        let Some((_, _, (stages, memory))) = found.filter(|found| found.1 > 0) else { continue };
        best.memory[replica] = memory;
        best.replicas[replica] = stages;
    }
    let predictions: Result<Vec<Prediction>, _> =
        best.replicas.iter().map(|stages| cost::predict(sizes, stages, nodes, demand)).collect();
    if let Ok(predictions) = predictions {
        best.prediction = together(&predictions);
    }
}

fn rank(ranked: &mut [Candidate], goal: Goal) {
    ranked.sort_by(|one, two| {
        let keys = (key(&one.prediction, goal), key(&two.prediction, goal));
        keys.0.total_cmp(&keys.1).then(one.layout.node_count().cmp(&two.layout.node_count()))
    });
    if goal == Goal::Balanced
        && let Some(best) = balanced(ranked)
    {
        ranked[..=best].rotate_right(1);
    }
}

/// The fewest nodes that fit, then more while each step makes a token faster by [`GAIN_MIN`], then as many replicas as
/// possible.
fn balanced(ranked: &[Candidate]) -> Option<usize> {
    let singles = || ranked.iter().filter(|candidate| candidate.layout.replicas == 1);
    let mut counts: Vec<usize> = singles().map(|candidate| candidate.layout.node_count()).collect();
    counts.sort_unstable();
    counts.dedup();
    let fastest = |count: usize| {
        let of_count = singles().filter(|candidate| candidate.layout.node_count() == count);
        of_count.min_by_key(|candidate| candidate.prediction.tpot)
    };
    let mut best = fastest(*counts.first()?)?;
    for candidate in counts[1..].iter().filter_map(|count| fastest(*count)) {
        if (candidate.prediction.tpot.0 as f64) < (1.0 - GAIN_MIN) * best.prediction.tpot.0 as f64 {
            best = candidate;
        }
    }
    let most = ranked
        .iter()
        .filter(|candidate| {
            (candidate.layout.stages, candidate.layout.ranks) == (best.layout.stages, best.layout.ranks)
        })
        .max_by_key(|candidate| candidate.layout.replicas)?;
    ranked.iter().position(|candidate| candidate == most)
}

/// Warns of nodes that make a single answer slower.
fn warnings(ranked: &[Candidate], nodes: &[PlanNode], order: &[usize]) -> Vec<String> {
    let rate = |candidate: &Candidate| ratio(1e9, candidate.prediction.tpot.0 as f64);
    let all: Vec<&Candidate> = (1..=order.len())
        .filter_map(|count| {
            let singles = ranked.iter().filter(|candidate| candidate.layout.replicas == 1);
            singles
                .filter(|candidate| candidate.layout.node_count() == count)
                .min_by_key(|candidate| candidate.prediction.tpot)
        })
        .collect();
    let Some(best) = all.iter().min_by_key(|candidate| candidate.prediction.tpot) else { return Vec::new() };
    let Some(last) = all.iter().rev().find(|candidate| {
        candidate.layout.node_count() > best.layout.node_count() && candidate.prediction.tpot > best.prediction.tpot
    }) else {
        return Vec::new();
    };
    let [few, many] = [best, last].map(|candidate| candidate.layout.node_count());
    let names: Vec<&str> = order[few..many].iter().map(|node| nodes[*node].name.as_str()).collect();
    vec![format!(
        "{} {} a single answer slower: {} tokens/s with {few} nodes ({}), {} with {many} ({}). For one \
         request at a time, use fewer nodes; for several, use the others as another replica",
        names.join(", "),
        if names.len() == 1 { "makes" } else { "make" },
        figure(rate(best)),
        best.layout,
        figure(rate(last)),
        last.layout,
    )]
}

/// Formats a number with two decimals.
fn figure(value: f64) -> String {
    format!("{value:.2}")
}

#[cfg(test)]
mod tests;
