//! The table of requests: running, waiting and finished ones as reported by all heads, and the one held by this
//! console.
use std::time::Duration;

use common::{
    chat::FinishReason,
    ids::Epoch,
    latency::{RequestTimes, ratio},
    units::Nanoseconds,
};
use telemetry::{RequestReport, RequestStage};

use crate::state::{
    State,
    clean::clean_line,
    node::{Node, NodeStatus},
    request::Phase,
    row::{Cell, TableRow, Tone},
    table::{Column, Table},
};

/// Width of a progress bar, in cells.
const PROGRESS: usize = 16;
/// The table's columns.
const COLUMNS: &[Column] = &[
    Column::left("head", 10, 0),
    Column::right("no", 5, 7),
    Column::left("client", 12, 3),
    Column::left("stage", 9, 0),
    Column::right("age s", 7, 1),
    Column::right("prompt", 6, 2),
    Column::right("cached", 6, 6),
    Column::right("read", 6, 8),
    Column::right("tokens", 6, 0),
    Column::right("of", 6, 7),
    Column::left("progress", 16, 9),
    Column::right("queue ms", 8, 7),
    Column::right("prefill", 8, 6),
    Column::right("decode", 8, 6),
    Column::right("tok/s", 6, 1),
    Column::right("TTFT ms", 8, 2),
    Column::right("TPOT ms", 8, 2),
    Column::right("accepted", 8, 8),
    Column::left("model", 12, 5),
    Column::rest("end", 16, 1),
];

/// Open requests, then finished ones, latest first.
pub fn table(state: &State) -> Table {
    let mut rows: Vec<(bool, u64, TableRow)> = Vec::new();
    for node in &state.cluster.nodes {
        let Some(report) = &node.report else { continue };
        let is_stale = !matches!(node.status(state.now), NodeStatus::Reports(_));
        for trace in &report.traces {
            let key = key(node, report.epoch, trace);
            let row = TableRow { key, cells: cells(node, trace), is_stale };
            rows.push((trace.stage.is_over(), trace.age_ms, row));
        }
    }
    // Open requests oldest first, finished ones latest first.
    rows.sort_by_key(|(is_over, age, _)| (*is_over, if *is_over { *age } else { u64::MAX - age }));
    let held = (state.generation.request.phase == Phase::Held).then(|| held(state));
    Table { columns: COLUMNS, rows: held.into_iter().chain(rows.into_iter().map(|(.., row)| row)).collect() }
}

pub(super) fn key(node: &Node, epoch: Epoch, trace: &RequestReport) -> String {
    format!("{}/{epoch}/{}", node.address, trace.number)
}

/// List index of the node that is the head of a row's request; `None` for a request held by this console.
pub fn head(state: &State, key: &str) -> Option<usize> {
    state
        .cluster
        .nodes
        .iter()
        .position(|node: &Node| key.strip_prefix(&node.address).is_some_and(|rest| rest.starts_with('/')))
}

fn cells(node: &Node, trace: &RequestReport) -> Vec<Cell> {
    let times = match &trace.stage {
        RequestStage::Finished(_, times) => Some(times),
        _ => None,
    };
    let span = |from: Nanoseconds, to: Nanoseconds| Nanoseconds(to.0.saturating_sub(from.0)).milliseconds();
    let milliseconds = |value: Option<f64>| Cell::figure(value, |value| format!("{value:.1}"));
    let sampled = times.filter(|times| times.sampled_tokens > 0);
    vec![
        Cell::text(node.name()),
        Cell::figure(Some(trace.number as f64), |number| format!("{number:.0}")),
        Cell::text(clean_line(&trace.by)),
        Cell::text(trace.stage.name()).toned(tone(&trace.stage)),
        Cell::figure(Some(trace.age_ms as f64), |age| format!("{:.1}", age / 1e3)),
        Cell::figure(Some(trace.prompt_tokens).filter(|count| *count > 0), |count| count.to_string()),
        Cell::figure(times.map(|times| times.cached_tokens), |count| count.to_string()),
        Cell::figure(times.map(|times| times.stored_tokens), |count| count.to_string()),
        Cell::figure(Some(trace.tokens), |count| count.to_string()),
        Cell::figure(Some(trace.max_tokens).filter(|count| *count > 0), |count| count.to_string()),
        progress(trace),
        milliseconds(times.map(|times| times.dispatched.milliseconds())),
        milliseconds(sampled.map(|times| span(times.dispatched, times.first_token))),
        milliseconds(sampled.map(|times| span(times.first_token, times.last_token))),
        Cell::figure(rate(trace), |rate| format!("{rate:.1}")),
        milliseconds(sampled.map(|times| times.ttft_ms())),
        milliseconds(sampled.filter(|times| times.sampled_tokens > 1).map(|times| times.tpot_ms())),
        Cell::figure(
            times
                .filter(|times| times.drafted_tokens > 0)
                .map(|times| 100.0 * f64::from(times.accepted_tokens) / f64::from(times.drafted_tokens)),
            |percent| format!("{percent:.0} %"),
        ),
        Cell::text(model(node).trim_end_matches(".gguf")).toned(Tone::Dim),
        end(&trace.stage),
    ]
}

/// The model that a head answers with.
pub fn model(node: &Node) -> String {
    let topology = node.report.as_ref().and_then(|report| report.topology.as_ref());
    topology.map_or_else(String::new, |(topology, ..)| clean_line(&topology.model))
}

/// Tokens per second of an answer: after its first token if it is finished, otherwise since it arrived.
pub fn rate(trace: &RequestReport) -> Option<f64> {
    match &trace.stage {
        RequestStage::Finished(_, times) if times.sampled_tokens > 1 => Some(ratio(1e3, times.tpot_ms())),
        RequestStage::Decoding if trace.tokens > 0 && trace.age_ms > 0 => {
            Some(ratio(f64::from(trace.tokens) * 1e3, trace.age_ms as f64))
        }
        _ => None,
    }
}

/// The share of the most tokens that were asked for, as a bar while the request runs.
fn progress(trace: &RequestReport) -> Cell {
    if trace.stage.is_over() || trace.max_tokens == 0 {
        return Cell::default();
    }
    let share = ratio(f64::from(trace.tokens), f64::from(trace.max_tokens)).min(1.0);
    let filled = (share * PROGRESS as f64) as usize;
    let text = "█".repeat(filled) + &"░".repeat(PROGRESS - filled);
    Cell { text, number: Some(share), tone: tone(&trace.stage) }
}

/// Why an answer ended.
pub fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "the model ended it",
        FinishReason::Length => "max tokens reached",
        FinishReason::Context => "context full",
        FinishReason::Cancelled => "cancelled",
    }
}

/// The tone of a stage.
pub fn tone(stage: &RequestStage) -> Tone {
    match stage {
        RequestStage::Queued | RequestStage::Prefill => Tone::Warn,
        RequestStage::Decoding => Tone::Ok,
        RequestStage::Finished(..) | RequestStage::Abandoned => Tone::Dim,
        RequestStage::Failed(_) => Tone::Bad,
    }
}

fn end(stage: &RequestStage) -> Cell {
    match stage {
        RequestStage::Finished(why, _) => Cell::text(reason(*why)).toned(Tone::Dim),
        RequestStage::Abandoned => Cell::text("client disconnected").toned(Tone::Dim),
        RequestStage::Failed(fault) => Cell::text(clean_line(&fault.to_string())).toned(Tone::Bad),
        RequestStage::Queued | RequestStage::Prefill | RequestStage::Decoding => Cell::default(),
    }
}

/// The request of this console that waits for a topology.
fn held(state: &State) -> TableRow {
    let mut cells = vec![Cell::default(); COLUMNS.len()];
    let age: Duration = state.generation.request.age(state.now);
    cells[0] = Cell::text("here");
    cells[3] = Cell::text("held").toned(Tone::Warn);
    cells[4] = Cell::figure(Some(age.as_secs_f64()), |age| format!("{age:.1}"));
    cells[COLUMNS.len() - 1] = Cell::text("until a topology runs").toned(Tone::Warn);
    TableRow { key: "here".to_owned(), cells, is_stale: false }
}

/// All requests in the reports of heads that still report, with the heads' names.
fn live(state: &State) -> impl Iterator<Item = (&str, &RequestReport)> {
    let live = state.cluster.nodes.iter().filter(|node| matches!(node.status(state.now), NodeStatus::Reports(_)));
    live.flat_map(|node| node.report.iter().flat_map(|report| &report.traces).map(|trace| (node.name(), trace)))
}

/// The requests that are not over, with their heads' names.
pub fn open(state: &State) -> Vec<(&str, &RequestReport)> {
    live(state).filter(|(_, trace)| !trace.stage.is_over()).collect()
}

/// Times of the recently finished requests that have tokens, oldest first.
pub fn finished(state: &State) -> Vec<&RequestTimes> {
    let mut found: Vec<(u64, &RequestTimes)> = live(state)
        .filter_map(|(_, trace)| match &trace.stage {
            RequestStage::Finished(_, times) if times.sampled_tokens > 0 => Some((trace.age_ms, times.as_ref())),
            _ => None,
        })
        .collect();
    found.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    found.into_iter().map(|(_, times)| times).collect()
}

/// Mean time to first token and mean time per output token of recently finished requests, in milliseconds.
pub fn latencies(state: &State) -> (Option<f64>, Option<f64>) {
    let finished = finished(state);
    let mean = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let ttft = finished.iter().map(|times| times.ttft_ms()).collect();
    let tpot = finished.iter().filter(|times| times.sampled_tokens > 1).map(|times| times.tpot_ms()).collect();
    (mean(ttft), mean(tpot))
}
