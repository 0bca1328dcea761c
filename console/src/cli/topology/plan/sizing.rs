//! `console plan --sizing`: the sizing table of the README: models, memory and node counts with predicted speed.
use serde_json::{Value, json};
use topology::sizes::{ModelSizes, Quantisation};

use crate::cli::{
    Failure,
    shared::output,
    topology::plan::{Plan, fastest},
};

const MODELS: [&str; 6] =
    ["llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen3-14b", "qwen3-30b-a3b", "llama-3.3-70b"];
const GIBIBYTES: [u64; 3] = [4, 8, 16];
const NODES: [usize; 4] = [1, 2, 4, 8];

/// Prints a Markdown table, or JSON.
pub(crate) fn run(options: &Plan) -> Result<u8, Failure> {
    let demand = options.demand();
    let mut rows = Vec::new();
    let mut lines = vec![
        format!("| model, Q4_K_M | {} | 1 node | 2 | 4 | 8 |", options.profile().name),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    let mut before = None;
    for (model, gibibytes) in MODELS.into_iter().flat_map(|model| GIBIBYTES.map(|each| (model, each))) {
        let usage = |message| Failure::Usage { message, next: "console plan --help" };
        let sizes = ModelSizes::known(model, Quantisation::Q4KM).map_err(usage)?;
        let found = NODES.map(|count| fastest(&sizes, &options.described(count, gibibytes << 30), &demand));
        // Skip rows in which more memory changes nothing.
        let now = Some((model, found));
        if found.iter().all(Option::is_none) || before == now {
            continue;
        }
        before = now;
        let cells = found.iter().map(|cell| {
            cell.as_ref().map_or("-".into(), |(layout, bytes, rate)| {
                format!("{layout}, {:.1} GiB, {rate:.1} tok/s", bytes.0 as f64 / (1_u64 << 30) as f64)
            })
        });
        lines.push(format!("| {model} | {gibibytes} GB | {} |", cells.collect::<Vec<String>>().join(" | ")));
        let object = |(count, cell): (usize, &Option<_>)| {
            let cell: &Option<(topology::Layout, common::units::Bytes, f64)> = cell;
            cell.as_ref().map(|(layout, bytes, rate)| {
                json!({"nodes": count, "topology": layout.to_string(), "bytes": bytes.0, "tokens_per_second": rate})
            })
        };
        let cells: Vec<Value> = NODES.into_iter().zip(&found).filter_map(object).collect();
        rows.push(json!({"model": model, "gibibytes": gibibytes, "layouts": cells}));
    }
    if options.json() {
        output::line(
            &json!({"sizing": rows, "context": demand.context, "exchange": demand.exchange.to_string()}).to_string(),
        );
    } else {
        lines.iter().for_each(|line| output::line(line));
    }
    Ok(0)
}
