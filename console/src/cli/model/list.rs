//! `console model list`: the models of the nodes, a line each, or with `--files` every file of every node.
use std::collections::BTreeMap;

use clap::Args;
use common::units::Bytes;
use protocol::models::{FileState, ModelFile};
use serde_json::{Value, json};

use super::{object, state};
use crate::{
    cli::{
        Failure,
        shared::{
            options::Nodes,
            output,
            paint::{self, Shade},
            table::{TableCell, TableColumn, room, table},
        },
    },
    client::{cluster::Cluster, models, with_port},
    state::models::complete_models,
};

/// Options of `console model list`.
#[derive(Clone, Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// List every file of every node, with identity and SHA-256
    #[arg(long)]
    files: bool,
    #[arg(from_global)]
    json: bool,
}

/// Columns of the list of models.
const COLUMNS: [TableColumn; 4] = [
    TableColumn { title: "MODEL", least: 12, is_number: false, drops: 0 },
    TableColumn { title: "SIZE", least: 8, is_number: true, drops: 2 },
    TableColumn { title: "LOADED", least: 6, is_number: false, drops: 1 },
    TableColumn { title: "NODES", least: 8, is_number: false, drops: 0 },
];

/// Runs the command.
pub(super) async fn run(options: List) -> Result<u8, Failure> {
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let cluster = Cluster::dial(&addresses).await;
    let mut held = Vec::with_capacity(cluster.nodes.len());
    for node in &cluster.nodes {
        let files = match node.session() {
            Ok(session) => models::list(&session).await,
            Err(fault) => Err(fault),
        };
        held.push((output::clean(cluster.name(node)), node.address.clone(), files));
    }
    if options.json {
        let nodes: Vec<Value> = held
            .iter()
            .map(|(name, address, files)| match files {
                Ok(files) => {
                    json!({"node": name, "address": address, "models": files.iter().map(object).collect::<Vec<_>>()})
                }
                Err(fault) => {
                    json!({"node": name, "address": address, "error": Failure::from(fault.clone()).json()["error"]})
                }
            })
            .collect();
        output::line(&json!({"nodes": nodes}).to_string());
    } else {
        let answers = held.iter().filter_map(|(name, _, files)| Some((name.as_str(), files.as_ref().ok()?.as_slice())));
        let answers: Vec<(&str, &[ModelFile])> = answers.collect();
        if options.files {
            print_files(&answers);
        } else {
            let loaded = cluster.topologies().iter().map(|(topology, _)| topology.model.clone()).collect::<Vec<_>>();
            print_models(&answers, &loaded);
        }
    }
    let faults = held.iter().filter_map(|(name, _, files)| Some((name, files.as_ref().err()?)));
    for (name, fault) in faults.clone().filter(|_| !options.json) {
        output::line(&output::clean(&format!("{name}: {}; {}", fault.kind, fault.next())));
    }
    Ok(faults.map(|(_, fault)| fault).next().map_or(0, |fault| Failure::from(fault.clone()).code()))
}

/// A model on some nodes.
#[derive(Debug, Default, PartialEq)]
struct HeldModel {
    bytes: u64,
    on: Vec<String>,
    /// Nodes with an incomplete or broken file of it.
    damaged: Vec<String>,
}

/// The models by name, with their nodes.
fn grouped(nodes: &[(&str, &[ModelFile])]) -> BTreeMap<String, HeldModel> {
    let mut all: BTreeMap<String, HeldModel> = BTreeMap::new();
    for (node, files) in nodes {
        for (model, bytes) in complete_models(files) {
            let held = all.entry(model).or_default();
            held.bytes = bytes;
            held.on.push((*node).to_owned());
        }
        for file in files.iter().filter(|file| file.state != FileState::Complete) {
            let held = all.entry(file.model.clone()).or_default();
            held.bytes = held.bytes.max(file.size.0);
            let (state, _) = state(file);
            held.damaged.push(format!("{node} ({state})"));
        }
    }
    all
}

fn print_models(nodes: &[(&str, &[ModelFile])], loaded: &[String]) {
    let all = grouped(nodes);
    if all.is_empty() {
        if !nodes.is_empty() {
            output::note("no node has a model; console model search lists models, console model pull NAME gets one");
        }
        return;
    }
    let rows: Vec<Vec<TableCell>> = all.iter().map(|(model, held)| row(model, held, nodes.len(), loaded)).collect();
    table(&COLUMNS, &rows, room(), paint::is_on()).iter().for_each(|line| output::line(line));
}

fn row(model: &str, held: &HeldModel, nodes: usize, loaded: &[String]) -> Vec<TableCell> {
    let mut on = match held.on.len() {
        count if count == nodes && nodes > 1 => format!("all {nodes}"),
        _ => held.on.join(", "),
    };
    if !held.damaged.is_empty() {
        let separator = if on.is_empty() { "" } else { "; " };
        on.push_str(&format!("{separator}unusable on {}", held.damaged.join(", ")));
    }
    let is_loaded = loaded.iter().any(|other| other == model);
    vec![
        (output::clean(model), None),
        (Bytes(held.bytes).to_string(), None),
        if is_loaded { ("yes".into(), Some(Shade::Good)) } else { ("-".into(), None) },
        (output::clean(&on), (!held.damaged.is_empty()).then_some(Shade::Warning)),
    ]
}

fn print_files(nodes: &[(&str, &[ModelFile])]) {
    output::line(&format!(
        "{:<10}  {:<40}  {:>10}  {:<16}  {:<16}  STATE",
        "NODE", "MODEL", "SIZE", "IDENTITY", "SHA-256"
    ));
    for (node, files) in nodes {
        files.iter().for_each(|file| output::line(&file_row(node, file)));
    }
}

fn file_row(node: &str, file: &ModelFile) -> String {
    let (state, problem) = state(file);
    let identity = file.identity.map_or("-".into(), |identity| identity.to_string());
    let hash = file.sha256.map_or("-".into(), |hash| hash.to_string()[..16].to_owned());
    let problem = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
    let row =
        format!("{node:<10}  {:<40}  {:>10}  {identity:<16}  {hash:<16}  {state}{problem}", file.model, file.size);
    output::clean(&row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(model: &str, state: FileState) -> ModelFile {
        let folder = "/models".to_owned();
        ModelFile { model: model.into(), folder, size: Bytes(5), state, identity: None, sha256: None, content: None }
    }

    #[test]
    fn each_model_is_one_line_with_its_nodes() {
        let whole = [file("a.gguf", FileState::Complete), file("b.gguf", FileState::Complete)];
        let part = [file("a.gguf", FileState::Complete), file("b.gguf", FileState::Partial)];
        let all = grouped(&[("pi1", &whole), ("pi2", &part)]);
        let shown = |model: &str| {
            let cells = row(model, &all[model], 2, &["a.gguf".to_owned()]);
            cells.into_iter().map(|(cell, _)| cell).collect::<Vec<_>>().join(" | ")
        };
        assert_eq!(shown("a.gguf"), "a.gguf | 5 B | yes | all 2");
        assert_eq!(shown("b.gguf"), "b.gguf | 5 B | - | pi1; unusable on pi2 (partial)");
    }
}
