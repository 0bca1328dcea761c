//! A page's data as a table for other programs: one row per item, units in the column titles, numeric values as
//! numbers. A graph is exported as its data points. Pure.
use common::latency::ratio;
use serde_json::{Map, Value, json};
use telemetry::{LayerSync, Severity, SyncKind};

use crate::state::{
    Page, State,
    command::Format,
    lateness::ranks,
    node::{Node, NodeStatus},
    row::Cell,
    tables,
};

/// A table of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Column titles.
    pub columns: Vec<&'static str>,
    /// Rows with one value per column; null = unknown.
    pub rows: Vec<Vec<Value>>,
}

/// The data of the current page as CSV or JSON.
///
/// # Errors
/// The page has no data yet; the message names the page.
pub fn data(state: &State, format: Format) -> Result<String, String> {
    let page = state.screen.focus.page;
    let talk = state.chat.shown().filter(|_| page == Page::Chat);
    match (format, talk) {
        (Format::Markdown, Some(talk)) => return Ok(talk.markdown()),
        (Format::Json, Some(talk)) => return Ok(talk.json()),
        (Format::Markdown, None) => {
            return Err("only a conversation of the page Chat can be written as Markdown".to_owned());
        }
        _ => {}
    }
    let grid = grid(state);
    if grid.rows.is_empty() {
        return Err(format!("the page {} has no data to write yet", page.title()));
    }
    Ok(match format {
        Format::Json => {
            let name = page.title().to_lowercase();
            format!("{:#}\n", json!({ "page": name, "at_s": state.now.as_secs_f64(), "rows": objects(&grid) }))
        }
        _ => csv(&grid),
    })
}

/// The data of the current page.
pub fn grid(state: &State) -> Grid {
    match state.screen.focus.page {
        Page::Cluster | Page::Topology => nodes(state),
        Page::Sync => layers(state, &(0..state.cluster.nodes.len()).collect::<Vec<_>>()),
        Page::Node => layers(state, &[state.screen.selected]),
        Page::Generate | Page::Chat => request(state),
        Page::Requests | Page::Models => arranged(state),
        Page::Events => events(state),
    }
}

fn nodes(state: &State) -> Grid {
    let columns = vec![
        "node",
        "address",
        "state",
        "silent_s",
        "rank",
        "out",
        "shard_bytes",
        "memory_resident_bytes",
        "memory_available_bytes",
        "temperature_celsius",
        "clock_mhz",
        "clock_limit_mhz",
        "governor",
        "throttle_bits",
        "warnings",
        "requests",
        "network_fraction",
        "late_fraction",
    ];
    let ranks = ranks(state);
    let rows = state.cluster.nodes.iter().enumerate().map(|(place, node)| {
        let late = ranks.iter().find(|row| row.node == Some(place)).map(|row| row.late);
        node_row(state, node, late)
    });
    Grid { columns, rows: rows.collect() }
}

/// The values of a node in the order of the columns of [`nodes`].
fn node_row(state: &State, node: &Node, late: Option<f64>) -> Vec<Value> {
    let report = node.report.as_ref();
    let health = report.map(|report| &report.health);
    let clock = health.and_then(|health| health.clock.as_ref());
    let (network, all) = node.network_share();
    let (word, silent) = standing(node.status(state.now));
    vec![
        json!(node.name()),
        json!(node.address),
        json!(word),
        json!(silent),
        json!(state.cluster.member_of(node)),
        json!(state.cluster.exclusion(node).map(|entry| entry.reason.clone().unwrap_or_default())),
        json!(report.map(|report| report.shard.0)),
        json!(report.map(|report| report.memory_resident.0)),
        json!(health.and_then(|health| health.memory).map(|memory| memory.available.0)),
        json!(health.and_then(|health| health.temperature).map(|celsius| tenth(celsius.0))),
        json!(clock.map(|clock| clock.current.0)),
        json!(clock.map(|clock| clock.limit.0)),
        json!(clock.map(|clock| clock.governor.clone())),
        json!(health.and_then(|health| health.firmware).map(|bits| bits.0)),
        json!(
            health.map(|health| {
                health.warnings().iter().map(telemetry::Warning::short).collect::<Vec<_>>().join(", ")
            })
        ),
        json!(report.map(|report| report.requests)),
        json!((all > 0.0).then(|| ratio(network, all))),
        json!(late),
    ]
}

/// The rows of a table, sorted and filtered as on the screen.
fn arranged(state: &State) -> Grid {
    let page = state.screen.focus.page;
    let Some(table) = tables::table(state, page) else { return Grid { columns: Vec::new(), rows: Vec::new() } };
    let (rows, _) = tables::shown(state, page, &table);
    let rows = rows
        .into_iter()
        .map(|row| {
            row.cells
                .iter()
                .map(|cell: &Cell| cell.number.map_or_else(|| json!(cell.text), |number| json!(number)))
                .collect()
        })
        .collect();
    Grid { columns: table.columns.iter().map(|column| column.title).collect(), rows }
}

/// Rounds a temperature to tenths: converting an `f32` directly would add digits.
fn tenth(celsius: f32) -> f64 {
    (f64::from(celsius) * 10.0).round() / 10.0
}

fn standing(standing: NodeStatus) -> (&'static str, Option<u64>) {
    match standing {
        NodeStatus::Connecting => ("connecting", None),
        NodeStatus::Away => ("away", None),
        NodeStatus::Lost => ("lost", None),
        NodeStatus::Stale(seconds) => ("stale", Some(seconds)),
        NodeStatus::Silent => ("silent", None),
        NodeStatus::Reports(state) => (state.name(), None),
    }
}

fn layers(state: &State, places: &[usize]) -> Grid {
    let columns = vec![
        "node",
        "rank",
        "layer",
        "all_reduce",
        "count",
        "p50_ns",
        "p95_ns",
        "p99_ns",
        "compute_ns",
        "wait_ns",
        "wire_ns",
        "slowest_rank",
    ];
    let mut rows = Vec::new();
    for node in places.iter().filter_map(|place| state.cluster.nodes.get(*place)) {
        let member = state.cluster.member_of(node);
        let syncs = node.layers.iter().flat_map(|layer| layer.attention.iter().chain(&layer.feed_forward));
        rows.extend(syncs.map(|sync| {
            let LayerSync { layer, kind, count, p50, p95, p99, compute, wait, wire, slowest } = *sync;
            let kind = if kind == SyncKind::Attention { "attention" } else { "feed_forward" };
            let mut row = vec![json!(node.name()), json!(member), json!(layer.0), json!(kind), json!(count)];
            row.extend([p50, p95, p99, compute, wait, wire].map(|time| json!(time.0)));
            row.push(json!(slowest.0));
            row
        }));
    }
    Grid { columns, rows }
}

fn request(state: &State) -> Grid {
    let request = &state.generation.request;
    let columns = vec!["prompt", "text", "prompt_tokens", "tokens", "ttft_ms", "tpot_ms", "network_fraction"];
    let row = vec![
        json!(request.prompt_shown),
        json!(request.text),
        json!(request.prompt_tokens),
        json!(request.tokens),
        json!(request.ttft_ms()),
        json!(request.tpot_ms()),
        json!(request.network_fraction()),
    ];
    Grid { columns, rows: if request.prompt.is_empty() { Vec::new() } else { vec![row] } }
}

fn events(state: &State) -> Grid {
    let rows = state.journal.events.entries().iter().map(|entry| {
        let severity = match entry.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let node = entry.node.and_then(|place| state.cluster.nodes.get(place)).map(|node| node.name());
        vec![json!(entry.at.as_secs_f64()), json!(severity), json!(node), json!(entry.text)]
    });
    Grid { columns: vec!["at_s", "severity", "node", "text"], rows: rows.collect() }
}

fn objects(grid: &Grid) -> Vec<Value> {
    grid.rows
        .iter()
        .map(|row: &Vec<Value>| {
            let fields = grid.columns.iter().zip(row).map(|(column, value)| ((*column).to_owned(), value.clone()));
            Value::Object(fields.collect::<Map<_, _>>())
        })
        .collect()
}

/// Comma-separated values (RFC 4180).
fn csv(grid: &Grid) -> String {
    let mut text = grid.columns.join(",") + "\r\n";
    for row in &grid.rows {
        text += &(row.iter().map(field).collect::<Vec<_>>().join(",") + "\r\n");
    }
    text
}

fn field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => {
            // Names come from outside: a spreadsheet must not interpret one as a formula.
            let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.clone() };
            let quotes = text.contains([',', '"', '\n', '\r']);
            if quotes { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::Story, state::Focus};

    #[test]
    fn every_page_exports_both_formats_with_a_value_per_column() {
        // Heads report their requests; the last head here has reported none.
        for page in Page::ALL.into_iter().filter(|page| *page != Page::Requests) {
            let mut story = Story::finished();
            story.state.screen.focus = Focus::first_of(page);
            let grid = grid(&story.state);
            assert!(!grid.rows.is_empty() && grid.rows.iter().all(|row| row.len() == grid.columns.len()), "{page:?}");
            let csv = data(&story.state, Format::Csv).expect("page has data");
            assert!(csv.starts_with(&(grid.columns.join(",") + "\r\n")), "{csv}");
            let json: Value = serde_json::from_str(&data(&story.state, Format::Json).expect("data")).expect("JSON");
            assert_eq!(json["rows"].as_array().map(Vec::len), Some(grid.rows.len()));
        }
    }

    #[test]
    fn numbers_stay_numbers_and_outside_text_stays_text() {
        let story = Story::finished();
        let csv = data(&story.state, Format::Csv).unwrap_or_default();
        assert!(Story::finished().state.screen.focus.page != Page::Generate || csv.contains("torches"), "{csv}");
        assert_eq!(field(&json!("=1+1")), "'=1+1");
        assert_eq!(field(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!((field(&json!(2.5)), field(&Value::Null)), ("2.5".to_owned(), String::new()));
    }

    #[test]
    fn page_without_data_returns_an_error() {
        let mut story = Story::begin();
        story.state.screen.focus = Focus::first_of(Page::Sync);
        assert!(data(&story.state, Format::Csv).is_err_and(|reason| reason.contains("Sync")));
    }
}
