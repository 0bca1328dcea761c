//! `console model search`: the catalogue of well-known models, and how they would run on the nodes or on hypothetical
//! ones.
use std::sync::Arc;

use clap::Args;
use common::units::Bytes;
use planner::search::Goal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    catalogue::{CatalogueEntry, search},
    cli::{
        Failure,
        shared::{
            hypothetical_cluster::{bytes, free},
            options::Nodes,
            output,
            paint::{self, Shade},
            silent::SilentNodes,
            table::{TableCell, TableColumn, room, table},
        },
    },
    client::{cluster::Cluster, with_port},
    operator::{
        fit::{Fit, fit, hypothetical},
        planner_query::PlannerNode,
    },
};

/// Options of `console model search`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Search {
    /// Words of name, family, licence or quantization [default: all models]
    #[arg(value_name = "QUERY")]
    query: Vec<String>,
    /// Predict for this many hypothetical Raspberry Pi 5 instead of the cluster's nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    count: Option<u16>,
    /// Memory of each hypothetical node
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = bytes, requires = "count")]
    memory: u64,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[arg(from_global)]
    json: bool,
}

/// Columns of the table.
const COLUMNS: [TableColumn; 7] = [
    TableColumn { title: "NAME", least: 12, is_number: false, drops: 0 },
    TableColumn { title: "PARAMETERS", least: 4, is_number: false, drops: 4 },
    TableColumn { title: "SIZE", least: 7, is_number: true, drops: 0 },
    TableColumn { title: "FILES", least: 6, is_number: false, drops: 2 },
    TableColumn { title: "CONTEXT", least: 7, is_number: true, drops: 3 },
    TableColumn { title: "LICENCE", least: 7, is_number: false, drops: 1 },
    TableColumn { title: "FITS", least: 9, is_number: false, drops: 0 },
];

/// Runs the command.
pub(super) async fn run(options: Search) -> Result<u8, Failure> {
    let entries = search(&options.query.join(" "));
    if entries.is_empty() {
        let message = format!("no model matches {:?}", options.query.join(" "));
        let next =
            "console model search without words lists all; console model pull hf:OWNER/REPO:FILE gets any GGUF file";
        return Err(Failure::State { message, next });
    }
    let SearchedNodes { nodes, whose, silent } = SearchedNodes::of(&options).await;
    let fits = fits(&entries, &nodes).await;
    if options.json {
        let rows = entries.iter().zip(&fits).map(|(entry, fit)| object(entry, fit));
        let rows: Vec<Value> = rows.collect();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let object = json!({"nodes": nodes.len(), "names": names, "away": silent.objects(), "models": rows});
        output::line(&object.to_string());
        return Ok(0);
    }
    let columns = if nodes.is_empty() { &COLUMNS[..COLUMNS.len() - 1] } else { &COLUMNS[..] };
    let rows: Vec<Vec<TableCell>> = entries.iter().zip(&fits).map(|(entry, fit)| row(entry, fit)).collect();
    table(columns, &rows, room(), paint::is_on()).iter().for_each(|line| output::line(line));
    output::note(&whose);
    silent.lines().iter().for_each(|line| output::note(line));
    output::note("to get one: console model pull NAME, or NAME:QUANTIZATION for another file");
    Ok(0)
}

/// The nodes to predict for.
struct SearchedNodes {
    nodes: Vec<PlannerNode>,
    /// A line that names them.
    whose: String,
    /// The nodes that are left out because they do not answer.
    silent: SilentNodes,
}

impl SearchedNodes {
    async fn of(options: &Search) -> Self {
        let silent = SilentNodes::default();
        if let Some(count) = options.count {
            let memory = Bytes(options.memory);
            let whose = format!("predicted for {count} Raspberry Pi 5 with {memory} each; no Pi was measured");
            return Self { nodes: hypothetical(usize::from(count), free(options.memory)), whose, silent };
        }
        let none = "no nodes to predict for: name them with --nodes, or --count N --memory 8G";
        if options.nodes.nodes.is_empty() {
            return Self { nodes: Vec::new(), whose: none.into(), silent };
        }
        let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
        let cluster = Cluster::dial(&addresses).await;
        let nodes = cluster.planner_nodes();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let whose = match names.as_slice() {
            [] => format!("no node answers. {none}"),
            names => output::clean(&format!("predicted for {}, as if no model were loaded", names.join(", "))),
        };
        Self { nodes, whose, silent: SilentNodes::of(&cluster) }
    }
}

/// The predictions, computed on all cores.
async fn fits(entries: &[&'static CatalogueEntry], nodes: &[PlannerNode]) -> Vec<Fit> {
    let nodes: Arc<Vec<PlannerNode>> = Arc::new(nodes.to_vec());
    let mut planning = JoinSet::new();
    for (place, entry) in entries.iter().enumerate() {
        let (entry, nodes) = (*entry, Arc::clone(&nodes));
        planning.spawn_blocking(move || (place, fit(entry, entry.usual(), &nodes, Goal::Balanced)));
    }
    let mut done = planning.join_all().await;
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, fit)| fit).collect()
}

fn files(entry: &CatalogueEntry) -> String {
    entry.files.iter().map(|file| file.quantisation).collect::<Vec<_>>().join(", ")
}

fn row(entry: &CatalogueEntry, fit: &Fit) -> Vec<TableCell> {
    let tone = match fit {
        Fit::As { .. } => Some(Shade::Good),
        Fit::TooLarge | Fit::Unknown => Some(Shade::Quiet),
    };
    vec![
        (entry.name.into(), None),
        (entry.size_text(), None),
        (entry.usual().size(), None),
        (files(entry), None),
        (format!("{} k", entry.context / 1024), None),
        (entry.licence.into(), None),
        (fit.text(), tone),
    ]
}

/// A figure of the table without the digits that single precision adds.
fn hundredths(figure: f32) -> f64 {
    (f64::from(figure) * 100.0).round() / 100.0
}

fn object(entry: &CatalogueEntry, fit: &Fit) -> Value {
    let files: Vec<Value> = entry
        .files
        .iter()
        .map(|file| {
            json!({"quantization": file.quantisation, "source": file.source, "file": file.file_name(),
                "bytes": file.bytes, "bytes_rounded": file.is_about})
        })
        .collect();
    let fits = match fit {
        Fit::As { layout, tokens_per_second, bytes } => {
            json!({"topology": layout.to_string(), "tokens_per_second": tokens_per_second, "bytes_per_node": bytes})
        }
        Fit::TooLarge => json!(false),
        Fit::Unknown => Value::Null,
    };
    json!({"name": entry.name, "family": entry.family, "parameters_billion": hundredths(entry.parameters),
        "active_billion": entry.active.map(hundredths), "licence": entry.licence, "context": entry.context,
        "default": entry.usual().quantisation, "files": files, "fits": fits})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};
    use crate::view::format::width;

    #[tokio::test]
    async fn silent_node_is_named_next_to_those_of_the_predictions() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let nodes = Nodes { nodes: vec![node.address.clone(), "127.0.0.1:1".into()] };
        let options = Search { query: Vec::new(), count: None, memory: 1 << 33, nodes, json: false };
        let searched = SearchedNodes::of(&options).await;
        assert!(searched.whose.starts_with("predicted for pi1, as if"), "{}", searched.whose);
        assert_eq!((searched.nodes.len(), searched.silent.names().as_str()), (1, "127.0.0.1:1"));
    }

    #[tokio::test]
    async fn table_fits_a_terminal_of_80_columns_and_names_the_layout() {
        let entries = search("llama-3");
        let fits = fits(&entries, &hypothetical(2, 3 << 30)).await;
        let rows: Vec<Vec<TableCell>> = entries.iter().zip(&fits).map(|(entry, fit)| row(entry, fit)).collect();
        for room in [80, 120] {
            let lines = table(&COLUMNS, &rows, room, false);
            assert!(lines.iter().all(|line| width(line) <= room), "{lines:#?}");
            assert!(lines[1].starts_with("llama-3.2-1b") && lines[1].contains("tp2, about"), "{lines:#?}");
            assert!(lines.last().is_some_and(|line| line.contains("too large")), "{lines:#?}");
        }
        let object = object(entries[0], &fits[0]);
        assert_eq!((&object["default"], &object["fits"]["topology"]), (&json!("Q4_K_M"), &json!("tp2")));
        assert!(object["files"][1]["source"].as_str().is_some_and(|source| source.starts_with("hf:")));
    }
}
