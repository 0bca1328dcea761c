//! The Models page: the models that nodes have, the catalogue with what the planner predicts, and the transfer under way.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::fault::Fault;
use protocol::models::{FileState, ModelFile, family, files_of};

use super::{
    State,
    clean::clean_line,
    row::{Cell, TableRow, Tone},
    table::{Column, Table},
};
use crate::{
    catalogue::{CatalogueEntry, ENTRIES, decimal, is_quantisation, of_file},
    operator::{fit::Fit, planner_query::PlannerNode, transfer::Lane},
};

/// A model and the nodes that have all its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelChoice {
    /// Its file name; of a model in several files, that of the first.
    pub model: String,
    /// The size of all its files in bytes.
    pub bytes: u64,
    /// List indices of the nodes.
    pub nodes: Vec<usize>,
}

/// The answers of the nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelList {
    /// The models, by name.
    pub choices: Vec<ModelChoice>,
    /// List indices of the nodes whose answers are missing.
    pub waiting: Vec<usize>,
    /// Nodes that could not list their files, and why.
    pub faults: Vec<(usize, String)>,
}

impl ModelList {
    /// A list that waits for these nodes.
    pub fn new(nodes: Vec<usize>) -> Self {
        Self { waiting: nodes, ..Self::default() }
    }

    /// Adds the answer of a node.
    pub fn answered(&mut self, node: usize, answer: Result<Vec<ModelFile>, Fault>) {
        if !self.waiting.contains(&node) {
            return;
        }
        self.waiting.retain(|waiting| *waiting != node);
        match answer {
            Ok(files) => complete_models(&files).into_iter().for_each(|(model, bytes)| self.add(node, model, bytes)),
            Err(fault) => self.faults.push((node, clean_line(&fault.kind.to_string()))),
        }
    }

    fn add(&mut self, node: usize, model: String, bytes: u64) {
        match self.choices.binary_search_by(|choice| choice.model.cmp(&model)) {
            Ok(place) => self.choices[place].nodes.push(node),
            Err(place) => self.choices.insert(place, ModelChoice { model, bytes, nodes: vec![node] }),
        }
    }

    /// The model with this file name; the suffix `.gguf` and the part number of a split model may be left out.
    pub fn find(&self, name: &str) -> Option<&ModelChoice> {
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        self.choices.iter().find(|choice| choice.model == name || family(&choice.model) == stem)
    }
}

/// Name and size of the models of which a node has every file.
pub fn complete_models(files: &[ModelFile]) -> Vec<(String, u64)> {
    let mut models: Vec<(String, u64)> = Vec::new();
    for file in files {
        let parts = files_of(&file.model);
        if parts.first() != Some(&file.model) || models.iter().any(|(known, _)| *known == file.model) {
            continue;
        }
        let sizes = parts.iter().map(|part| {
            let complete = files.iter().find(|file| file.model == *part && file.state == FileState::Complete);
            complete.map(|file| file.size.0)
        });
        if let Some(bytes) = sizes.sum::<Option<u64>>() {
            models.push((file.model.clone(), bytes));
        }
    }
    models
}

/// A file on its way to nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct PullState {
    /// Short name of the model.
    pub name: String,
    /// List indices of the nodes, in the order of `lanes`.
    pub nodes: Vec<usize>,
    /// Their progress.
    pub lanes: Vec<Lane>,
}

/// The state of the Models page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelsState {
    /// The models of the nodes, as of the last complete round of answers.
    pub list: ModelList,
    /// The round of answers under way.
    pub fresh: Option<ModelList>,
    /// When the nodes were asked last.
    pub asked: Option<Duration>,
    /// The name given to `:load`, until all nodes have answered.
    pub requested: Option<String>,
    /// The model that the planner is working on, to be loaded.
    pub planning: Option<String>,
    /// What the planner predicts for models of the catalogue, by short name.
    pub fits: BTreeMap<String, Fit>,
    /// The nodes that the predictions are for: name and GiB of memory.
    pub fits_for: Vec<(String, u64)>,
    /// When they were asked for last.
    pub fits_asked: Option<Duration>,
    /// The transfer under way.
    pub pull: Option<PullState>,
}

impl ModelsState {
    /// The most complete list of the nodes' models.
    pub fn shown(&self) -> &ModelList {
        match &self.fresh {
            Some(fresh) if self.list == ModelList::default() => fresh,
            _ => &self.list,
        }
    }
}

/// What a row of the page stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelRow {
    /// A model that nodes have.
    Held(ModelChoice),
    /// A model of the catalogue.
    Known(&'static CatalogueEntry),
}

/// Start of the keys of rows of the catalogue; file names cannot contain a slash.
const KNOWN: &str = "catalogue/";

/// The row with this key.
pub fn row_of(state: &State, key: &str) -> Option<ModelRow> {
    if let Some(name) = key.strip_prefix(KNOWN) {
        return ENTRIES.iter().find(|entry| entry.name == name).map(ModelRow::Known);
    }
    state.models.shown().choices.iter().find(|choice| choice.model == key).cloned().map(ModelRow::Held)
}

/// Whether a key is that of a row of the catalogue.
pub fn is_known(key: &str) -> bool {
    key.starts_with(KNOWN)
}

/// The nodes for the planner's predictions: as if no model were loaded.
pub fn planner_nodes(state: &State) -> Vec<PlannerNode> {
    let usable = state.cluster.usable();
    let nodes = usable.into_iter().filter_map(|place| {
        let node = &state.cluster.nodes[place];
        let report = node.report.as_ref().filter(|_| node.is_open())?;
        let (machine, cores) = &node.machine;
        Some(PlannerNode::of(place, machine, *cores, report, false))
    });
    nodes.collect()
}

/// Columns of the page's two tables.
pub const COLUMNS: &[Column] = &[
    Column::left("model", 24, 0),
    Column::right("size", 8, 0),
    Column::left("files", 12, 6),
    Column::right("ctx", 5, 7),
    Column::left("licence", 11, 5),
    Column::left("on", 6, 2),
    Column::rest("fits", 12, 0),
    Column::left("speed", SPEED_CELLS, 8),
];

/// Width of the bar of the predicted speed.
const SPEED_CELLS: usize = 8;
/// Tokens per second of a full bar: faster than most people read.
pub const SPEED_FULL: f64 = 20.0;
/// Most nodes that are shown by a sign each.
const SIGNS_MAX: usize = 6;

/// The models of the nodes, then the catalogue.
pub fn table(state: &State) -> Table {
    let list = state.models.shown();
    let held = list.choices.iter().map(|choice| held_row(state, choice));
    let known = ENTRIES.iter().map(|entry| known_row(state, entry));
    Table { columns: COLUMNS, rows: held.chain(known).collect() }
}

/// A sign for each node, in the order of the Cluster page: whether it has the model. Of many nodes their number.
fn on(state: &State, nodes: &[usize]) -> Cell {
    let usable = state.cluster.usable();
    let tone = if nodes.is_empty() { Tone::Dim } else { Tone::Plain };
    let text = if usable.len() > SIGNS_MAX {
        format!("{}/{}", nodes.len(), usable.len())
    } else {
        usable.iter().map(|place| if nodes.contains(place) { '●' } else { '○' }).collect()
    };
    Cell { number: Some(nodes.len() as f64), ..Cell::text(text).toned(tone) }
}

/// What the planner predicts, and the bar of the speed.
fn fits(state: &State, entry: Option<&CatalogueEntry>) -> [Cell; 2] {
    match entry.and_then(|entry| state.models.fits.get(entry.name)) {
        Some(fit @ Fit::As { tokens_per_second, .. }) => {
            let text = Cell::text(fit.text()).toned(Tone::Ok);
            [text, Cell { number: *tokens_per_second, ..Cell::text(tokens_per_second.map_or_else(String::new, bar)) }]
        }
        Some(Fit::TooLarge) => {
            let free: u64 = state.models.fits_for.iter().map(|(_, gib)| gib).sum();
            let text = format!("too large: {free} GiB free on the nodes");
            [Cell::text(text).toned(Tone::Dim), Cell::text(bar(0.0)).toned(Tone::Dim)]
        }
        Some(Fit::Unknown) => [Cell::text("no prediction for this model").toned(Tone::Dim), Cell::default()],
        None => {
            [Cell::text(if entry.is_none() { "Enter asks the planner" } else { "" }).toned(Tone::Dim), Cell::default()]
        }
    }
}

fn bar(tokens_per_second: f64) -> String {
    let cells = SPEED_CELLS as f64 * (tokens_per_second / SPEED_FULL).clamp(0.0, 1.0);
    let full = (cells.ceil() as usize).min(SPEED_CELLS);
    "█".repeat(full) + &"░".repeat(SPEED_CELLS - full)
}

fn licence(entry: &CatalogueEntry) -> [Cell; 2] {
    let context = Cell { number: Some(f64::from(entry.context)), ..Cell::text(format!("{} k", entry.context / 1024)) };
    [context, Cell::text(entry.licence)]
}

fn held_row(state: &State, choice: &ModelChoice) -> TableRow {
    let (entry, file) = of_file(&choice.model).unzip();
    let [context, licence] =
        entry.map_or_else(|| [Cell::text("–").toned(Tone::Dim), Cell::text("–").toned(Tone::Dim)], licence);
    let [predicted, speed] = fits(state, entry);
    let last = match state.cluster.topology() {
        Some((topology, _)) if topology.model == choice.model => {
            let word = if state.cluster.is_ready() { "serves" } else { "assigned" };
            Cell::text(format!("{word}: {}", topology.layout)).toned(Tone::Ok)
        }
        _ if state.models.planning.as_deref() == Some(choice.model.as_str()) => {
            Cell::text("planning").toned(Tone::Warn)
        }
        _ => predicted,
    };
    let cells = vec![
        Cell::text(clean_line(&choice.model)),
        Cell { number: Some(choice.bytes as f64), ..Cell::text(decimal(choice.bytes)) },
        Cell::text(file.map_or_else(|| quantisation(&choice.model), |file| file.quantisation.to_owned())),
        context,
        licence,
        on(state, &choice.nodes),
        last,
        speed,
    ];
    TableRow { key: choice.model.clone(), cells, is_stale: false }
}

/// The quantisation in a file name, by its usual place at the end: `bard-q8_0.gguf`.
fn quantisation(model: &str) -> String {
    let last = family(model).rsplit(['-', '.']).next().unwrap_or_default().to_ascii_uppercase();
    if is_quantisation(&last) { clean_line(&last) } else { "–".to_owned() }
}

fn known_row(state: &State, entry: &CatalogueEntry) -> TableRow {
    let file = entry.usual();
    let [context, licence] = licence(entry);
    let files: Vec<&str> = entry.files.iter().map(|file| file.quantisation).collect();
    let [predicted, speed] = fits(state, Some(entry));
    let last = match &state.models.pull {
        Some(pull) if pull.name == entry.name => Cell::text("downloading").toned(Tone::Warn),
        _ => predicted,
    };
    let size = if file.is_about { file.size().replace("about ", "~") } else { file.size() };
    let cells = vec![
        Cell::text(entry.name),
        Cell { number: Some(file.bytes as f64), ..Cell::text(size) },
        Cell::text(files.join(", ")),
        context,
        licence,
        on(state, &holders(state, entry)),
        last,
        speed,
    ];
    TableRow { key: format!("{KNOWN}{}", entry.name), cells, is_stale: false }
}

/// The nodes that have any file of a model of the catalogue.
fn holders(state: &State, entry: &CatalogueEntry) -> Vec<usize> {
    let choices = state.models.shown().choices.iter();
    let held = choices.filter(|choice| entry.file_named(&choice.model).is_some());
    held.flat_map(|choice| choice.nodes.iter().copied()).collect::<BTreeSet<usize>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use common::units::Bytes;

    use super::*;

    fn file(model: &str, bytes: u64, state: FileState) -> ModelFile {
        let folder = "/models".to_owned();
        ModelFile {
            model: model.into(),
            folder,
            size: Bytes(bytes),
            state,
            identity: None,
            sha256: None,
            content: None,
        }
    }

    #[test]
    fn only_complete_models_are_listed_with_their_nodes() {
        let mut list = ModelList::new(vec![0, 1]);
        let parts = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"];
        let small = || file("small.gguf", 5, FileState::Complete);
        list.answered(1, Ok(vec![small(), file(parts[0], 1, FileState::Complete)]));
        let all = parts.map(|part| file(part, 7, FileState::Complete));
        list.answered(0, Ok([all.to_vec(), vec![small(), file("half.gguf", 3, FileState::Partial)]].concat()));
        let found: Vec<_> =
            list.choices.iter().map(|choice| (choice.model.as_str(), choice.bytes, choice.nodes.as_slice())).collect();
        assert_eq!(found, [(parts[0], 14, &[0][..]), ("small.gguf", 5, &[1, 0][..])]);
        assert_eq!(list.find("big").map(|choice| choice.model.as_str()), Some(parts[0]));
        assert_eq!(list.find("small").map(|choice| choice.bytes), Some(5));
        assert!(list.find("half").is_none() && list.waiting.is_empty());
    }

    #[test]
    fn quantisation_is_read_from_usual_file_names() {
        let read = ["bard-q8_0.gguf", "m.Q4_K_M.gguf", "tall.gguf", "qwen.gguf"].map(quantisation);
        assert_eq!(read, ["Q8_0", "Q4_K_M", "–", "–"]);
    }
}
