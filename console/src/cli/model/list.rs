//! `console model list`: the models of the nodes, a line each, or with `--files` every file of every node.
use std::collections::BTreeMap;

use clap::Args;
use common::units::Bytes;
use protocol::models::{FileState, ModelFile, files_of};
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

/// Runs the command. The exit code is that of the first node that does not list its files and is not excluded.
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
    let loaded: Vec<String> = cluster.topologies().iter().map(|(topology, _)| topology.model.clone()).collect();
    if options.json {
        let nodes: Vec<Value> = held
            .iter()
            .map(|(name, address, files)| match files {
                Ok(files) => {
                    json!({"node": name, "address": address, "models": files.iter().map(object).collect::<Vec<_>>()})
                }
                Err(fault) => json!({"node": name, "address": address, "error": Failure::error_object(fault)}),
            })
            .collect();
        output::line(&json!({"nodes": nodes, "loaded": loaded}).to_string());
    } else {
        let answers = held.iter().filter_map(|(name, _, files)| Some((name.as_str(), files.as_ref().ok()?.as_slice())));
        let answers: Vec<(&str, &[ModelFile])> = answers.collect();
        if options.files {
            print_files(&answers);
        } else {
            print_models(&answers, held.len(), &loaded);
        }
    }
    let mut code = 0;
    for (node, (name, _, files)) in cluster.nodes.iter().zip(&held) {
        let Err(fault) = files else { continue };
        if !options.json {
            output::line(&Failure::line(name, fault));
        }
        // An excluded node is listed, but does not count.
        if code == 0 && cluster.may_be_member(node) {
            code = Failure::from(fault.clone()).code();
        }
    }
    Ok(code)
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
        for (model, (files, bytes)) in headless(files) {
            let count = files_of(&model).len();
            let held = all.entry(model).or_default();
            held.bytes = held.bytes.max(bytes);
            held.damaged.push(format!("{node} ({files} of {count} files)"));
        }
    }
    all
}

/// The split models of which a node has only later files: the name of the first file, how many are there, and their
/// bytes. A first file without later ones is broken.
fn headless(files: &[ModelFile]) -> BTreeMap<String, (usize, u64)> {
    let mut found: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for file in files.iter().filter(|file| file.state == FileState::Complete) {
        let Some(first) = files_of(&file.model).into_iter().next() else { continue };
        if files.iter().all(|other| other.model != first) {
            let (count, bytes) = found.entry(first).or_default();
            (*count, *bytes) = (*count + 1, bytes.saturating_add(file.size.0));
        }
    }
    found
}

/// Prints the models of the nodes that answered, of so many in all.
fn print_models(nodes: &[(&str, &[ModelFile])], count: usize, loaded: &[String]) {
    let all = grouped(nodes);
    if all.is_empty() {
        if !nodes.is_empty() {
            let which = if nodes.len() == count { "no node" } else { "no node that answers" };
            let next = "console model search lists models, console model pull NAME gets one";
            output::note(&format!("{which} has a model; {next}"));
        }
        return;
    }
    let rows: Vec<Vec<TableCell>> = all.iter().map(|(model, held)| row(model, held, count, loaded)).collect();
    table(&COLUMNS, &rows, room(), paint::is_on()).iter().for_each(|line| output::line(line));
}

/// The row of a model; `nodes`: the number of all nodes, also of those that do not answer.
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
        let shown = |model: &str, nodes: usize| {
            let cells = row(model, &all[model], nodes, &["a.gguf".to_owned()]);
            cells.into_iter().map(|(cell, _)| cell).collect::<Vec<_>>().join(" | ")
        };
        assert_eq!(shown("a.gguf", 2), "a.gguf | 5 B | yes | all 2");
        assert_eq!(shown("a.gguf", 3), "a.gguf | 5 B | yes | pi1, pi2", "a third node does not answer");
        assert_eq!(shown("b.gguf", 2), "b.gguf | 5 B | - | pi1; unusable on pi2 (partial)");
    }

    #[test]
    fn later_files_without_the_first_one_are_no_model() {
        let parts = [1, 2, 3].map(|part| format!("big-0000{part}-of-00003.gguf"));
        let of = |places: &[usize]| -> Vec<ModelFile> {
            places.iter().map(|place| file(&parts[*place], FileState::Complete)).collect()
        };
        let (later, whole) = (of(&[1, 2]), of(&[0, 1, 2]));
        let all = grouped(&[("pi1", &later), ("pi2", &whole)]);
        assert_eq!(all.keys().collect::<Vec<_>>(), [&parts[0]]);
        let held = &all[&parts[0]];
        assert_eq!((held.bytes, held.on.as_slice()), (15, &["pi2".to_owned()][..]));
        assert_eq!(held.damaged, ["pi1 (2 of 3 files)"]);
        assert!(headless(&whole).is_empty());
    }
}
