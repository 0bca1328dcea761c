//! Topology candidates as ranked by the planner, the changes that assigning one would make, and the current division of
//! memory.
use std::ops::Range;

use common::{fault::Fault, ids::MemberIndex, latency::ratio};
use planner::{
    holding::{Holding, PANEL_ROWS},
    search::{Candidate, Goal},
    working::{RankMemory, Seat},
};
use topology::{Topology, cut_stages};

use crate::{
    operator::desired::{DesiredTopology, TopologyRequest},
    operator::planner_query::{PROMPT, PlannerAnswer, PlannerNode, PlannerQuery},
    state::{
        State,
        clean::clean_line,
        row::{Cell, TableRow, Tone},
        table::{Column, Table},
    },
};

/// State of the planner query.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Planning {
    /// No query yet.
    #[default]
    Nothing,
    /// The query is pending.
    Asked,
    /// The planner has answered.
    Done(Box<PlannerAnswer>),
    /// The query failed.
    Failed(Fault),
}

/// The topology to assign, and the planner's prediction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanState {
    /// The topology that the operator requests.
    pub desired: Option<DesiredTopology>,
    /// The request that this console was started with, until it is processed.
    pub requested: Option<TopologyRequest>,
    /// The goal that layouts are ranked by.
    pub goal: Goal,
    /// Whether to assign the planner's best layout once it answers.
    pub assigns_best: bool,
    /// State of the planner query.
    pub answer: Planning,
}

/// Width of a bar, in cells.
const BAR: usize = 13;
/// The table's columns.
const COLUMNS: &[Column] = &[
    Column::left("topology", 11, 0),
    Column::right("nodes", 5, 1),
    Column::right("tok/s", 6, 0),
    Column::left("speed", BAR, 5),
    Column::right("all tok/s", 9, 3),
    Column::right("TTFT", 9, 1),
    Column::left("first token", BAR, 7),
    Column::right("GiB/node", 8, 1),
    Column::left("memory", BAR, 6),
    Column::right("network", 7, 4),
    Column::rest("remark", 14, 0),
];

/// The candidates, best first, then the layouts that do not fit.
pub fn table(state: &State) -> Table {
    let Planning::Done(planned) = &state.plan.answer else { return Table { columns: COLUMNS, rows: Vec::new() } };
    let ranked = planned.plan.ranked.iter().enumerate().map(|(place, candidate)| row(state, planned, place, candidate));
    let dropped = planned.plan.dropped.iter().map(|dropped| {
        let mut cells = vec![Cell::default().toned(Tone::Dim); COLUMNS.len()];
        cells[0] = Cell::text(dropped.layout.to_string()).toned(Tone::Dim);
        cells[COLUMNS.len() - 1] = Cell::text(clean_line(&dropped.reason.to_string())).toned(Tone::Dim);
        TableRow { key: format!("no {}", dropped.layout), cells, is_stale: false }
    });
    Table { columns: COLUMNS, rows: ranked.chain(dropped).collect() }
}

fn row(state: &State, planned: &PlannerAnswer, place: usize, candidate: &Candidate) -> TableRow {
    let prediction = &candidate.prediction;
    let rate = speed(candidate);
    let gib = candidate.memory_max().0 as f64 / (1_u64 << 30) as f64;
    let all = &planned.plan.ranked;
    let fastest = all.iter().map(speed).fold(0.0, f64::max);
    let slowest = all.iter().map(|one| one.prediction.ttft.0).max().unwrap_or(0);
    let largest = all.iter().map(|one| one.memory_max().0).max().unwrap_or(0);
    let remark = match (runs(state, planned, candidate), place) {
        (true, _) => Cell::text(match measured(state) {
            Some(rate) => format!("runs at {rate:.1}"),
            None => "runs".to_owned(),
        })
        .toned(Tone::Ok),
        (false, 0) => Cell::text("best"),
        _ => {
            let change = ratio(rate, all.first().map_or(rate, speed)) - 1.0;
            Cell::text(format!("{:+.0} % tok/s", 100.0 * change)).toned(Tone::Dim)
        }
    };
    let cells = vec![
        Cell::text(candidate.layout.to_string()),
        Cell::figure(Some(candidate.layout.node_count() as f64), |count| format!("{count:.0}")),
        Cell::figure(Some(rate), |rate| format!("{rate:.1}")),
        bar(rate, fastest, Tone::Ok),
        Cell::figure(Some(prediction.throughput), |rate| format!("{rate:.1}")),
        Cell { number: Some(prediction.ttft.0 as f64), ..Cell::text(prediction.ttft.to_string()) },
        bar(prediction.ttft.0 as f64, slowest as f64, Tone::Warn),
        Cell::figure(Some(gib), |gib| format!("{gib:.2}")),
        bar(candidate.memory_max().0 as f64, largest as f64, Tone::Plain),
        Cell::figure(Some(prediction.network[1]), |share| format!("{:.0} %", share * 100.0)),
        remark,
    ];
    TableRow { key: candidate.layout.to_string(), cells, is_stale: false }
}

/// Tokens per second of one answer.
fn speed(candidate: &Candidate) -> f64 {
    ratio(1e9, candidate.prediction.tpot.0 as f64)
}

/// A figure compared with the greatest of its column, as a bar.
fn bar(value: f64, most: f64, tone: Tone) -> Cell {
    let filled = (ratio(value, most) * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
    let text = "▆".repeat(filled) + &"·".repeat(BAR - filled);
    Cell { text, number: Some(value), tone }
}

/// Tokens per second that the planner predicts for an answer of the running topology.
pub fn predicted(state: &State) -> Option<f64> {
    let Planning::Done(planned) = &state.plan.answer else { return None };
    planned.plan.ranked.iter().find(|candidate| runs(state, planned, candidate)).map(speed)
}

/// Why the candidate of a row does not fit.
pub fn why_not(state: &State, key: &str) -> Option<String> {
    let Planning::Done(planned) = &state.plan.answer else { return None };
    let dropped = planned.plan.dropped.iter().find(|dropped| key == format!("no {}", dropped.layout))?;
    Some(clean_line(&dropped.reason.to_string()))
}

/// Whether a candidate is the running topology.
fn runs(state: &State, planned: &PlannerAnswer, candidate: &Candidate) -> bool {
    let Some((topology, _)) = state.cluster.topology() else { return false };
    topology.layout == candidate.layout && topology.model == planned.ask.model
}

/// Tokens per second of this console's last request, if the running topology answered it.
fn measured(state: &State) -> Option<f64> {
    // A failed assignment raises the epoch of a topology that continues.
    let running = state.cluster.topology().map(|(topology, _)| topology);
    if state.generation.topology.as_ref() != running {
        return None;
    }
    state.generation.request.tpot_ms().map(|tpot| ratio(1e3, tpot))
}

/// The planner query for the current model and settings; `None` if no model is known or no node answers.
pub fn query(state: &State) -> Option<PlannerQuery> {
    let running = state.cluster.topology().map(|(topology, _)| topology);
    match (running, &state.plan.desired) {
        (Some(topology), _) => query_for(state, DesiredTopology::again(topology, topology.members.len())),
        (None, Some(wanted)) => query_for(state, wanted.clone()),
        (None, None) => None,
    }
}

/// The planner query for this model and these settings, regardless of the layout.
pub fn query_for(state: &State, wanted: DesiredTopology) -> Option<PlannerQuery> {
    let node = |place: usize| {
        let node = &state.cluster.nodes[place];
        let report = node.report.as_ref().filter(|_| node.is_open())?;
        // The running shard stays in memory until the new topology has been loaded.
        let (machine, cores) = &node.machine;
        Some(PlannerNode::of(place, machine, *cores, report, true))
    };
    let nodes: Vec<_> = state.cluster.usable().into_iter().filter_map(node).collect();
    let is_known = !nodes.is_empty();
    is_known.then_some(PlannerQuery {
        model: wanted.model,
        nodes,
        goal: state.plan.goal,
        context: wanted.context_length,
        slots: wanted.slots,
        kv: wanted.kv,
        exchange: wanted.exchange,
        choice: wanted.collective,
        now_unix_ms: state
            .cluster
            .nodes
            .iter()
            .filter_map(|node| Some(node.report.as_ref()?.unix_ms))
            .max()
            .unwrap_or(0),
    })
}

/// The planner's prediction for assigning this topology, and the layers that move; empty if the planner was not queried
/// for such a layout.
pub fn preview(state: &State, wanted: &DesiredTopology) -> Vec<String> {
    let Planning::Done(planned) = &state.plan.answer else { return Vec::new() };
    let known = planned.candidate(&wanted.layout.to_string()).filter(|_| planned.ask.model == wanted.model);
    let Some(candidate) = known else { return Vec::new() };
    let prediction = &candidate.prediction;
    let measured = measured(state).map_or_else(String::new, |rate| format!(" (measured now: {rate:.1})"));
    let predicted = format!(
        "Predicted: {:.1} tokens/s{measured}, TTFT {} for {} tokens, at most {} on a node.",
        ratio(1e9, prediction.tpot.0 as f64),
        prediction.ttft,
        PROMPT.min(planned.context),
        candidate.memory_max()
    );
    let warning = planned.past_knee(wanted.layout).map(|warning| format!("Warning: {warning}."));
    let changes = state.cluster.topology().and_then(|(topology, _)| changes(state, topology, planned, candidate));
    std::iter::once(predicted).chain(warning).chain(changes).collect()
}

/// The nodes whose layers change.
fn changes(state: &State, topology: &Topology, planned: &PlannerAnswer, candidate: &Candidate) -> Option<String> {
    let stages = candidate.replicas.iter().flatten();
    let after = stages.flat_map(|stage| stage.ranks.iter().map(|rank| (rank, stage.layers.clone())));
    let changed: Vec<String> = after
        .filter_map(|(rank, layers)| {
            let node = state.cluster.nodes.get(planned.ask.nodes.get(rank.node)?.place)?;
            let member = topology.members.get(state.cluster.member_of(node)?)?;
            let before = member.layers.start as usize..member.layers.end as usize;
            (before != layers).then(|| format!("{} {} → {}", node.name(), span(&before), span(&layers)))
        })
        .collect();
    (!changed.is_empty()).then(|| format!("Layers: {}.", changed.join(", ")))
}

/// A range of layers for display, with inclusive ends.
pub fn span(layers: &Range<usize>) -> String {
    if layers.len() < 2 { layers.start.to_string() } else { format!("{}–{}", layers.start, layers.end - 1) }
}

/// Memory of each member of the running topology, if the model's sizes are known.
pub fn division(state: &State) -> Option<Vec<RankMemory>> {
    let Planning::Done(planned) = &state.plan.answer else { return None };
    let (topology, _) = state.cluster.topology()?;
    if topology.model != planned.ask.model {
        return None;
    }
    let blocks = topology.kv_blocks(planned.sizes.spec.window());
    let mut all = Vec::with_capacity(topology.members.len());
    for replica in 0..topology.layout.replicas {
        let plans = cut_stages(&planned.sizes.spec, &topology.stages(replica)).ok()?;
        for (plan, member) in plans.iter().zip(topology.layout.members(replica)) {
            let seat = Seat::of(topology, &topology.place(MemberIndex(member as u16)));
            all.push(Holding { sizes: &planned.sizes, plan }.memory(PANEL_ROWS, topology.kv, blocks, &seat));
        }
    }
    (all.len() == topology.members.len()).then_some(all)
}

#[cfg(test)]
mod tests;
